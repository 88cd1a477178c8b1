//! Lists and hash tables that grow in small steps, without being moved or rebuilt as a whole.
//!
//! A usual large hash table is moved to twice the space when it is full, which takes milliseconds in one change. The
//! tables in this module consist of segments: after a fixed number of insertions one segment is split in two, and after
//! as many removals two are merged (linear hashing, Litwin 1980).
//!
//! A growing `Vec` is copied: tens of milliseconds for a list of a million runs, unless the allocator can move it by
//! its pages. The list in this module consists of chunks of 4,096 elements, and only the first chunk is ever moved.
//! Reading an element takes one more step, in a list of chunks that is short enough to stay in the cache.

use std::hash::{BuildHasher, Hash};
use std::ops::{Index, IndexMut};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::stats::step;

/// Average number of entries in a segment of a hash table; a segment that is about to be split has up to twice as many.
const SEGMENT: usize = 1024;

/// Hash table that grows and shrinks one segment at a time.
pub(crate) struct SegmentedTable<T> {
    segments: Vec<HashTable<T>>,
    len: usize,
    /// Size of all segments of the table in bytes, without the list of segments.
    bytes: usize,
}

impl<T> Default for SegmentedTable<T> {
    fn default() -> Self {
        Self { segments: Vec::new(), len: 0, bytes: 0 }
    }
}

impl<T> SegmentedTable<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.segments.capacity() * size_of::<HashTable<T>>()
    }

    /// True if the counters of bytes and entries are correct, for tests.
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        self.bytes == self.segments.iter().map(HashTable::allocation_size).sum::<usize>()
            && self.len == self.segments.iter().map(HashTable::len).sum::<usize>()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().flatten()
    }

    /// Frees one segment with its entries; returns true if more segments are left. The table must not be searched
    /// afterwards.
    pub(crate) fn shed(&mut self) -> bool {
        if let Some(segment) = self.segments.pop() {
            self.len -= segment.len();
            self.bytes -= segment.allocation_size();
        }
        !self.segments.is_empty()
    }

    /// Index of the segment that a hash belongs to, chosen by bits that the segment's own table does not use.
    #[inline]
    fn of(&self, hash: u64) -> usize {
        let mask = self.segments.len().next_power_of_two() - 1;
        let at = (hash >> 32) as usize & mask;
        if at < self.segments.len() { at } else { at & (mask >> 1) }
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.segments.get(self.of(hash))?.find(hash, is_it)
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let at = self.of(hash);
        self.segments.get_mut(at)?.find_mut(hash, is_it)
    }

    /// Inserts an entry that is not yet in the table, under a hash.
    pub(crate) fn insert_unique(&mut self, hash: u64, it: T, hash_of: impl Fn(&T) -> u64) {
        if self.len >= self.segments.len() * SEGMENT {
            self.divide(&hash_of);
        }
        let at = self.of(hash);
        let segment = &mut self.segments[at];
        let bytes = segment.allocation_size();
        if segment.len() == segment.capacity() {
            segment.iter().for_each(|_| step());
        }
        segment.insert_unique(hash, it, hash_of);
        self.bytes = self.bytes + segment.allocation_size() - bytes;
        self.len += 1;
    }

    /// Removes and returns the entry that the predicate `is_it` accepts; None if there is no such entry.
    pub(crate) fn remove(
        &mut self,
        hash: u64,
        is_it: impl FnMut(&T) -> bool,
        hash_of: impl Fn(&T) -> u64,
    ) -> Option<T> {
        let at = self.of(hash);
        let (it, _) = self.segments.get_mut(at)?.find_entry(hash, is_it).ok()?.remove();
        self.len -= 1;
        let segment = &mut self.segments[at];
        if segment.len() * 4 < segment.capacity() && segment.capacity() > 8 {
            self.resize(at, |segment| segment.shrink_to(segment.len() * 2, hash_of));
        } else if self.len * 2 < (self.segments.len() - 1) * SEGMENT {
            self.unite(hash_of);
        }
        if self.len == 0 {
            *self = Self::default();
        }
        Some(it)
    }

    fn resize(&mut self, at: usize, change: impl FnOnce(&mut HashTable<T>)) {
        let segment = &mut self.segments[at];
        let bytes = segment.allocation_size();
        segment.iter().for_each(|_| step());
        change(segment);
        self.bytes = self.bytes + segment.allocation_size() - bytes;
    }

    /// Splits the next segment of the table in two, by one more bit of its entries' hashes.
    #[cold]
    fn divide(&mut self, hash_of: &impl Fn(&T) -> u64) {
        let count = self.segments.len();
        self.segments.push(HashTable::new());
        if count == 0 {
            return;
        }
        let bit = (count + 1).next_power_of_two() / 2;
        let mut new = HashTable::with_capacity(SEGMENT);
        self.resize(count - bit, |segment| {
            for it in segment.extract_if(|it| (hash_of(it) >> 32) as usize & bit != 0) {
                new.insert_unique(hash_of(&it), it, hash_of);
            }
            segment.shrink_to(segment.len(), hash_of);
        });
        self.bytes += new.allocation_size();
        self.segments[count] = new;
    }

    /// Merges the last segment of the table into the one that it was split from: the reverse of `divide`.
    #[cold]
    fn unite(&mut self, hash_of: impl Fn(&T) -> u64) {
        let Some(last) = self.segments.pop() else { return };
        self.bytes -= last.allocation_size();
        let count = self.segments.len();
        let bit = (count + 1).next_power_of_two() / 2;
        self.resize(count - bit, |segment| {
            for it in last {
                step();
                segment.insert_unique(hash_of(&it), it, &hash_of);
            }
        });
        if self.segments.capacity() > 2 * count + 8 {
            self.segments.shrink_to(count + count / 2);
        }
    }
}

