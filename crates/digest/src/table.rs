//! Table of marks and their sets of sites: a hash table of 12 bytes an entry that grows by a quarter.
//!
//! There are as many marks as different blocks in the fleet divided by the grain, and their memory is the main cost
//! of an index of sites. Tables that double are nearly half empty for half of the time; this one is between 64 % and 80
//! % full while it grows. It is divided into shards, so that growing moves one part at a time.

const SHARDS: usize = 64;
/// Value of an empty entry.
const EMPTY: u32 = u32::MAX;
const SMALLEST: usize = 16;

/// Entry: a mark in two halves, so that there is no gap, and its set.
#[derive(Clone, Copy)]
struct Entry {
    mark: [u32; 2],
    set: u32,
}

impl Entry {
    const NONE: Self = Self { mark: [0; 2], set: EMPTY };

    fn mark(self) -> u64 {
        u64::from(self.mark[0]) | u64::from(self.mark[1]) << 32
    }

    fn of(mark: u64, set: u32) -> Self {
        Self { mark: [mark as u32, (mark >> 32) as u32], set }
    }
}

/// Mixes the bits of a word.
pub(crate) fn mix(word: u64) -> u64 {
    let product = u128::from(word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
    (product >> 64) as u64 ^ product as u64
}

/// Hash table from marks to numbers of sets.
pub(crate) struct Table {
    shards: Vec<Shard>,
    /// Secret key of the hash, so that sites cannot choose colliding marks.
    key: u64,
}

struct Shard {
    entries: Box<[Entry]>,
    len: usize,
}

impl Table {
    pub(crate) fn new(key: u64) -> Self {
        let shard = || Shard { entries: Box::new([]), len: 0 };
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), key }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        let entries: usize = self.shards.iter().map(|shard| shard.entries.len()).sum();
        entries * size_of::<Entry>() + SHARDS * size_of::<Shard>()
    }

    pub(crate) fn get(&self, mark: u64) -> Option<u32> {
        let hash = mix(mark ^ self.key);
        self.shards[hash as usize % SHARDS].find(hash, mark).map(|(_, set)| set)
    }

    /// Replaces the set of a mark with the result of `change`, which gets the present set.
    pub(crate) fn change(&mut self, mark: u64, change: impl FnOnce(Option<u32>) -> Option<u32>) {
        let hash = mix(mark ^ self.key);
        let shard = &mut self.shards[hash as usize % SHARDS];
        let found = shard.find(hash, mark);
        match (found, change(found.map(|(_, set)| set))) {
            (Some((at, _)), Some(set)) => shard.entries[at].set = set,
            (None, Some(set)) => shard.insert(hash, mark, set, self.key),
            (Some((at, _)), None) => shard.remove(at, self.key),
            (None, None) => {}
        }
    }

    /// All marks with their sets.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let entries = self.shards.iter().flat_map(|shard| &shard.entries);
        entries.filter(|entry| entry.set != EMPTY).map(|entry| (entry.mark(), entry.set))
    }
}

impl Shard {
    /// Home place of an entry. The lowest bits of the hash choose the shard, the highest the place.
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.entries.len() as u128) >> 64) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    fn find(&self, hash: u64, mark: u64) -> Option<(usize, u32)> {
        if self.len == 0 {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            let entry = self.entries[at];
            if entry.set == EMPTY {
                return None;
            }
            if entry.mark() == mark {
                return Some((at, entry.set));
            }
            at = self.next(at);
        }
    }

    fn insert(&mut self, hash: u64, mark: u64, set: u32, key: u64) {
        if (self.len + 1) * 5 > self.entries.len() * 4 {
            self.resize((self.entries.len() * 5 / 4).max(SMALLEST), key);
        }
        self.put(hash, Entry::of(mark, set));
        self.len += 1;
    }

    fn put(&mut self, hash: u64, entry: Entry) {
        let mut at = self.home(hash);
        while self.entries[at].set != EMPTY {
            at = self.next(at);
        }
        self.entries[at] = entry;
    }

    fn resize(&mut self, room: usize, key: u64) {
        let old = std::mem::replace(&mut self.entries, vec![Entry::NONE; room].into());
        for entry in old.into_iter().filter(|entry| entry.set != EMPTY) {
            self.put(mix(entry.mark() ^ key), entry);
        }
    }

    /// Removes an entry. Later entries whose home is before the gap move up, so that no search ends too early.
    fn remove(&mut self, at: usize, key: u64) {
        let mut hole = at;
        let mut at = self.next(at);
        while self.entries[at].set != EMPTY {
            let home = self.home(mix(self.entries[at].mark() ^ key));
            // Whether the hole lies between the entry's first place and here, possibly around the end.
            let is_between = if home <= at { home <= hole && hole < at } else { home <= hole || hole < at };
            if is_between {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.entries[hole] = Entry::NONE;
        self.len -= 1;
        if self.entries.len() > SMALLEST && self.len * 2 < self.entries.len() {
            self.resize((self.len * 3 / 2).max(SMALLEST), key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use kvatlas_testing::Random;

    use super::*;

    #[test]
    fn it_is_a_map() {
        for seed in 0..20 {
            let mut random = Random(seed);
            let mut table = Table::new(seed);
            let mut model = HashMap::new();
            for step in 0..20_000_u32 {
                // Grows, shrinks, and grows again.
                let range = if step / 5_000 % 2 == 0 { 4_000 } else { 300 };
                let mark = random.below(range);
                if step / 5_000 % 2 == 0 || random.below(2) == 0 {
                    table.change(mark, |was| {
                        assert_eq!(was, model.get(&mark).copied());
                        Some(step)
                    });
                    model.insert(mark, step);
                } else {
                    let mark = random.below(4_000);
                    table.change(mark, |was| {
                        assert_eq!(was, model.remove(&mark));
                        None
                    });
                }
            }
            assert_eq!(table.len(), model.len());
            assert_eq!(table.iter().collect::<HashMap<_, _>>(), model);
            (0..4_000).for_each(|mark| assert_eq!(table.get(mark), model.get(&mark).copied()));
            let entries: Vec<_> = model.keys().copied().collect();
            entries.into_iter().for_each(|mark| table.change(mark, |_| None));
            assert_eq!((table.len(), table.get(1)), (0, None));
            assert!(table.bytes() < 64 * (SMALLEST * 12 + 64), "{}", table.bytes());
        }
    }

    #[test]
    fn an_entry_takes_twelve_bytes_and_a_little_room() {
        let mut table = Table::new(3);
        for mark in 0..300_000 {
            table.change(mix(mark), |_| Some(1));
        }
        let each = table.bytes() as f64 / table.len() as f64;
        assert!((15.0..=19.5).contains(&each), "{each}");
    }
}
