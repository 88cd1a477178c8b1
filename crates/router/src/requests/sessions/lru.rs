//! A map bounded in number and size, which drops the least recently used values.

use std::hash::{BuildHasher, Hasher, RandomState};

use lru::LruCache;

/// Values by key. Keys are hashes.
#[derive(Debug)]
pub(super) struct Lru<T> {
    slots: LruCache<u64, Slot<T>, Seed>,
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
        Self { slots: LruCache::unbounded_with_hasher(Seed::new()), most, bytes: 0, most_bytes }
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

    /// Returns the value of a key, inserted if missing, and marks it as used.
    pub(super) fn used(&mut self, key: u64) -> &mut T {
        while self.slots.len() >= self.most && !self.slots.contains(&key) && self.drop_oldest() {}
        &mut self.slots.get_or_insert_mut(key, Slot::default).value
    }

    /// Says how many bytes a value takes beside its own size.
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

    /// Drops the least recently used value; false if the map is empty.
    fn drop_oldest(&mut self) -> bool {
        let Some((_, slot)) = self.slots.pop_lru() else { return false };
        self.bytes -= slot.bytes;
        true
    }
}

/// The seed of the hash of keys. Keys are hashes of what clients say: without a seed, clients could choose keys that
/// all fall into one place.
#[derive(Debug, Clone, Copy)]
struct Seed(u64);

impl Seed {
    fn new() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Seed {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher(self.0)
    }
}

struct IdHasher(u64);

impl Hasher for IdHasher {
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
    use super::*;

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