/// Hash map that grows and shrinks one segment at a time.
pub(crate) struct Map<K, V> {
    entries: SegmentedTable<(K, V)>,
    /// Hasher with a secret seed, so that a client that chooses the keys cannot choose their places in the table.
    hasher: DefaultHashBuilder,
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self { entries: SegmentedTable::default(), hasher: DefaultHashBuilder::default() }
    }
}

impl<K: Hash + Eq + Copy, V> Map<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes()
    }

    /// True if the counters of bytes and entries are correct, for tests.
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        self.entries.is_counted()
    }

    /// Frees one segment with its entries, like [`SegmentedTable::shed`]; returns true if more are left.
    pub(crate) fn shed(&mut self) -> bool {
        self.entries.shed()
    }

    /// All entries of the map, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        if self.is_empty() {
            return None;
        }
        self.entries.find(self.hasher.hash_one(key), |(it, _)| it == key).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if self.is_empty() {
            return None;
        }
        self.entries.find_mut(self.hasher.hash_one(key), |(it, _)| it == key).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of a key; returns the previous value, None if there was none.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hash = self.hasher.hash_one(key);
        if let Some((_, old)) = self.entries.find_mut(hash, |(it, _)| *it == key) {
            return Some(std::mem::replace(old, value));
        }
        let Self { entries, hasher } = self;
        entries.insert_unique(hash, (key, value), |(key, _)| hasher.hash_one(key));
        None
    }

    /// Value of a key; if the key is new, inserts the result of `make`.
    pub(crate) fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let hash = self.hasher.hash_one(key);
        if self.entries.find(hash, |(it, _)| *it == key).is_none() {
            let Self { entries, hasher } = self;
            entries.insert_unique(hash, (key, make()), |(key, _)| hasher.hash_one(key));
        }
        let entry = self.entries.find_mut(hash, |(it, _)| *it == key);
        entry.map(|(_, value)| value).expect("it is there now")
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        if self.is_empty() {
            return None;
        }
        let Self { entries, hasher } = self;
        let hash = hasher.hash_one(key);
        let gone = entries.remove(hash, |(it, _)| it == key, |(key, _)| hasher.hash_one(key));
        gone.map(|(_, value)| value)
    }
}

const BITS: usize = 12;
const CHUNK: usize = 1 << BITS;

/// List of elements in chunks, which grows without moving its elements.
pub(crate) struct ChunkedList<T> {
    /// Chunks (separately allocated parts) of the list's elements; all but the last are full.
    chunks: Vec<Vec<T>>,
    /// Capacity of all chunks of the list, in elements.
    room: usize,
}

impl<T> Default for ChunkedList<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), room: 0 }
    }
}

