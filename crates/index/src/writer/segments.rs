//! A hash table for the writer alone that no change builds anew as a whole.
//!
//! It consists of segments (`slots.rs`). For every so many entries that come, one segment is divided in two; for every so
//! many that go, two become one (linear hashing, Litwin 1980). So the longest change is to divide a segment, and what
//! the table costs in memory grows with what is in it, without a jump. A segment keeps no keys and knows of an entry's
//! hash the tag and eight of the bits by which segments are divided; when those are used up, which is once in eight
//! times that the table doubles, the caller is asked for the hash.

use super::slots::{Kept, Slots, tag};

/// Entries a segment, on average: those that are next to be divided have up to twice as many.
const SEGMENT: usize = 512;

/// Bits that a segment keeps of the part of the hashes by which segments are divided.
const BITS: u32 = u8::BITS;
/// No such bits: for segments that were united and kept different ones.
const NO_BITS: u32 = u32::MAX;

struct Segment {
    slots: Slots,
    /// Which bits its entries keep: those from this times [`BITS`] on.
    bits: u32,
}

/// The part of a hash by which segments are divided: it is in no tag.
#[inline]
fn part(hash: u64) -> u64 {
    hash >> u16::BITS
}

impl Segment {
    /// What it keeps of a hash.
    #[inline]
    fn kept(&self, hash: u64) -> Kept {
        let more = part(hash).checked_shr(self.bits.wrapping_mul(BITS)).unwrap_or(0) as u8;
        Kept { tag: tag(hash), more }
    }
}

/// See the module's text.
pub(super) struct Segments {
    segments: Vec<Segment>,
    len: usize,
    /// Of the segments, without the list of them.
    bytes: usize,
}

impl Segments {
    /// An empty one.
    pub(super) fn new() -> Self {
        let slots = Slots::with_room_for(16);
        Self { bytes: slots.bytes(), segments: vec![Segment { slots, bits: 0 }], len: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.segments.capacity() * size_of::<Segment>()
    }

    /// Whether the bytes and the number of entries are what they must be.
    #[cfg(test)]
    pub(super) fn is_counted(&self) -> bool {
        let all = || self.segments.iter().map(|segment| &segment.slots);
        self.bytes == all().map(Slots::bytes).sum::<usize>()
            && self.len == all().map(Slots::len).sum::<usize>()
            && all().all(|slots| slots.len() == slots.entries().count())
    }

    /// The segment of a hash: by those of its bits that are in no tag.
    #[inline]
    fn of(&self, hash: u64) -> usize {
        let mask = self.segments.len().next_power_of_two() - 1;
        let at = part(hash) as usize & mask;
        if at < self.segments.len() { at } else { at & (mask >> 1) }
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        self.segments[self.of(hash)].slots.prefetch(tag(hash));
    }

    /// The first word under `hash` that `is_it` accepts. Words of other keys may be offered too.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.segments[self.of(hash)].slots.find(tag(hash), is_it)
    }

    /// Adds a word; `hash_of` tells the hash of any word that is in the table.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, word: u32, hash_of: impl Fn(u32) -> u64) {
        let (kept, slots) = self.room_in(hash);
        slots.insert(kept, word);
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
        let (kept, slots) = self.room_in(hash);
        let added = slots.insert_new(kept, word, is_it);
        self.len += usize::from(added);
        self.divide_if_many(hash_of);
        added
    }

    /// Takes the word that `is_it` accepts out; returns whether there was one.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, is_it: impl FnMut(u32) -> bool) -> bool {
        let at = self.of(hash);
        let slots = &mut self.segments[at].slots;
        if !slots.remove(tag(hash), is_it) {
            return false;
        }
        self.len -= 1;
        if !slots.fits(slots.len()) {
            self.resize(at, 0);
        }
        if self.len < (self.segments.len() - 1) * (SEGMENT / 2) {
            self.unite();
        }
        true
    }

    /// The segment of a hash, with room for one more, and what it keeps of the hash.
    #[inline]
    fn room_in(&mut self, hash: u64) -> (Kept, &mut Slots) {
        let at = self.of(hash);
        if self.segments[at].slots.len() == self.segments[at].slots.room() {
            self.resize(at, 1);
        }
        (self.segments[at].kept(hash), &mut self.segments[at].slots)
    }

    /// Gives a segment room for what is in it and `more`, and then some.
    #[cold]
    #[inline(never)]
    fn resize(&mut self, at: usize, more: usize) {
        let old = &self.segments[at];
        let mut slots = Slots::with_room_for(enough_for(old.slots.len() + more));
        old.slots.entries().for_each(|(kept, word)| slots.insert(kept, word));
        self.put(at, Segment { slots, bits: old.bits });
    }

    fn put(&mut self, at: usize, segment: Segment) {
        self.bytes = self.bytes + segment.slots.bytes() - self.segments[at].slots.bytes();
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
        let level = (count + 1).next_power_of_two().trailing_zeros() - 1;
        let (at, bits) = (count - (1 << level), level / BITS);
        let old = &self.segments[at];
        // To find out the keys is to wait for memory: that is begun for all of them before the first is used.
        let entries: Vec<(Kept, u32)> = if old.bits == bits {
            old.slots.entries().collect()
        } else {
            let fresh =
                |(kept, word): (Kept, u32)| (Kept { more: (part(hash_of(word)) >> (bits * BITS)) as u8, ..kept }, word);
            old.slots.entries().map(fresh).collect()
        };
        let goes = |kept: Kept| kept.more >> (level % BITS) & 1 == 1;
        let going = entries.iter().filter(|(kept, _)| goes(*kept)).count();
        let mut left = Slots::with_room_for(enough_for(entries.len() - going));
        let mut new = Slots::with_room_for(enough_for(going));
        for (kept, word) in entries {
            if goes(kept) { new.insert(kept, word) } else { left.insert(kept, word) }
        }
        self.put(at, Segment { slots: left, bits });
        self.bytes += new.bytes();
        self.segments.push(Segment { slots: new, bits });
    }

    /// The reverse: the last segment goes back to where it came from.
    #[cold]
    #[inline(never)]
    fn unite(&mut self) {
        let Some(last) = self.segments.pop() else { return };
        self.bytes -= last.slots.bytes();
        let count = self.segments.len();
        let at = count - (count + 1).next_power_of_two() / 2;
        let first = &self.segments[at];
        let mut slots = Slots::with_room_for(enough_for(first.slots.len() + last.slots.len()));
        for (kept, word) in first.slots.entries().chain(last.slots.entries()) {
            slots.insert(kept, word);
        }
        let bits = if first.bits == last.bits { first.bits } else { NO_BITS };
        self.put(at, Segment { slots, bits });
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
