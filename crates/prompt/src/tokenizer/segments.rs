//! Cache of the tokens of pieces of text, bounded in bytes.
//!
//! A piece's tokens depend on its text only (see [`super::cuts`]), so a piece is found by its text and not by its
//! position. The next request of a conversation finds its whole history, another conversation the system prompt that
//! both share, and an edit in the middle costs only the edited message. Texts are stored and compared, so two texts of
//! equal hash are never confused.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Number of shards of the token cache, each with its own lock.
const SHARDS: usize = 16;
/// Memory counted for a cache entry besides its text and tokens, in bytes: a slot in a table and two allocations.
const ENTRY: usize = 96;
/// Bytes of the cache's capacity for each slot that records the hash of a requested text.
const BYTES_A_KEY: usize = 1024;
/// Maximum number of slots that record hashes of requested texts.
const MOST_KEYS: usize = 1 << 18;

/// Cache of the tokens of texts.
#[derive(Debug)]
pub(super) struct Segments {
    shards: Vec<Mutex<Shard>>,
    /// Capacity, in bytes, of one of the two generations (old and young entries) of one shard of the cache.
    most: usize,
    /// Hashes of requested texts; each stays in its slot until another hash overwrites it.
    asked: Box<[AtomicU64]>,
    /// Random seed of the hashes. Clients choose the texts, and with a known seed could choose texts of equal hash.
    seed: u64,
}

/// Hash by which a text is found in the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(u64);

/// Shard of the cache with two generations of entries. When the young generation is full it becomes the old one, and
/// entries of the former old generation that were not requested since are dropped.
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
    /// Creates an empty cache of at most `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let asked = (0..(bytes / BYTES_A_KEY).clamp(1, MOST_KEYS)).map(|_| AtomicU64::new(0)).collect();
        Self { shards, most: bytes / SHARDS / 2, asked, seed: RandomState::new().hash_one(0) }
    }

    /// Computes the hash by which a text is found in the cache.
    pub(super) fn key(&self, text: &str) -> Key {
        Key(xxh3_64_with_seed(text.as_bytes(), self.seed))
    }

    /// Records a request for a text. Returns true if an earlier request for the text is still recorded.
    pub(super) fn is_asked_again(&self, Key(key): Key) -> bool {
        let place = &self.asked[(key >> 8) as usize % self.asked.len()];
        place.swap(key, Relaxed) == key
    }

    /// Appends the cached tokens of a text to `ids`. Returns false if the text is not in the cache.
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

    /// Stores the tokens of a text in the cache, unless they would occupy a large part of its capacity.
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

    /// Memory used by the cache of tokens, in bytes.
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