impl<T> ChunkedList<T> {
    pub(crate) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.room * size_of::<T>() + self.chunks.capacity() * size_of::<Vec<T>>()
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.chunks.get(at >> BITS)?.get(at % CHUNK)
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// Elements of the list from index `at` on, at most `count` of them.
    pub(crate) fn some_from(&self, at: usize, count: usize) -> impl Iterator<Item = &T> {
        let (first, skipped) = (at >> BITS, at % CHUNK);
        self.chunks.get(first..).into_iter().flatten().flatten().skip(skipped).take(count)
    }

    pub(crate) fn push(&mut self, it: T) {
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            // The first begins small.
            let room = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(room));
            self.room += room;
        }
        let Some(last) = self.chunks.last_mut() else { return };
        if last.len() == last.capacity() {
            let more = (last.len() / 4 + 16).min(CHUNK - last.len());
            last.reserve_exact(more);
            self.room += more;
        }
        last.push(it);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.chunks.last_mut()?;
        let it = last.pop();
        if last.is_empty() {
            self.room -= last.capacity();
            self.chunks.pop();
        }
        it
    }
}

impl<T> Index<usize> for ChunkedList<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.chunks[at >> BITS][at % CHUNK]
    }
}

impl<T> IndexMut<usize> for ChunkedList<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at >> BITS][at % CHUNK]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use kvatlas_testing::Random;

    use super::*;
    use crate::stats::steps_of;

    #[test]
    fn a_map_is_one_while_it_grows_and_shrinks() {
        let (mut map, mut model) = (Map::default(), BTreeMap::new());
        let random = &mut Random(1);
        let mut longest = 0;
        for round in 0..12_u64 {
            for _ in 0..20_000 {
                let key = random.below(30_000);
                let grows = random.chance(if round % 4 < 2 { 80 } else { 20 });
                let (steps, (got, wanted)) = steps_of(|| match (grows, key % 2) {
                    (true, 0) => (map.insert(key, round), model.insert(key, round)),
                    (true, _) => {
                        (Some(*map.get_or_insert_with(key, || round)), Some(*model.entry(key).or_insert(round)))
                    }
                    _ => (map.remove(&key), model.remove(&key)),
                });
                assert_eq!(got, wanted);
                assert_eq!(map.get(&(key + 1)), model.get(&(key + 1)));
                longest = longest.max(steps);
            }
            assert!(map.is_counted());
            assert_eq!(map.iter().map(|(k, v)| (*k, *v)).collect::<BTreeMap<_, _>>(), model);
        }
        assert!(map.entries.segments.len() > 8);
        for key in model.keys() {
            assert!(map.remove(key).is_some());
        }
        assert_eq!((map.len(), map.bytes()), (0, 0));
        // To divide a segment and to make room in one, however many there are.
        assert!(longest < 8 * SEGMENT, "{longest} steps");
    }

    #[test]
    fn is_a_list() {
        let (mut chunked, mut list) = (ChunkedList::default(), Vec::new());
        let is_right = |chunked: &ChunkedList<usize>, list: &[usize]| {
            assert_eq!((chunked.len(), chunked.get(list.len())), (list.len(), None));
            assert!(chunked.iter().eq(list));
            let room: usize = chunked.chunks.iter().map(Vec::capacity).sum();
            assert_eq!(chunked.room, room);
            assert!(room <= list.len() + list.len() / 4 + CHUNK);
        };
        for at in 0..3 * CHUNK + 7 {
            chunked.push(at);
            list.push(at);
            if at % 1_000 == 0 {
                is_right(&chunked, &list);
            }
        }
        chunked[CHUNK] = 5;
        list[CHUNK] = 5;
        for (at, count) in [(0, 3), (CHUNK - 1, 2), (CHUNK, 2 * CHUNK), (3 * CHUNK, 100), (4 * CHUNK, 1)] {
            assert!(chunked.some_from(at, count).eq(list.iter().skip(at).take(count)));
        }
        assert_eq!((chunked[CHUNK], chunked.get(2 * CHUNK)), (5, Some(&(2 * CHUNK))));
        while let Some(last) = list.pop() {
            assert_eq!(chunked.pop(), Some(last));
            if last % 1_000 == 0 {
                is_right(&chunked, &list);
            }
        }
        assert_eq!((chunked.pop(), chunked.bytes()), (None, chunked.chunks.capacity() * size_of::<Vec<usize>>()));
    }
}
