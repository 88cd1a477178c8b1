//! A concurrent table of entries by position and content hash: one big map, or an array of maps. An entry has one or
//! several prefixes, each with the workers that hold it.
//!
//! Both forms consist of small hash tables with a lock each. [`Layout::Map`] spreads all keys over a fixed number of
//! them; [`Layout::Arrays`] has one for each position, so that a probe finds its position by arithmetic and its key is
//! the content hash alone. An entry without holders is removed at once, and a table that has become mostly empty frees
//! memory.

use std::hash::{BuildHasher, Hash};
use std::sync::OnceLock;

use hashbrown::hash_table::{self, HashTable};
use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::RwLock;

use super::Layout;
use super::member_set::MemberSet;

/// Place of a block: its position in the prompt, its content hash, and the hash of the prefix that it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) position: u32,
    pub(crate) content: u64,
    pub(crate) prefix: u64,
}

/// A concurrent table of the members (workers or groups) that hold blocks, by position and content hash.
#[derive(Debug)]
pub(crate) struct Table {
    hasher: DefaultHashBuilder,
    buckets: Buckets,
}

#[derive(Debug)]
enum Buckets {
    Map(Box<[Bucket<(u32, u64)>]>),
    Arrays(Box<Positions>),
}

/// A part of the table of holders on a separate cache line, so that locks of neighbouring parts do not slow each other
/// down.
#[derive(Debug)]
#[repr(align(64))]
struct Bucket<K>(RwLock<HashTable<(K, Entry)>>);

impl<K> Default for Bucket<K> {
    fn default() -> Self {
        Self(RwLock::new(HashTable::new()))
    }
}

/// Parts of the table of holders, one for each position, in segments of doubling size that never move, so that a reader
/// finds a part without a lock.
#[derive(Debug, Default)]
struct Positions([OnceLock<Box<[Bucket<u64>]>>; SEGMENTS]);

/// Number of positions in the table's first segment, a list of neighbouring positions that is allocated at once.
const FIRST: u64 = 64;
/// Number of segments (lists of neighbouring positions, of doubling size) that together cover all 32-bit positions.
const SEGMENTS: usize = 27;

impl Positions {
    fn locate(position: u32) -> (usize, usize) {
        let number = u64::from(position) + FIRST;
        let segment = (number / FIRST).ilog2();
        (segment as usize, (number - (FIRST << segment)) as usize)
    }

    fn get(&self, position: u32) -> Option<&Bucket<u64>> {
        let (segment, at) = Self::locate(position);
        Some(&self.0[segment].get()?[at])
    }

    fn get_or_make(&self, position: u32) -> &Bucket<u64> {
        let (segment, at) = Self::locate(position);
        let make = || std::iter::repeat_with(Bucket::default).take((FIRST << segment) as usize).collect();
        &self.0[segment].get_or_init(make)[at]
    }
}

impl<K: Copy + Eq + Hash> Bucket<K> {
    fn read<R>(&self, hash: u64, key: K, look: impl FnOnce(Option<&Entry>) -> R) -> R {
        let table = self.0.read();
        look(table.find(hash, |(known, _)| *known == key).map(|(_, entry)| entry))
    }

    fn insert(
        &self,
        hasher: &DefaultHashBuilder,
        hash: u64,
        key: K,
        (prefix, member): (u64, u32),
        noted: impl FnOnce(),
    ) -> bool {
        let mut table = self.0.write();
        let added = match table.entry(hash, |(known, _)| *known == key, |(key, _)| hasher.hash_one(key)) {
            hash_table::Entry::Occupied(mut slot) => slot.get_mut().1.insert(prefix, member),
            hash_table::Entry::Vacant(slot) => {
                slot.insert((key, Entry::new(prefix, member)));
                Insertion { fresh: true, first: true }
            }
        };
        if added.first {
            noted();
        }
        added.fresh
    }

