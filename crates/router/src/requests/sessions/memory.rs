//! Table of the most recent sessions, with the number of turns, and the time and reason of the last answer's end. The
//! table is limited in number and size, and drops the least recently used sessions.

use std::hash::{BuildHasher, Hasher, RandomState};

use kvatlas_routing::Kind;
use lru::LruCache;

use super::turn::{Class, Hints, Identity, ShownUnder, Turn};
use crate::answers::observe::Stop;

/// Maximum number of sessions in the table of recent sessions.
const MOST: usize = 1 << 16;

/// Maximum number of ended child sessions recorded for a session.
const MOST_CHILDREN: usize = 64;

/// Table of the most recently used sessions.
pub(super) struct Memory {
    sessions: Lru<Session>,
    shown_under: ShownUnder,
}

#[derive(Debug, Default)]
struct Session {
    turns: u32,
    last: Option<AnswerEnd>,
    /// Child sessions (of agents started by the session) that have ended since the session's last request, each with
    /// the end of its last answer.
    children: Vec<(u64, AnswerEnd)>,
}

/// Time and reason of an answer's end.
#[derive(Debug, Clone, Copy)]
struct AnswerEnd {
    /// Number by which the decision core (which chooses engines) identifies the answered request.
    id: u64,
    at: f64,
    stop: Option<Stop>,
}

