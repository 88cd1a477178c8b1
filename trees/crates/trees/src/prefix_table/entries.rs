//! Prefixes of a context, 32 bytes each, and two hash tables of 7 to 13 bytes per prefix that index them (`lines.rs`).
//!
//! An entry is a prefix hash with the pods that hold the prefix. The first block hash by which engines announce the
//! prefix is stored in the entry, and shared by all engines that use it. Other block hashes of the same prefix, for
//! example from engines with other hash seeds, are stored separately, 24 bytes each (`ExtraName`).

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::hash::mix;
use super::lines::Lines;
use super::sets::EMPTY;

/// Index that stands for the end of a prefix's list of extra block hashes (those beyond its main one).
pub(super) const NONE: u32 = u32::MAX;
/// Limit of stored depths, in blocks; greater depths are stored as one less than the limit.
const DEPTHS: u32 = 1 << 30;
const HAS_NAME: u32 = 1 << 31;
const IS_LAST: u32 = 1 << 30;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) prefix: u64,
    /// Block hash by which engines announce the prefix, if any: see [`Self::name`].
    engine: u64,
    /// Number of the set of pods that hold the prefix, including the way in which each pod holds it (announced, or
    /// added by the router); the empty set for an unused slot.
    pub(super) pods: u32,
    /// Time at which the prefix was last stored, added or matched, in tenths of a second.
    seen: AtomicU32,
    /// Index of the first extra block hash of the prefix, one beyond its main block hash; [`NONE`] if there is none.
    pub(super) others: u32,
    /// Number of blocks before the entry, combined with two flags: [`HAS_NAME`] if the entry has a block hash,
    /// [`IS_LAST`] if the entry is the last of the prefixes announced under this block hash.
    place: u32,
}

impl Entry {
    fn new(prefix: u64, depth: u32, now: u32) -> Self {
        let place = depth.min(DEPTHS - 1);
        Self { prefix, engine: 0, pods: EMPTY, seen: AtomicU32::new(now), others: NONE, place }
    }

    /// The entry's main block hash, and true if the entry is the last of the prefixes announced under it; `None`
    /// without a block hash.
    #[inline]
    pub(super) fn name(&self) -> Option<(u64, bool)> {
        (self.place & HAS_NAME != 0).then_some((self.engine, self.place & IS_LAST != 0))
    }

    pub(super) fn depth(&self) -> u32 {
        self.place & (DEPTHS - 1)
    }

    pub(super) fn seen(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Records that the prefix is used at the time `now`. Writes only a changed time, so that readers do not contend
    /// for the cache line.
    #[inline]
    pub(super) fn see(&self, now: u32) {
        if self.seen() != now {
            self.seen.store(now, Ordering::Relaxed);
        }
    }
}

/// A prefix and a block hash that are not in the table yet, with their hashes in the two hash tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    prefix: u64,
    name: u64,
    prefix_hash: u64,
    name_hash: u64,
}

/// An extra block hash of a prefix, beside the one stored in the entry.
#[derive(Debug)]
pub(super) struct ExtraName {
    pub(super) engine: u64,
    pub(super) entry: u32,
    /// Number of the set of pods that use the block hash; the empty set for an unused slot.
    pub(super) pods: u32,
    pub(super) next: u32,
    pub(super) last: bool,
}

#[derive(Debug)]
pub(super) struct Entries {
    pub(super) all: Vec<Entry>,
    vacant: Vec<u32>,
    by_prefix: Lines,
    by_engine: Lines,
    pub(super) others: Vec<ExtraName>,
    vacant_others: Vec<u32>,
    by_other: HashTable<u32>,
    /// Random number mixed into all hashes, so that clients cannot choose keys that collide.
    secret: u64,
}