    fn remove(
        &self,
        hasher: &DefaultHashBuilder,
        hash: u64,
        key: K,
        (prefix, member): (u64, u32),
        noted: impl FnOnce(),
    ) -> bool {
        let mut table = self.0.write();
        let Ok(mut slot) = table.find_entry(hash, |(known, _)| *known == key) else { return false };
        let Some(Removal { last, empty }) = slot.get_mut().1.remove(prefix, member) else { return false };
        if empty {
            slot.remove();
            if table.capacity() > 64 && table.len() < table.capacity() / 8 {
                let room = 2 * table.len();
                table.shrink_to(room, |(key, _)| hasher.hash_one(key));
            }
        }
        if last {
            noted();
        }
        true
    }
}

impl Table {
    /// Creates an empty table of holders. `shards`: number of locks, a power of two; ignored for the layout with an
    /// array of maps.
    pub(crate) fn new(layout: Layout, shards: usize) -> Self {
        let buckets = match layout {
            Layout::Map => Buckets::Map(std::iter::repeat_with(Bucket::default).take(shards).collect()),
            Layout::Arrays => Buckets::Arrays(Box::default()),
        };
        Self { hasher: DefaultHashBuilder::default(), buckets }
    }

    /// Calls `look` with the table's entry (the holders, by prefix) for a content hash at a position; `None` if there
    /// is none.
    pub(crate) fn read<R>(&self, position: u32, content: u64, look: impl FnOnce(Option<&Entry>) -> R) -> R {
        match &self.buckets {
            Buckets::Map(shards) => {
                let key = (position, content);
                let hash = self.hasher.hash_one(key);
                shards[shard(hash, shards.len())].read(hash, key, look)
            }
            Buckets::Arrays(positions) => match positions.get(position) {
                Some(bucket) => bucket.read(self.hasher.hash_one(content), content, look),
                None => look(None),
            },
        }
    }

    /// Adds a member (worker or group) to the holders of a place (position and prefix of a block). Returns true if the
    /// member is new there. If the place had no holder before, `noted` is called while the place is locked.
    pub(crate) fn insert(&self, place: Place, member: u32, noted: impl FnOnce()) -> bool {
        let Place { position, content, prefix } = place;
        match &self.buckets {
            Buckets::Map(shards) => {
                let key = (position, content);
                let hash = self.hasher.hash_one(key);
                shards[shard(hash, shards.len())].insert(&self.hasher, hash, key, (prefix, member), noted)
            }
            Buckets::Arrays(positions) => {
                let hash = self.hasher.hash_one(content);
                positions.get_or_make(position).insert(&self.hasher, hash, content, (prefix, member), noted)
            }
        }
    }

    /// Removes a member (worker or group) from the holders of a place (position and prefix of a block). Returns true if
    /// the member was among them. If the place has no holder now, `noted` is called while the place is locked.
    pub(crate) fn remove(&self, place: Place, member: u32, noted: impl FnOnce()) -> bool {
        let Place { position, content, prefix } = place;
        match &self.buckets {
            Buckets::Map(shards) => {
                let key = (position, content);
                let hash = self.hasher.hash_one(key);
                shards[shard(hash, shards.len())].remove(&self.hasher, hash, key, (prefix, member), noted)
            }
            Buckets::Arrays(positions) => {
                let Some(bucket) = positions.get(position) else { return false };
                bucket.remove(&self.hasher, self.hasher.hash_one(content), content, (prefix, member), noted)
            }
        }
    }

    /// Number of entries (pairs of position and content hash) in the table, counted in time proportional to the number
    /// of locks.
    pub(crate) fn len(&self) -> usize {
        match &self.buckets {
            Buckets::Map(shards) => shards.iter().map(|bucket| bucket.0.read().len()).sum(),
            Buckets::Arrays(positions) => {
                let segments = positions.0.iter().filter_map(OnceLock::get);
                segments.flatten().map(|bucket| bucket.0.read().len()).sum()
            }
        }
    }
}

/// Number of the shard (part of the table with its own lock) for a hash, from bits that the hash table inside the shard
/// does not use first.
fn shard(hash: u64, shards: usize) -> usize {
    (hash >> 40) as usize & (shards - 1)
}

