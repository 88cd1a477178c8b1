//! Table from marks (prefix hashes) to the sets of sites that have them: a hash table with 12 bytes per entry. The
//! table stores a set as a 32-bit number: the number of the only site, or the number of a set of several sites, which
//! is stored once for all marks.
//!
//! There may be as many marks as the fleet has different blocks divided by the grain, and they need most of the memory
//! of an index of sites. Hash tables that double their size are nearly half empty for half of the time; this one grows
//! by a quarter, and is between 64 % and 80 % full while it grows. It is divided into shards, so that a growth step
//! moves only a part of it.

use std::sync::Arc;

use hashbrown::HashMap;

const SHARDS: usize = 64;
/// Number that denotes an empty entry of the hash table, in place of the number of a set of sites.
const EMPTY: u32 = u32::MAX;
/// Minimum capacity of a shard (part of the hash table) that is not empty, in entries.
const SMALLEST: usize = 16;

/// Entry of the hash table of marks: a mark (prefix hash) in two halves, which avoids padding, and the number of its
/// set of sites.
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

/// Mixes the bits of a word, for use as a hash.
pub(crate) fn mix(word: u64) -> u64 {
    let product = u128::from(word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
    (product >> 64) as u64 ^ product as u64
}

/// Hash table from marks (prefix hashes) to numbers of sets of sites.
pub(crate) struct Table {
    shards: Vec<Shard>,
    /// Secret key of the table's hash function, so that no site can choose marks (prefix hashes) that collide.
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

    /// Replaces the set of sites of a mark (prefix hash). `change` receives the number of the present set and returns
    /// the number of the new one; `None` stands for no set.
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

    /// All marks (prefix hashes) in the table, each with the number of its set of sites.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let entries = self.shards.iter().flat_map(|shard| &shard.entries);
        entries.filter(|entry| entry.set != EMPTY).map(|entry| (entry.mark(), entry.set))
    }
}

impl Shard {
    /// Preferred position of an entry in its shard (part of the hash table). The lowest bits of the hash choose the
    /// shard, the highest the position.
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

