//! A hash table for the writer alone that no change builds anew as a whole.
//!
//! It consists of segments (`slots.rs`). For every so many entries that come, one segment is divided in two; for every so
//! many that go, two become one (linear hashing, Litwin 1980). So the longest change is to divide a segment, and what
//! the table costs in memory grows with what is in it, without a jump. A segment keeps no keys and knows of an entry's
//! hash the tag alone: who divides it is told the rest by the caller.

use super::slots::{Slots, tag};

/// Entries a segment, on average: those that are next to be divided have up to twice as many.
const SEGMENT: usize = 512;

/// See the module's text.
pub(super) struct Segments {
    segments: Vec<Slots>,
    len: usize,
    /// Of the segments, without the list of them.
    bytes: usize,
}

impl Segments {
    pub(super) fn new() -> Self {
        let first = Slots::with_room_for(0);
        Self { bytes: first.bytes(), segments: vec![first], len: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.segments.capacity() * size_of::<Slots>()
    }

    /// Whether the bytes and the number of entries are what they must be.
    #[cfg(test)]
    pub(super) fn is_counted(&self) -> bool {
        self.bytes == self.segments.iter().map(Slots::bytes).sum::<usize>()
            && self.len == self.segments.iter().map(Slots::len).sum::<usize>()
            && self.segments.iter().all(|segment| segment.len() == segment.entries().count())
    }

    /// Gives up a segment; returns whether there are more. There is nothing to be looked up after.
    pub(super) fn shed(&mut self) -> bool {
        if let Some(segment) = self.segments.pop() {
            self.bytes -= segment.bytes();
        }
        !self.segments.is_empty()
    }

    /// The segment of a hash: by those of its bits that are in no tag.
    #[inline]
    fn of(&self, hash: u64) -> usize {
        let mask = self.segments.len().next_power_of_two() - 1;
        let at = (hash >> u16::BITS) as usize & mask;
        if at < self.segments.len() { at } else { at & (mask >> 1) }
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        self.segments[self.of(hash)].prefetch(tag(hash));
    }

    /// The first word under `hash` that `is_it` accepts. Words of other keys may be offered too.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.segments[self.of(hash)].find(tag(hash), is_it)
    }

    /// Adds a word; `hash_of` tells the hash of any word that is in the table.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, word: u32, hash_of: impl Fn(u32) -> u64) {
        self.room_in(hash).insert(tag(hash), word);
        self.len += 1;
        self.divide_if_many(hash_of);
    }

    /// Adds a word unless `is_it` accepts one that is there; returns whether it was added.
    #[inline]
    pub(super) fn insert_new(
        &mut self,
        hash: u64,
        word: u32,
        is_it: impl FnMut(u32) -> bool,
        hash_of: impl Fn(u32) -> u64,
    ) -> bool {
        let added = self.room_in(hash).insert_new(tag(hash), word, is_it);
        self.len += usize::from(added);
        self.divide_if_many(hash_of);
        added
    }

    /// Takes the word that `is_it` accepts out; returns whether there was one.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, is_it: impl FnMut(u32) -> bool) -> bool {
        let at = self.of(hash);
        let segment = &mut self.segments[at];
        if !segment.remove(tag(hash), is_it) {
            return false;
        }
        self.len -= 1;
        if !segment.fits(segment.len()) {
            self.resize(at, 0);
        }
        if self.len < (self.segments.len() - 1) * (SEGMENT / 2) {
            self.unite();
        }
        true
    }

    /// The segment of a hash, with room for one more.
    #[inline]
    fn room_in(&mut self, hash: u64) -> &mut Slots {
        let at = self.of(hash);
        if self.segments[at].len() == self.segments[at].room() {
            self.resize(at, 1);
        }
        &mut self.segments[at]
    }

    /// Gives a segment room for what is in it and `more`, and then some.
    #[cold]
    #[inline(never)]
    fn resize(&mut self, at: usize, more: usize) {
        let old = &self.segments[at];
        let mut new = Slots::with_room_for(enough_for(old.len() + more));
        old.entries().for_each(|(tag, word)| new.insert(tag, word));
        self.put(at, new);
    }

    fn put(&mut self, at: usize, segment: Slots) {
        self.bytes = self.bytes + segment.bytes() - self.segments[at].bytes();
        self.segments[at] = segment;
    }

    #[inline]
    fn divide_if_many(&mut self, hash_of: impl Fn(u32) -> u64) {
        if self.len > self.segments.len() * SEGMENT {
            self.divide(hash_of);
        }
    }

    /// Divides the next segment by one more bit of the hashes.
    #[cold]
    #[inline(never)]
    fn divide(&mut self, hash_of: impl Fn(u32) -> u64) {
        let count = self.segments.len();
        let bit = (count + 1).next_power_of_two() / 2;
        let at = count - bit;
        // Hashes first: to find out the keys is to wait for memory, and that is done for many at a time.
        let entries: Vec<(u16, u32, bool)> = self.segments[at]
            .entries()
            .map(|(tag, word)| (tag, word, (hash_of(word) >> u16::BITS) as usize & bit != 0))
            .collect();
        let going = entries.iter().filter(|(.., goes)| *goes).count();
        let mut stays = Slots::with_room_for(enough_for(entries.len() - going));
        let mut goes = Slots::with_room_for(enough_for(going));
        for (tag, word, is_going) in entries {
            if is_going { goes.insert(tag, word) } else { stays.insert(tag, word) }
        }
        self.put(at, stays);
        self.bytes += goes.bytes();
        self.segments.push(goes);
    }

    /// The reverse: the last segment goes back to where it came from.
    #[cold]
    #[inline(never)]
    fn unite(&mut self) {
        let Some(last) = self.segments.pop() else { return };
        self.bytes -= last.bytes();
        let count = self.segments.len();
        let at = count - (count + 1).next_power_of_two() / 2;
        let mut both = Slots::with_room_for(enough_for(self.segments[at].len() + last.len()));
        for (tag, word) in self.segments[at].entries().chain(last.entries()) {
            both.insert(tag, word);
        }
        self.put(at, both);
        if self.segments.capacity() > 2 * count + 8 {
            self.segments.shrink_to(count + count / 2);
        }
    }
}