/// Prefixes under which a content hash is held at one position, each with its holders.
///
/// With a single prefix a lookup may trust it without a comparison: the *lazy* hash. After several prefixes the entry
/// stays a map until it is empty, so that separated prefixes stay separated.
#[derive(Debug)]
pub(crate) enum Entry {
    Single(u64, MemberSet),
    Multi(Box<HashMap<u64, MemberSet>>),
}

/// Effects of adding a member (worker or group) to the holders of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Insertion {
    /// True if the member (worker or group) was not a holder of the prefix before.
    pub(crate) fresh: bool,
    /// True if the prefix had no holder before.
    pub(crate) first: bool,
}

/// Effects of removing a member (worker or group) from the holders of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Removal {
    /// True if the prefix has no holder left.
    pub(crate) last: bool,
    /// True if no prefix of the table's entry (for one position and content hash) has a holder left.
    pub(crate) empty: bool,
}

impl Entry {
    pub(crate) fn new(prefix: u64, member: u32) -> Self {
        Self::Single(prefix, MemberSet::of(member))
    }

    /// Members (workers or groups) that hold this entry's block as the end of the prefix with the hash `prefix`.
    pub(crate) fn under(&self, prefix: u64) -> Option<&MemberSet> {
        match self {
            Self::Single(known, set) => (*known == prefix).then_some(set),
            Self::Multi(sets) => sets.get(&prefix),
        }
    }

    pub(crate) fn insert(&mut self, prefix: u64, member: u32) -> Insertion {
        match self {
            Self::Single(known, set) if *known == prefix => Insertion { fresh: set.insert(member), first: false },
            Self::Single(known, set) => {
                let sets = [(*known, std::mem::take(set)), (prefix, MemberSet::of(member))];
                *self = Self::Multi(Box::new(HashMap::from_iter(sets)));
                Insertion { fresh: true, first: true }
            }
            Self::Multi(sets) => {
                let mut first = false;
                let set = sets.entry(prefix).or_insert_with(|| {
                    first = true;
                    MemberSet::default()
                });
                Insertion { fresh: set.insert(member), first }
            }
        }
    }

    /// Removes `member` (number of a worker or group) from the holders of a prefix; `None` if it was not one of them.
    pub(crate) fn remove(&mut self, prefix: u64, member: u32) -> Option<Removal> {
        match self {
            Self::Single(known, set) => {
                if *known != prefix || !set.remove(member) {
                    return None;
                }
                Some(Removal { last: set.is_empty(), empty: set.is_empty() })
            }
            Self::Multi(sets) => {
                let set = sets.get_mut(&prefix)?;
                if !set.remove(member) {
                    return None;
                }
                let last = set.is_empty();
                if last {
                    sets.remove(&prefix);
                    if sets.capacity() > 64 && sets.len() < sets.capacity() / 8 {
                        sets.shrink_to(2 * sets.len());
                    }
                }
                Some(Removal { last, empty: sets.is_empty() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_has_one_bucket() {
        let mut expected = (0, 0);
        for position in 0..100_000 {
            assert_eq!(Positions::locate(position), expected, "{position}");
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        let (segment, at) = Positions::locate(u32::MAX);
        assert!(segment == SEGMENTS - 1 && at < (FIRST as usize) << segment);
    }

    #[test]
    fn what_is_taken_out_leaves_nothing() {
        for layout in [Layout::Map, Layout::Arrays] {
            let table = Table::new(layout, 4);
            let place = |position: u32| Place { position, content: u64::from(position % 7), prefix: position.into() };
            for position in 0..20_000 {
                assert!(table.insert(place(position), 3, || ()));
            }
            assert_eq!(table.len(), 20_000);
            for position in 0..20_000 {
                assert!(!table.remove(place(position), 4, || unreachable!("nobody has gone")));
                assert!(table.remove(place(position), 3, || ()));
            }
            assert_eq!(table.len(), 0);
            if let Buckets::Map(shards) = &table.buckets {
                assert!(shards.iter().all(|bucket| bucket.0.read().capacity() <= 64));
            }
        }
    }
}