    /// Removes the entry at index `at` from this shard of the hash table. Later entries whose preferred position is
    /// before the gap are moved up, so that no search ends too early.
    fn remove(&mut self, at: usize, key: u64) {
        let mut hole = at;
        let mut at = self.next(at);
        while self.entries[at].set != EMPTY {
            let home = self.home(mix(self.entries[at].mark() ^ key));
            // Whether the hole is on the way from home to here, around the end if need be.
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

/// Maximum number of sites. A set's number below this limit stands for the set with only the site of that number.
pub const MAX_SITES: usize = 1 << 16;
const FIRST: u32 = MAX_SITES as u32;

/// Set of sites as a bit mask: one bit for each site's number.
pub(crate) type Bits = [u64];

struct SharedSet {
    bits: Arc<Bits>,
    /// Number of marks (prefix hashes) that use this set of sites.
    marks: u32,
}

/// Sets of two or more sites, each stored once for all marks (prefix hashes) that use it.
#[derive(Default)]
pub(crate) struct Sets {
    kept: Vec<Option<SharedSet>>,
    free: Vec<u32>,
    numbers: HashMap<Arc<Bits>, u32>,
    /// Number of 64-bit words in the bit masks of all stored sets of sites.
    words: usize,
}

impl Sets {
    /// Calls `f` with the number of each site in a set.
    pub(crate) fn each(&self, set: u32, mut f: impl FnMut(usize)) {
        match self.bits(set) {
            None => f(set as usize),
            Some(bits) => ones(bits).for_each(f),
        }
    }

    pub(crate) fn has(&self, set: u32, site: usize) -> bool {
        match self.bits(set) {
            None => set as usize == site,
            Some(bits) => bits.get(site / 64).is_some_and(|word| word >> (site % 64) & 1 == 1),
        }
    }

    fn bits(&self, set: u32) -> Option<&Bits> {
        let kept = self.kept.get(set.checked_sub(FIRST)? as usize)?.as_ref()?;
        Some(&kept.bits)
    }

    /// Adds a site to the set of sites of one mark (prefix hash). `set`: number of the mark's present set. Returns the
    /// number of the mark's new set.
    pub(crate) fn with(&mut self, set: Option<u32>, site: usize) -> u32 {
        let Some(set) = set else { return site as u32 };
        if self.has(set, site) {
            return set;
        }
        let mut bits = self.copy(set, site / 64 + 1);
        bits[site / 64] |= 1 << (site % 64);
        self.release(set);
        self.number(bits)
    }

    /// Removes a site from the set of sites of one mark (prefix hash). `set`: number of the mark's present set. Returns
    /// the number of the mark's new set; `None` if no site is left.
    pub(crate) fn without(&mut self, set: u32, site: usize) -> Option<u32> {
        if !self.has(set, site) {
            return Some(set);
        }
        if set < FIRST {
            return None;
        }
        let mut bits = self.copy(set, 0);
        bits[site / 64] &= !(1 << (site % 64));
        self.release(set);
        // A kept set has two sites at least.
        let (one, other) = {
            let mut sites = ones(&bits);
            (sites.next(), sites.next())
        };
        match (one, other) {
            (Some(one), None) => Some(one as u32),
            _ => Some(self.number(bits)),
        }
    }

    fn copy(&self, set: u32, words: usize) -> Vec<u64> {
        let mut bits = self.bits(set).map(<[u64]>::to_vec).unwrap_or_default();
        let least = if set < FIRST { set as usize / 64 + 1 } else { 0 };
        bits.resize(bits.len().max(words).max(least), 0);
        if set < FIRST {
            bits[set as usize / 64] |= 1 << (set % 64);
        }
        bits
    }

    fn number(&mut self, mut bits: Vec<u64>) -> u32 {
        while bits.last() == Some(&0) {
            bits.pop();
        }
        if let Some(&number) = self.numbers.get(&bits[..]) {
            if let Some(kept) = &mut self.kept[(number - FIRST) as usize] {
                kept.marks += 1;
            }
            return number;
        }
        let bits: Arc<Bits> = bits.into();
        self.words += bits.len();
        let kept = Some(SharedSet { bits: bits.clone(), marks: 1 });
        let number = match self.free.pop() {
            Some(number) => {
                self.kept[(number - FIRST) as usize] = kept;
                number
            }
            None => {
                self.kept.push(kept);
                FIRST + (self.kept.len() - 1) as u32
            }
        };
        self.numbers.insert(bits, number);
        number
    }

    fn release(&mut self, set: u32) {
        let Some(at) = set.checked_sub(FIRST) else { return };
        let slot = &mut self.kept[at as usize];
        let Some(kept) = slot else { return };
        kept.marks -= 1;
        if kept.marks == 0 {
            self.words -= kept.bits.len();
            self.numbers.remove(&kept.bits);
            *slot = None;
            self.free.push(set);
        }
    }

    /// Number of stored sets of sites, each of two or more sites.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        // Counters before the words of each.
        self.kept.capacity() * size_of::<Option<SharedSet>>()
            + self.free.capacity() * 4
            + self.numbers.capacity() * (size_of::<(Arc<Bits>, u32)>() + 1)
            + self.numbers.len() * 16
            + self.words * 8
    }
}

/// Indexes of the bits that are set in a bit mask, in ascending order: the numbers of the sites in a set.
pub(crate) fn ones(bits: &Bits) -> impl Iterator<Item = usize> {
    bits.iter().enumerate().flat_map(|(at, &word)| {
        let mut word = word;
        std::iter::from_fn(move || {
            let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
            word &= word - 1;
            Some(at * 64 + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

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

    #[test]
    fn sets_are_sets_and_are_kept_once() {
        for seed in 0..50 {
            let mut random = Random(seed);
            let mut sets = Sets::default();
            let mut marks: Vec<(Option<u32>, BTreeSet<usize>)> = vec![(None, BTreeSet::new()); 20];
            for _ in 0..3_000 {
                let (at, site) = (random.index(20), random.index(200));
                let (set, model) = &mut marks[at];
                if random.chance(60) {
                    *set = Some(sets.with(*set, site));
                    model.insert(site);
                } else if let Some(number) = *set {
                    // Often one that is in it.
                    let site = if random.chance(80) { *model.iter().next().unwrap() } else { site };
                    *set = sets.without(number, site);
                    model.remove(&site);
                }
                let (set, model) = &marks[at];
                let mut sites = BTreeSet::new();
                set.iter().for_each(|&set| sets.each(set, |site| assert!(sites.insert(site))));
                assert_eq!(&sites, model);
                assert!(set.is_none_or(|set| model.iter().all(|&site| sets.has(set, site)) && !sets.has(set, 999)));
            }
            let different: BTreeSet<_> = marks.iter().filter(|(_, m)| m.len() > 1).map(|(_, m)| m.clone()).collect();
            assert_eq!(sets.len(), different.len());
            for (set, model) in &mut marks {
                for site in std::mem::take(model) {
                    *set = set.and_then(|set| sets.without(set, site));
                }
                assert_eq!(*set, None);
            }
            assert_eq!((sets.len(), sets.words), (0, 0));
        }
    }
}