/// The room that is made for so many entries: they grow by half before there is none.
fn enough_for(entries: usize) -> usize {
    entries + entries / 2
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::spread::mix;
    use crate::steps::steps_of;

    fn hash(word: u32) -> u64 {
        mix(u64::from(word), 0, 7)
    }

    #[test]
    fn behaves_as_a_set_while_it_grows_and_shrinks() {
        for most in [1, 6, 20, 600, 6_000, 40_000] {
            let mut table = Segments::new();
            let mut live = VecDeque::new();
            for word in 1..100_000 {
                if word % 2 == 0 {
                    table.insert(hash(word), word, hash);
                } else {
                    assert!(table.insert_new(hash(word), word, |x| x == word, hash));
                    assert!(!table.insert_new(hash(word), word, |x| x == word, hash));
                }
                live.push_back(word);
                if live.len() == most {
                    for _ in 0..(word as usize % most + 1).min(live.len()) {
                        let old = live.pop_front().unwrap();
                        assert!(table.remove(hash(old), |x| x == old));
                        assert!(!table.remove(hash(old), |x| x == old));
                        assert_eq!(table.find(hash(old), |x| x == old), None);
                    }
                    assert!(table.is_counted());
                }
            }
            for &word in &live {
                assert_eq!(table.find(hash(word), |x| x == word), Some(word));
            }
            for word in live {
                assert!(table.remove(hash(word), |x| x == word));
            }
            assert!(table.is_counted() && table.segments.len() == 1 && table.bytes() < 2_000, "{}", table.bytes());
        }
    }

    #[test]
    fn no_change_is_longer_in_a_large_table_than_in_a_small_one() {
        let mut table = Segments::new();
        let mut longest = 0;
        let words = 1..1_000_000;
        for word in words.clone() {
            longest = longest.max(steps_of(|| table.insert(hash(word), word, hash)).0);
        }
        assert!(table.bytes() < 14 * words.len(), "{} bytes", table.bytes());
        for word in words {
            longest = longest.max(steps_of(|| assert!(table.remove(hash(word), |x| x == word))).0);
        }
        // To divide or build a segment anew, and there may be two to do so to.
        assert!(longest < 8 * SEGMENT, "{longest} steps");
    }
}
