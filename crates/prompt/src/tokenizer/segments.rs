//! A memory of the tokens of pieces of text, in a bounded number of bytes.
//!
//! A piece's tokens depend on its text only (see [`super::cuts`]), so a piece is found by what it is and not by where it
//! stands: a conversation's next turn finds all of its history, another conversation the system prompt that it shares,
//! and an edit in the middle costs the one message that was edited. Texts are kept and compared, so two with the same
//! hash are never taken for each other.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Parts with a lock each.
const SHARDS: usize = 16;
/// Bytes that an entry takes beside its text and tokens: its place in a table and two allocations.
const ENTRY: usize = 96;
/// Bytes of the memory for each key of a text that was asked for, and the most of these keys.
const BYTES_A_KEY: usize = 1024;
const MOST_KEYS: usize = 1 << 18;

/// The memory.
#[derive(Debug)]
pub(super) struct Segments {
    shards: Vec<Mutex<Shard>>,
    /// The most bytes of one generation of one shard.
    most: usize,
    /// Keys of texts that were asked for, each in its place until another takes it.
    asked: Box<[AtomicU64]>,
    /// Clients choose the texts: without it they could choose texts with one hash.
    seed: u64,
}

/// A key by which a text is found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(u64);

/// Two generations: when the young one is full, it becomes the old one, and what was not asked for since is forgotten.
#[derive(Debug, Default)]
struct Shard {
    young: HashMap<u64, Entry>,
    old: HashMap<u64, Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    text: Box<str>,
    ids: Box<[u32]>,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY + self.text.len() + size_of_val(&*self.ids)
    }
}

impl Segments {
    /// Makes an empty memory that takes at most so many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let asked = (0..(bytes / BYTES_A_KEY).clamp(1, MOST_KEYS)).map(|_| AtomicU64::new(0)).collect();
        Self { shards, most: bytes / SHARDS / 2, asked, seed: RandomState::new().hash_one(0) }
    }

    /// The key of a text.
    pub(super) fn key(&self, text: &str) -> Key {
        Key(xxh3_64_with_seed(text.as_bytes(), self.seed))
    }

    /// Notes that a text was asked for. Returns whether it was before, as far as that is known.
    pub(super) fn is_asked_again(&self, Key(key): Key) -> bool {
        let place = &self.asked[(key >> 8) as usize % self.asked.len()];
        place.swap(key, Relaxed) == key
    }

    /// Append the tokens of a text, if they are remembered.
    pub(super) fn extend(&self, Key(key): Key, text: &str, ids: &mut Vec<u32>) -> bool {
        let mut shard = self.shard(key);
        if let Some(entry) = shard.young.get(&key).filter(|entry| *entry.text == *text) {
            ids.extend_from_slice(&entry.ids);
            return true;
        }
        if shard.old.get(&key).is_some_and(|entry| *entry.text == *text)
            && let Some(entry) = shard.old.remove(&key)
        {
            ids.extend_from_slice(&entry.ids);
            shard.put(key, entry, self.most);
            return true;
        }
        false
    }

    /// Remember the tokens of a text, unless they alone would take a good part of the room.
    pub(super) fn insert(&self, Key(key): Key, text: &str, ids: &[u32]) {
        if ENTRY + text.len() + size_of_val(ids) <= self.most / 2 {
            let entry = Entry { text: text.into(), ids: ids.into() };
            self.shard(key).put(key, entry, self.most);
        }
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        // A panic while it was held cannot have left it half changed in a way that matters: texts are compared.
        self.shards[key as usize % SHARDS].lock()
    }

    /// Bytes that are taken.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let of = |entries: &HashMap<u64, Entry>| entries.values().map(Entry::bytes).sum::<usize>();
        self.shards.iter().map(|shard| shard.lock()).map(|shard| of(&shard.young) + of(&shard.old)).sum()
    }
}

impl Shard {
    fn put(&mut self, key: u64, entry: Entry, most: usize) {
        if self.bytes + entry.bytes() > most {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += entry.bytes();
        if let Some(replaced) = self.young.insert(key, entry) {
            self.bytes -= replaced.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(segments: &Segments, text: &str, ids: &[u32]) {
        segments.insert(segments.key(text), text, ids);
    }

    fn extend(segments: &Segments, text: &str, ids: &mut Vec<u32>) -> bool {
        segments.extend(segments.key(text), text, ids)
    }

    #[test]
    fn what_is_used_stays_and_the_room_is_bounded() {
        let segments = Segments::new(1 << 20);
        let mut ids = Vec::new();
        insert(&segments, "kept", &[1, 2, 3]);
        for at in 0..20_000_u32 {
            insert(&segments, &format!("text {at}"), &[at; 20]);
            assert!(at % 100 != 0 || extend(&segments, "kept", &mut ids), "{at}");
        }
        assert!(segments.bytes() <= 1 << 20);
        assert!(!extend(&segments, "text 0", &mut ids));
        assert!(extend(&segments, "text 19999", &mut ids));
        assert_eq!(ids[..3], [1, 2, 3]);
        assert_eq!(ids[ids.len() - 20..], [19_999; 20]);
    }

    #[test]
    fn nothing_is_remembered_without_room() {
        let segments = Segments::new(0);
        insert(&segments, "a", &[1]);
        assert!(!extend(&segments, "a", &mut Vec::new()));
    }

    #[test]
    fn texts_that_are_asked_for_again() {
        let segments = Segments::new(1 << 20);
        let asked = |text: &str| segments.is_asked_again(segments.key(text));
        assert_eq!([asked("a"), asked("a"), asked("b"), asked("a")], [false, true, false, true]);
        (0..100_000).for_each(|at| {
            asked(&format!("text {at}"));
        });
        assert!(!asked("a"), "others have come since");
    }
}