impl Entries {
    pub(super) fn new(secret: u64) -> Self {
        Self {
            all: Vec::new(),
            vacant: Vec::new(),
            by_prefix: Lines::default(),
            by_engine: Lines::default(),
            others: Vec::new(),
            vacant_others: Vec::new(),
            by_other: HashTable::new(),
            secret,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_prefix.len()
    }

    pub(super) fn other_names(&self) -> usize {
        self.by_other.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Entry>()
            + self.others.capacity() * size_of::<ExtraName>()
            + (self.vacant.capacity() + self.vacant_others.capacity()) * size_of::<u32>()
            + self.by_prefix.bytes()
            + self.by_engine.bytes()
            + self.by_other.allocation_size()
    }

    #[inline]
    fn hash(&self, key: u64) -> u64 {
        mix(key, self.secret)
    }

    #[inline]
    pub(super) fn place(&self, prefix: u64) -> Option<u32> {
        self.by_prefix.of(self.hash(prefix)).find(|&at| self.all[at as usize].prefix == prefix)
    }

    #[inline]
    pub(super) fn find(&self, prefix: u64) -> Option<&Entry> {
        self.place(prefix).map(|at| &self.all[at as usize])
    }

    /// Prefetches the memory that an event with these block hashes and prefixes needs. The reads are independent, so
    /// that their waits for memory overlap, while the later work on each block is not independent. Reads the hash
    /// tables first, then, if there are too many entries for the processor's cache, the entries.
    pub(super) fn warm(&self, names: &[u64], prefixes: &[u64]) {
        const MANY: usize = 1 << 13;
        let lines = prefixes.iter().map(|&prefix| self.by_prefix.touch(self.hash(prefix)));
        let lines = lines.chain(names.iter().map(|&name| self.by_engine.touch(self.hash(name))));
        black_box(lines.fold(0, |all, one| all | one));
        if self.len() > MANY {
            let entries = prefixes.iter().filter_map(|&prefix| self.by_prefix.of(self.hash(prefix)).next());
            let entries = entries.chain(names.iter().filter_map(|&name| self.by_engine.of(self.hash(name)).next()));
            black_box(entries.fold(0, |all, at| all | self.all[at as usize].place));
        }
    }

    /// Creates a hash table with 1.5 times the capacity and the same contents. The entries are visited in batches in
    /// their own order, since the order of the table would wait for memory at each entry.
    #[cold]
    #[inline(never)]
    fn larger(&self, table: &Lines, key: impl Fn(&Entry) -> Option<u64>) -> Lines {
        let mut new = table.next();
        let mut some: SmallVec<[(u64, u32); 32]> = SmallVec::new();
        for (first, entries) in self.all.chunks(32).enumerate().map(|(at, entries)| (at as u32 * 32, entries)) {
            let live = entries.iter().zip(first..).filter(|(entry, _)| entry.pods != EMPTY);
            some.extend(live.filter_map(|(entry, at)| Some((self.hash(key(entry)?), at))));
            black_box(some.iter().fold(0, |all, &(hash, _)| all | new.touch(hash)));
            some.drain(..).for_each(|(hash, at)| new.insert(hash, at));
        }
        new
    }

    /// Index of the entry of a prefix. A prefix without an entry gets one, without holders.
    #[inline]
    pub(super) fn find_or_add(&mut self, prefix: u64, depth: u32, now: u32) -> u32 {
        if let Some(at) = self.place(prefix) {
            self.all[at as usize].see(now);
            return at;
        }
        self.grow_prefixes();
        let at = put(&mut self.all, &mut self.vacant, Entry::new(prefix, depth, now));
        self.by_prefix.insert(mix(prefix, self.secret), at);
        at
    }

    /// Combines a prefix and a block hash, with their hashes, if the table has no entry for either; else `None`.
    #[inline]
    pub(super) fn new_pair(&self, prefix: u64, name: u64) -> Option<Pair> {
        let pair = Pair { prefix, name, prefix_hash: self.hash(prefix), name_hash: self.hash(name) };
        let is = |at: u32| &self.all[at as usize];
        let named = self.by_engine.of(pair.name_hash).any(|at| is(at).engine == name);
        let known = self.by_prefix.of(pair.prefix_hash).any(|at| is(at).prefix == prefix);
        (!named && !known).then_some(pair)
    }

    /// Adds an entry for a prefix that has one block hash, held by the set of pods with the number `pods`.
    #[inline]
    pub(super) fn add_named(&mut self, pair: Pair, depth: u32, now: u32, pods: u32) {
        self.grow_prefixes();
        self.grow_names();
        let Pair { prefix, name, prefix_hash, name_hash } = pair;
        let mut entry = Entry::new(prefix, depth, now);
        (entry.engine, entry.pods) = (name, pods);
        entry.place |= HAS_NAME | IS_LAST;
        let at = put(&mut self.all, &mut self.vacant, entry);
        self.by_prefix.insert(prefix_hash, at);
        self.by_engine.insert(name_hash, at);
    }

    /// Enlarges the hash table that finds entries by prefix hash, if it is full.
    #[inline]
    fn grow_prefixes(&mut self) {
        if self.by_prefix.is_full() {
            self.by_prefix = self.larger(&self.by_prefix, |entry| Some(entry.prefix));
        }
    }

    /// Enlarges the hash table that finds entries by block hash, if it is full.
    #[inline]
    fn grow_names(&mut self) {
        if self.by_engine.is_full() {
            self.by_engine = self.larger(&self.by_engine, |entry| entry.name().map(|(name, _)| name));
        }
    }

    /// Removes the entry of a prefix that has no holders and no block hashes left.
    pub(super) fn remove(&mut self, at: u32) {
        let prefix = self.all[at as usize].prefix;
        self.by_prefix.remove(self.hash(prefix), at);
        self.vacant.push(at);
    }

    /// Indexes of the entries (prefixes) whose main block hash is `engine`.
    #[inline]
    pub(super) fn named(&self, engine: u64) -> impl Iterator<Item = u32> {
        self.by_engine.of(self.hash(engine)).filter(move |&at| self.all[at as usize].engine == engine)
    }

    #[inline]
    pub(super) fn set_name(&mut self, at: u32, engine: u64, last: bool) {
        self.grow_names();
        let entry = &mut self.all[at as usize];
        entry.engine = engine;
        entry.place |= HAS_NAME | if last { IS_LAST } else { 0 };
        self.by_engine.insert(mix(engine, self.secret), at);
    }

    pub(super) fn clear_name(&mut self, at: u32) {
        let entry = &mut self.all[at as usize];
        entry.place &= !(HAS_NAME | IS_LAST);
        let hash = mix(entry.engine, self.secret);
        self.by_engine.remove(hash, at);
    }

    /// Indexes of those extra block hashes (beyond a prefix's main one) that are equal to `engine`.
    pub(super) fn others_of(&self, engine: u64) -> impl Iterator<Item = u32> {
        let named = move |at: &u32| self.others[*at as usize].engine == engine;
        self.by_other.iter_hash(self.hash(engine)).copied().filter(named)
    }

    /// Adds an extra block hash (beyond the main one) to the entry of a prefix, used by no pod yet. Returns the index
    /// of the block hash.
    pub(super) fn add_other(&mut self, at: u32, engine: u64, last: bool) -> u32 {
        let next = self.all[at as usize].others;
        let other = ExtraName { engine, entry: at, pods: EMPTY, next, last };
        let other = put(&mut self.others, &mut self.vacant_others, other);
        self.all[at as usize].others = other;
        let (others, secret) = (&self.others, self.secret);
        self.by_other.insert_unique(mix(engine, secret), other, |&at| mix(others[at as usize].engine, secret));
        other
    }

    /// Removes an extra block hash (beyond a prefix's main one) that no pod uses.
    pub(super) fn remove_other(&mut self, other: u32) {
        let ExtraName { engine, entry, next, .. } = self.others[other as usize];
        let mut before = self.all[entry as usize].others;
        if before == other {
            self.all[entry as usize].others = next;
        } else {
            while self.others[before as usize].next != other {
                before = self.others[before as usize].next;
            }
            self.others[before as usize].next = next;
        }
        if let Ok(found) = self.by_other.find_entry(self.hash(engine), |&at| at == other) {
            found.remove();
        }
        self.vacant_others.push(other);
    }

    /// Moves the entries of the prefixes together once more than half of their slots are unused, to free memory.
    pub(super) fn compact(&mut self) {
        const FEW: usize = 64;
        let sparse = |all: usize, live: usize| all > FEW && live < all / 2;
        if !sparse(self.all.len(), self.len()) && !sparse(self.others.len(), self.other_names()) {
            return;
        }
        let mut new = Self::new(self.secret);
        new.all.reserve_exact(self.len() + self.len() / 8);
        new.others.reserve_exact(self.other_names() + self.other_names() / 8);
        new.by_prefix = Lines::with_capacity(self.len());
        new.by_engine = Lines::with_capacity(self.by_engine.len());
        new.by_other.reserve(self.by_other.len(), |_| 0);
        let mut vacant = vec![false; self.all.len()];
        self.vacant.iter().for_each(|&at| vacant[at as usize] = true);
        let entries = std::mem::take(&mut self.all).into_iter().zip(vacant);
        for mut entry in entries.filter(|(_, vacant)| !vacant).map(|(entry, _)| entry) {
            let at = new.all.len() as u32;
            let mut other = std::mem::replace(&mut entry.others, NONE);
            new.by_prefix.insert(new.hash(entry.prefix), at);
            if entry.name().is_some() {
                new.by_engine.insert(new.hash(entry.engine), at);
            }
            new.all.push(entry);
            while other != NONE {
                let ExtraName { engine, pods, next, last, .. } = self.others[other as usize];
                let kept = new.add_other(at, engine, last);
                new.others[kept as usize].pods = pods;
                other = next;
            }
        }
        *self = new;
    }
}

/// Stores an item in an unused slot of a vector, or at the end; the vector's capacity grows by an eighth. Returns the
/// index.
fn put<T>(all: &mut Vec<T>, vacant: &mut Vec<u32>, item: T) -> u32 {
    if let Some(at) = vacant.pop() {
        all[at as usize] = item;
        return at;
    }
    if all.len() == all.capacity() {
        all.reserve_exact(all.len() / 8 + 16);
    }
    all.push(item);
    (all.len() - 1) as u32
}
