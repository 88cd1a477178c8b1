//! Detection of sessions that no cache can help: the beginnings of their prompts change with every turn, through a
//! time, a counter or a changing order.
//!
//! The recent prompts of a session are stored as the hashes of their blocks. Several prompts are stored, as an agent's
//! side requests (a title, a summary) have their own prompts. A turn that shares next to nothing with any of them
//! cannot use a cache. A single turn of this kind is a fresh start; several in a row are reported as a habit of the
//! session.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};

use super::memory::Lru;
use super::turn::ShownUnder;

/// Maximum number of sessions whose recent prompts are stored.
const MOST: usize = 1 << 14;
/// Memory for the hashes of all sessions' recent prompts, in bytes.
const MOST_BYTES: usize = 64 << 20;

/// Number of prompts stored for each session.
const KEPT: usize = 3;

/// Number of blocks below which a prompt is ignored, as too few blocks could be cached.
const SHORTEST: usize = 8;

/// Threshold for two prompts with too little in common to use a cache: their common blocks are at most one in this
/// number of the shorter prompt's blocks.
const FEW: usize = 8;

/// Number of successive turns (requests) with changed beginnings of their prompts after which a session is reported as
/// one that no cache can help.
const IN_A_ROW: u32 = 3;

/// Time after a session's last prompt with a changed beginning for which the session is reported, in seconds.
const TOLD: f64 = 600.0;

/// Maximum number of sessions with changing beginnings of prompts that are reported at a time.
const MOST_TOLD: usize = 1024;

/// Recent prompts of sessions, and the sessions whose prompts begin differently with every turn, so that no cache can
/// help.
pub(super) struct Habits {
    sessions: Lru<Prompts>,
    /// Number of turns (requests) whose prompts began differently, in sessions whose prompts begin differently with
    /// every turn.
    turns: u64,
    told: VecDeque<Habit>,
}

#[derive(Debug, Default)]
struct Prompts {
    last: VecDeque<Arc<[u64]>>,
    /// Number of successive turns (requests) of the session whose prompts shared next to nothing with its earlier
    /// turns.
    lost: u32,
}

/// Report on a session whose prompts begin differently with every turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Habit {
    pub(super) session: u64,
    at: f64,
    /// Position of the first token, rounded down to a block, at which the session's last prompt differs from earlier
    /// ones.
    pub(super) differs_at: u32,
    pub(super) tokens: u32,
}

impl Habits {
    pub(super) fn new() -> Self {
        Self { sessions: Lru::new(MOST, MOST_BYTES), turns: 0, told: VecDeque::new() }
    }

    /// Drops the stored prompts of a session whose next prompt will begin differently for a legitimate reason, such as
    /// a compaction.
    pub(super) fn forget(&mut self, session: u64) {
        self.sessions.remove(session);
    }

    /// Compares a prompt of `tokens` tokens in blocks of `block_size` tokens with the session's recent prompts. Returns
    /// a report when the session is first found to begin its prompts differently with every turn, else None. `now`:
    /// time in seconds.
    pub(super) fn look(
        &mut self,
        session: u64,
        hashes: &Arc<[u64]>,
        tokens: u32,
        block_size: u32,
        now: f64,
    ) -> Option<Habit> {
        if hashes.len() < SHORTEST {
            return None;
        }
        let prompts = self.sessions.used(session);
        let common = |other: &Arc<[u64]>| other.iter().zip(hashes.iter()).take_while(|(a, b)| a == b).count();
        let nearest = prompts.last.iter().map(common).enumerate().max_by_key(|(_, common)| *common);
        let longest = prompts.last.iter().map(|other| other.len()).max();
        let (at, shared) = nearest.unzip();
        let shared = shared.unwrap_or(0);
        let is_lost = longest.is_some_and(|longest| shared * FEW <= longest.min(hashes.len()));
        prompts.lost = if is_lost { prompts.lost.saturating_add(1) } else { 0 };
        // What goes on takes the place of what it goes on from.
        if let Some(at) = at.filter(|_| !is_lost || prompts.last.len() >= KEPT) {
            prompts.last.remove(if is_lost { 0 } else { at });
        }
        prompts.last.push_back(hashes.clone());
        let lost = prompts.lost;
        let bytes = prompts.last.iter().map(|other| size_of_val(&**other)).sum();
        self.sessions.weigh(session, bytes);
        if lost < IN_A_ROW {
            return None;
        }
        self.turns += 1;
        let differs_at = u32::try_from(shared).unwrap_or(u32::MAX).saturating_mul(block_size);
        let habit = Habit { session, at: now, differs_at, tokens };
        self.told.retain(|other| other.session != session);
        self.told.push_back(habit);
        if self.told.len() > MOST_TOLD {
            self.told.pop_front();
        }
        (lost == IN_A_ROW).then_some(habit)
    }