impl Memory {
    pub(super) fn new(shown_under: ShownUnder) -> Self {
        Self { sessions: Lru::new(MOST, usize::MAX), shown_under }
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// True if an answer to a request of the session has ended.
    pub(super) fn has_answer(&self, session: u64) -> bool {
        self.sessions.get(session).is_some_and(|session| session.last.is_some())
    }

    /// Returns the position of a request in its session, without recording the request. `now`: time in seconds.
    pub(super) fn look(&self, identity: Identity, hints: Hints, now: f64) -> Turn {
        let Identity { name, source } = identity;
        let session = self.sessions.get(name.key);
        let turns = session.map_or(0, |session| session.turns);
        let last = session.and_then(|session| session.last);
        let mut waited_for: Vec<AnswerEnd> = last.into_iter().collect();
        match (session, name.parent) {
            (Some(session), _) if session.turns > 0 => {
                waited_for.extend(session.children.iter().map(|(_, ended)| *ended));
            }
            // Whoever started it had to be told to by an answer.
            (_, Some(parent)) => waited_for.extend(self.sessions.get(parent).and_then(|parent| parent.last)),
            _ => {}
        }
        let end = waited_for.iter().map(|ended| ended.at).reduce(f64::max);
        let kind = match (hints.class, turns) {
            (Some(Class::Compaction), _) => Kind::Compaction,
            (class, 0) if name.parent.is_some() || class == Some(Class::Subagent) => Kind::Subagent,
            (_, 0) => Kind::Start,
            _ if last.and_then(|last| last.stop) == Some(Stop::Tool) => Kind::Tool,
            _ => Kind::User,
        };
        Turn {
            session: name.key,
            parent: name.parent,
            source,
            number: turns,
            kind,
            stop: last.and_then(|last| last.stop),
            pause: last.map(|last| (now - last.at).max(0.0)),
            after: waited_for.iter().map(|ended| ended.id).collect(),
            delay: end.map(|end| (now - end).max(0.0)),
            hints,
            shown_under: self.shown_under.clone(),
        }
    }

    /// Records the arrival of a request (turn) in the session to which it belongs.
    pub(super) fn begin(&mut self, turn: &Turn) {
        let session = self.sessions.used(turn.session);
        session.turns = session.turns.saturating_add(1);
        session.children.clear();
    }

    /// Records the end of the answer to a request. `id`: number by which the decision core (which chooses engines)
    /// identifies the request; `now`: time in seconds.
    pub(super) fn end(&mut self, turn: &Turn, id: u64, stop: Option<Stop>, now: f64) {
        let ended = AnswerEnd { id, at: now, stop };
        if let Some(parent) = turn.parent.and_then(|parent| self.sessions.get_mut(parent)) {
            parent.children.retain(|(child, _)| *child != turn.session);
            // One that calls a tool goes on.
            if stop != Some(Stop::Tool) && parent.children.len() < MOST_CHILDREN {
                parent.children.push((turn.session, ended));
            }
        }
        if turn.hints.is_last {
            self.sessions.remove(turn.session);
        } else if let Some(session) = self.sessions.get_mut(turn.session) {
            session.last = Some(ended);
        }
    }
}

/// Map with limits in number and in bytes, which drops the least recently used values. Keys are hashes.
#[derive(Debug)]
pub(super) struct Lru<T> {
    slots: LruCache<u64, Slot<T>, KeySeed>,
    most: usize,
    bytes: usize,
    most_bytes: usize,
}

#[derive(Debug, Default)]
struct Slot<T> {
    value: T,
    bytes: usize,
}

impl<T: Default> Lru<T> {
    pub(super) fn new(most: usize, most_bytes: usize) -> Self {
        // A cache with a limit of its own would take all its room at once.
        Self { slots: LruCache::unbounded_with_hasher(KeySeed::new()), most, bytes: 0, most_bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, key: u64) -> Option<&T> {
        self.slots.peek(&key).map(|slot| &slot.value)
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.slots.peek_mut(&key).map(|slot| &mut slot.value)
    }

    /// Returns the value of a key of the map, which is inserted if missing, and marks the value as recently used.
    pub(super) fn used(&mut self, key: u64) -> &mut T {
        while self.slots.len() >= self.most && !self.slots.contains(&key) && self.drop_oldest() {}
        &mut self.slots.get_or_insert_mut(key, Slot::default).value
    }

    /// Sets the number of bytes that the value of a key occupies in addition to its own size.
    pub(super) fn weigh(&mut self, key: u64, bytes: usize) {
        let Some(slot) = self.slots.peek_mut(&key) else { return };
        self.bytes = self.bytes - slot.bytes + bytes;
        slot.bytes = bytes;
        while self.bytes > self.most_bytes && self.drop_oldest() {}
    }

    pub(super) fn remove(&mut self, key: u64) {
        if let Some(slot) = self.slots.pop(&key) {
            self.bytes -= slot.bytes;
        }
    }

    /// Drops the least recently used value of the map. Returns false if the map is empty.
    fn drop_oldest(&mut self) -> bool {
        let Some((_, slot)) = self.slots.pop_lru() else { return false };
        self.bytes -= slot.bytes;
        true
    }
}

/// Random seed for a hash map. The keys are hashes of clients' inputs: without a seed, clients could choose keys that
/// collide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeySeed(u64);

impl KeySeed {
    pub(crate) fn new() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for KeySeed {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

/// Hasher for a map whose keys are hashes already.
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, key: u64) {
        let product = u128::from(key ^ self.0) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::super::turn::Name;
    use super::*;

    fn identity(key: u64, parent: Option<u64>) -> Identity {
        Identity { name: Name { key, parent }, source: Source::OwnHeader }
    }

    fn begin(memory: &mut Memory, key: u64, parent: Option<u64>, hints: Hints, now: f64) -> Turn {
        let turn = memory.look(identity(key, parent), hints, now);
        memory.begin(&turn);
        turn
    }

    #[test]
    fn the_reason_for_an_end_tells_which_pause_comes() {
        let mut memory = Memory::new(ShownUnder::new([0; 32]));
        let first = begin(&mut memory, 1, None, Hints::default(), 0.0);
        assert_eq!((first.kind, first.pause, first.number), (Kind::Start, None, 0));
        memory.end(&first, 10, Some(Stop::Tool), 5.0);
        let second = begin(&mut memory, 1, None, Hints::default(), 7.5);
        assert_eq!((second.kind, second.pause, second.number), (Kind::Tool, Some(2.5), 1));
        assert_eq!((&second.after[..], second.delay, second.stop), (&[10][..], Some(2.5), Some(Stop::Tool)));
        memory.end(&second, 11, Some(Stop::End), 9.0);
        let third = begin(&mut memory, 1, None, Hints::default(), 100.0);
        assert_eq!((third.kind, third.pause), (Kind::User, Some(91.0)));
        // Its answer never comes: the pause still counts from the last one that did.
        let fourth = begin(&mut memory, 1, None, Hints::default(), 109.0);
        assert_eq!((fourth.kind, fourth.pause, &fourth.after[..]), (Kind::User, Some(100.0), &[11][..]));
        let compaction = Hints { class: Some(Class::Compaction), ..Hints::default() };
        assert_eq!(begin(&mut memory, 1, None, compaction, 110.0).kind, Kind::Compaction);
    }

    #[test]
    fn agents_wait_for_each_other() {
        let mut memory = Memory::new(ShownUnder::new([0; 32]));
        let spawns = begin(&mut memory, 1, None, Hints::default(), 0.0);
        memory.end(&spawns, 1, Some(Stop::Tool), 1.0);
        let children = [2, 3].map(|key| begin(&mut memory, key, Some(1), Hints::default(), 1.5));
        for child in &children {
            assert_eq!((child.kind, &child.after[..], child.delay), (Kind::Subagent, &[1][..], Some(0.5)));
        }
        memory.end(&children[0], 2, Some(Stop::Tool), 2.0);
        memory.end(&children[1], 3, Some(Stop::End), 3.0);
        let again = begin(&mut memory, 2, Some(1), Hints::default(), 4.0);
        assert_eq!((again.kind, &again.after[..]), (Kind::Tool, &[2][..]));
        memory.end(&again, 4, Some(Stop::End), 5.0);
        let joins = begin(&mut memory, 1, None, Hints::default(), 5.25);
        assert_eq!((&joins.after[..], joins.delay, joins.pause), (&[1, 3, 4][..], Some(0.25), Some(4.25)));
        memory.end(&joins, 5, Some(Stop::Tool), 6.0);
        assert_eq!(begin(&mut memory, 1, None, Hints::default(), 7.0).after, [5]);
    }

    #[test]
    fn a_session_that_is_over_begins_anew() {
        let mut memory = Memory::new(ShownUnder::new([0; 32]));
        let last = begin(&mut memory, 1, None, Hints { is_last: true, ..Hints::default() }, 0.0);
        memory.end(&last, 1, Some(Stop::End), 1.0);
        assert_eq!((memory.len(), memory.look(identity(1, None), Hints::default(), 2.0).kind), (0, Kind::Start));
    }

    #[test]
    fn what_was_not_used_for_the_longest_goes() {
        let mut lru: Lru<u32> = Lru::new(3, 1000);
        for key in [1, 2, 3] {
            *lru.used(key) = key as u32;
        }
        *lru.used(1) += 10;
        lru.used(4);
        assert_eq!([1, 2, 3, 4].map(|key| lru.get(key).copied()), [Some(11), None, Some(3), Some(0)]);
        lru.weigh(3, 600);
        lru.weigh(4, 600);
        assert_eq!((lru.get(3), lru.len()), (None, 2));
        lru.remove(1);
        assert_eq!(lru.len(), 1);
    }

    #[test]
    fn one_key_used_again_and_again_takes_no_room() {
        let mut lru: Lru<u32> = Lru::new(3, 1000);
        lru.used(7);
        for _ in 0..10_000 {
            *lru.used(1) += 1;
        }
        assert!(lru.get(7).is_some());
        for key in 100..103 {
            lru.used(key);
        }
        assert_eq!((lru.len(), lru.get(1)), (3, None));
    }
}
