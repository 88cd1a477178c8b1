//! Memory of the tokens of pieces of text, bounded in bytes.
//!
//! A piece's tokens depend on its text only (see [`super::cuts`]), so a piece is found by its text and not by its
//! position: a conversation's next turn finds all of its history, another conversation the system prompt it shares, and
//! an edit in the middle costs only the edited message. Texts are stored and compared, so two texts of equal hash are
//! never confused.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Number of shards of the memory, each with its own lock.
const SHARDS: usize = 16;
/// Number of bytes counted for an entry besides its text and tokens: its slot in a table and two allocations.
const ENTRY: usize = 96;
/// Bytes of the memory's size per recorded key of a requested text.
const BYTES_A_KEY: usize = 1024;
/// Maximum number of recorded keys of requested texts.
const MOST_KEYS: usize = 1 << 18;

/// Memory of the tokens of texts.
#[derive(Debug)]
pub(super) struct Segments {
    shards: Vec<Mutex<Shard>>,
    /// Capacity of one generation of one shard of the memory, in bytes.
    most: usize,
    /// Keys of requested texts, each in its slot until another key overwrites it.
    asked: Box<[AtomicU64]>,
    /// Random seed: clients choose the texts, and could otherwise choose texts of equal hash.
    seed: u64,
}

/// Hash by which a text is found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(u64);

/// Shard with two generations of entries: when the young one is full it becomes the old one, and entries of the old one
/// that were not requested since are dropped.
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
    /// Creates an empty memory of at most `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let asked = (0..(bytes / BYTES_A_KEY).clamp(1, MOST_KEYS)).map(|_| AtomicU64::new(0)).collect();
        Self { shards, most: bytes / SHARDS / 2, asked, seed: RandomState::new().hash_one(0) }
    }

    /// Computes the key of a text.
    pub(super) fn key(&self, text: &str) -> Key {
        Key(xxh3_64_with_seed(text.as_bytes(), self.seed))
    }

    /// Records a request for a text. True if the text was requested before, as far as recorded.
    pub(super) fn is_asked_again(&self, Key(key): Key) -> bool {
        let place = &self.asked[(key >> 8) as usize % self.asked.len()];
        place.swap(key, Relaxed) == key
    }

    /// Appends the tokens of a text to `ids`, if remembered. False if they are not.
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

    /// Remembers the tokens of a text, unless they would take a large part of the capacity.
    pub(super) fn insert(&self, Key(key): Key, text: &str, ids: &[u32]) {
        if ENTRY + text.len() + size_of_val(ids) <= self.most / 2 {
            let entry = Entry { text: text.into(), ids: ids.into() };
            self.shard(key).put(key, entry, self.most);
        }
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        // A panic under the lock leaves no harmful half-change: texts are compared.
        self.shards[key as usize % SHARDS].lock()
    }

    /// Number of bytes in use.
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