    /// Returns the number of turns (requests) whose prompts began differently, in sessions whose prompts begin
    /// differently with every turn.
    pub(super) fn turns(&self) -> u64 {
        self.turns
    }

    /// Returns the sessions whose prompts lately began differently with every turn as JSON, for a web page; None if
    /// there are none. `now`: time in seconds.
    pub(super) fn to_json(&self, now: f64, shown_under: &ShownUnder) -> Option<Value> {
        let last = self.told.back().filter(|habit| habit.at + TOLD >= now)?;
        Some(json!({
            "sessions": self.count(now),
            "session": shown_under.hex(last.session),
            "differs_at_token": last.differs_at,
            "tokens": last.tokens,
        }))
    }

    /// Number of sessions whose prompts began differently with every turn in the last ten minutes. `now`: time in
    /// seconds.
    pub(super) fn count(&self, now: f64) -> usize {
        self.told.iter().filter(|habit| habit.at + TOLD >= now).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(head: u64, blocks: u64) -> Arc<[u64]> {
        std::iter::once(head).chain(100..100 + blocks - 1).collect()
    }

    fn look(habits: &mut Habits, prompt: &Arc<[u64]>, now: f64) -> Option<Habit> {
        habits.look(1, prompt, prompt.len() as u32 * 16, 16, now)
    }

    #[test]
    fn prompts_that_begin_differently_each_time() {
        let mut habits = Habits::new();
        let found: Vec<_> = (0..6).map(|turn| look(&mut habits, &prompt(turn, 20 + turn), turn as f64)).collect();
        let places: Vec<_> = found.iter().map(Option::is_some).collect();
        assert_eq!(places, [false, false, false, true, false, false]);
        assert_eq!(found[3], Some(Habit { session: 1, at: 3.0, differs_at: 0, tokens: 23 * 16 }));
        let shown_under = ShownUnder::new([0; 32]);
        assert_eq!((habits.turns(), habits.count(5.0), habits.count(5.0 + TOLD + 1.0)), (3, 1, 0));
        assert_eq!(habits.to_json(6.0, &shown_under).expect("one")["sessions"], 1);
        assert_eq!(habits.to_json(6.0 + TOLD, &shown_under), None);
    }

    #[test]
    fn the_place_of_the_difference_is_told() {
        let mut habits = Habits::new();
        let prompt = |turn: u64| [vec![1, 2], vec![turn + 1000], (100..140).collect()].concat().into();
        let found = (0..4).filter_map(|turn| look(&mut habits, &prompt(turn), 0.0)).next().expect("a habit");
        assert_eq!((found.differs_at, found.tokens), (32, 43 * 16));
    }

    #[test]
    fn chats_and_side_requests_are_fine() {
        let mut habits = Habits::new();
        for turn in 0..30 {
            assert_eq!(look(&mut habits, &prompt(1, 20 + turn), 0.0), None);
            // A title of the chat, with a prompt of its own, and short requests.
            assert_eq!(look(&mut habits, &prompt(1000 + turn % 2, 9), 0.0), None);
            assert_eq!(look(&mut habits, &prompt(5000 + turn, 3), 0.0), None);
        }
        assert_eq!(habits.turns(), 0);
        // After its context was summed up, a chat begins anew.
        for turn in 0..10 {
            habits.forget(1);
            assert_eq!(look(&mut habits, &prompt(turn, 30), 0.0), None);
        }
    }
}
