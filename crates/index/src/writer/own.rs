//! Block hash → position, for one holder: a hash table that has the names in it.
//!
//! A line is a cache line: five names, the numbers of their positions, and a count of the entries that wanted this line
//! and found it full; those are in the next line that had room. There are no tombstones, as that count goes down again.
//!
//! It consists of segments, of which one is divided in two for every so many names that come, and two become one for
//! every so many that go (linear hashing, Litwin 1980), so that no change builds it anew as a whole.
//!
//! The shared table leaves the names to the runs, where they are beside what a look-up wants next. One holder's own are
//! nowhere else, and to look there first would be three misses more.

use crate::position::NO_NAME;
use crate::raw::prefetch;
use crate::spread::{line_after, line_of, mix};
use crate::steps::step;

/// Names a segment, on average: those that are next to be divided have up to twice as many.
const SEGMENT: usize = 512;
const SLOTS: usize = 5;
/// Entries in a line, on average, of a full table.
const FULL: usize = 4;
/// Names whose lines are asked for before they are needed: about as many as a core can wait for at once.
const AHEAD: usize = 16;

#[derive(Clone)]
#[repr(C, align(64))]
struct Line {
    /// [`NO_NAME`] for an empty slot.
    names: [u64; SLOTS],
    numbers: [u32; SLOTS],
    /// Entries that are in later lines because this was full.
    overflow: u32,
}

const _: () = assert!(size_of::<Line>() == 64);

const EMPTY: Line = Line { names: [NO_NAME; SLOTS], numbers: [0; SLOTS], overflow: 0 };

/// One segment.
struct Part {
    lines: Box<[Line]>,
    len: usize,
}

impl Part {
    fn with_room_for(names: usize) -> Self {
        Self { lines: vec![EMPTY; names.div_ceil(FULL).max(1)].into(), len: 0 }
    }

    fn bytes(&self) -> usize {
        size_of_val::<[Line]>(&self.lines)
    }

    fn room(&self) -> usize {
        self.lines.len() * FULL
    }

    /// Every name with its number.
    fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let entries = self.lines.iter().flat_map(|line| line.names.iter().copied().zip(line.numbers));
        entries.inspect(|_| step()).filter(|(name, _)| *name != NO_NAME)
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        line_of(hash, self.lines.len())
    }

    #[inline]
    fn after(&self, line: usize) -> usize {
        line_after(line, self.lines.len())
    }

    /// Adds a name unless it is there; returns whether it was added. There must be room.
    #[inline]
    fn insert_new(&mut self, hash: u64, name: u64, number: u32) -> bool {
        let home = self.home(hash);
        let line = &self.lines[home];
        let (hits, empty) = (line.marks(name), line.marks(NO_NAME));
        if hits != 0 || line.overflow > 0 && self.locate(hash, name).is_some() {
            return false;
        }
        if empty == 0 {
            self.insert(hash, name, number);
        } else {
            self.len += 1;
            let (line, slot) = (&mut self.lines[home], empty.trailing_zeros() as usize);
            (line.names[slot], line.numbers[slot]) = (name, number);
        }
        true
    }

    /// Adds a name that is not there. There must be room.
    #[inline]
    fn insert(&mut self, hash: u64, name: u64, number: u32) {
        self.len += 1;
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            if let Some(slot) = line.slot(NO_NAME) {
                (line.names[slot], line.numbers[slot]) = (name, number);
                return;
            }
            line.overflow += 1;
            at = self.after(at);
        }
    }

    /// Takes a name out; returns whether it was there.
    #[inline]
    fn remove(&mut self, hash: u64, name: u64) -> bool {
        let Some((line, slot, distance)) = self.locate(hash, name) else { return false };
        self.lines[line].names[slot] = NO_NAME;
        let mut at = self.home(hash);
        for _ in 0..distance {
            self.lines[at].overflow -= 1;
            at = self.after(at);
        }
        self.len -= 1;
        true
    }

    /// Line, slot, and lines from home.
    #[inline]
    fn locate(&self, hash: u64, name: u64) -> Option<(usize, usize, usize)> {
        let mut at = self.home(hash);
        for distance in 0..self.lines.len() {
            let line = &self.lines[at];
            if let Some(slot) = line.slot(name) {
                return Some((at, slot, distance));
            }
            if line.overflow == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }
}

/// See the module's text.
pub(super) struct OwnTable {
    parts: Vec<Part>,
    len: usize,
    /// Of the parts, without the list of them.
    bytes: usize,
    secret: u64,
}

impl OwnTable {
    /// An empty one that takes so many without much ado.
    pub(super) fn with_room_for(names: usize, secret: u64) -> Self {
        let count = (names / SEGMENT).max(1);
        let level = count.ilog2();
        let part = |at: usize| {
            // The first have been divided once more than the others, and the last are their other halves.
            let is_divided = at < count - (1 << level) || at >= 1 << level;
            let share = names >> (level + u32::from(is_divided));
            Part::with_room_for(share + share / 8 + 4)
        };
        let parts: Vec<_> = (0..count).map(part).collect();
        Self { bytes: parts.iter().map(Part::bytes).sum(), parts, len: 0, secret }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.parts.capacity() * size_of::<Part>()
    }

    /// Whether the bytes and the number of names are what they must be.
    #[cfg(test)]
    pub(super) fn is_counted(&self) -> bool {
        self.bytes == self.parts.iter().map(Part::bytes).sum::<usize>()
            && self.len == self.parts.iter().map(|part| part.len).sum::<usize>()
            && self.parts.iter().all(|part| part.len == part.iter().count())
    }

    /// Gives up a segment; returns whether there are more. There is nothing to be looked up after.
    pub(super) fn shed(&mut self) -> bool {
        if let Some(part) = self.parts.pop() {
            (self.len, self.bytes) = (self.len - part.len, self.bytes - part.bytes());
        }
        !self.parts.is_empty()
    }

    #[inline]
    fn hash(&self, name: u64) -> u64 {
        mix(name, 0, self.secret)
    }

    /// The segment of a hash: by its low bits, as the high ones choose the line.
    #[inline]
    fn of(&self, hash: u64) -> usize {
        let mask = self.parts.len().next_power_of_two() - 1;
        let at = hash as usize & mask;
        if at < self.parts.len() { at } else { at & (mask >> 1) }
    }

    #[inline]
    fn prefetch_one(&self, name: u64) {
        let hash = self.hash(name);
        let part = &self.parts[self.of(hash)];
        prefetch(&part.lines[part.home(hash)]);
    }

    /// Asks for the lines of the first names that are soon to be looked up.
    #[inline]
    pub(super) fn prefetch_first(&self, names: &[u64]) {
        names.iter().take(AHEAD).for_each(|&name| self.prefetch_one(name));
    }

    /// Asks for the lines of names that are being looked up one by one: called for each `i` before `names[i]` is, and for
    /// the first as above.
    #[inline]
    pub(super) fn prefetch(&self, names: &[u64], i: usize) {
        if let Some(&name) = names.get(i + AHEAD) {
            self.prefetch_one(name);
        }
    }

    /// Every name with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.parts.iter().flat_map(Part::iter)
    }

    #[inline]
    pub(super) fn find(&self, name: u64) -> Option<u32> {
        let hash = self.hash(name);
        let part = &self.parts[self.of(hash)];
        part.locate(hash, name).map(|(line, slot, _)| part.lines[line].numbers[slot])
    }

    /// Adds a name unless it is there; returns whether it was added.
    #[inline]
    pub(super) fn insert_new(&mut self, name: u64, number: u32) -> bool {
        let hash = self.hash(name);
        let at = self.of(hash);
        if self.parts[at].len == self.parts[at].room() {
            self.resize(at, 1);
        }
        if !self.parts[at].insert_new(hash, name, number) {
            return false;
        }
        self.len += 1;
        if self.len > self.parts.len() * SEGMENT {
            self.divide();
        }
        true
    }

    /// Takes a name out; returns whether it was there.
    #[inline]
    pub(super) fn remove(&mut self, name: u64) -> bool {
        let hash = self.hash(name);
        let at = self.of(hash);
        let part = &mut self.parts[at];
        if !part.remove(hash, name) {
            return false;
        }
        self.len -= 1;
        if part.len * 4 < part.room() && part.room() > 64 {
            self.resize(at, 0);
        }
        if self.len < (self.parts.len() - 1) * (SEGMENT / 2) {
            self.unite();
        }
        true
    }

    /// A segment of these names, with room for half as many more.
    fn part(&self, wanted: usize, names: impl Iterator<Item = (u64, u32)>) -> Part {
        let mut part = Part::with_room_for(wanted + wanted / 2);
        names.for_each(|(name, number)| part.insert(self.hash(name), name, number));
        part
    }

    fn put(&mut self, at: usize, part: Part) {
        self.bytes = self.bytes + part.bytes() - self.parts[at].bytes();
        self.parts[at] = part;
    }

    /// Gives a segment room for what is in it and `more`, and then some.
    #[cold]
    #[inline(never)]
    fn resize(&mut self, at: usize, more: usize) {
        let part = self.part(self.parts[at].len + more, self.parts[at].iter());
        self.put(at, part);
    }

    /// Divides the next segment by one more bit of the hashes.
    #[cold]
    #[inline(never)]
    fn divide(&mut self) {
        let count = self.parts.len();
        let bit = (count + 1).next_power_of_two() / 2;
        let old = &self.parts[count - bit];
        let goes = |(name, _): &(u64, u32)| self.hash(*name) as usize & bit != 0;
        let going = old.iter().filter(goes).count();
        let new = self.part(going, old.iter().filter(goes));
        let left = self.part(old.len - going, old.iter().filter(|entry| !goes(entry)));
        self.put(count - bit, left);
        self.bytes += new.bytes();
        self.parts.push(new);
    }

    /// The reverse: the last segment goes back to where it came from.
    #[cold]
    #[inline(never)]
    fn unite(&mut self) {
        let Some(last) = self.parts.pop() else { return };
        self.bytes -= last.bytes();
        let count = self.parts.len();
        let at = count - (count + 1).next_power_of_two() / 2;
        let first = &self.parts[at];
        let both = self.part(first.len + last.len, first.iter().chain(last.iter()));
        self.put(at, both);
        if self.parts.capacity() > 2 * count + 8 {
            self.parts.shrink_to(count + count / 2);
        }
    }
}

impl Line {
    /// Bit i for each slot i with this name.
    #[inline]
    fn marks(&self, name: u64) -> u32 {
        self.names.iter().enumerate().fold(0, |hits, (i, &it)| hits | u32::from(it == name) << i)
    }

    #[inline]
    fn slot(&self, name: u64) -> Option<usize> {
        let hits = self.marks(name);
        (hits != 0).then(|| hits.trailing_zeros() as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::steps::steps_of;

    #[test]
    fn behaves_as_a_map_while_it_grows_and_shrinks() {
        for (most, room) in [(1, 0), (50, 0), (600, 70_000), (4_000, 3_000), (40_000, 0)] {
            let mut table = OwnTable::with_room_for(room, 7);
            let mut live = VecDeque::new();
            let mut longest = 0;
            for v in 1..100_000_u32 {
                longest = longest.max(steps_of(|| assert!(table.insert_new(u64::from(v), v ^ 5))).0);
                assert!(!table.insert_new(u64::from(v), 0));
                live.push_back(v);
                if live.len() == most {
                    for _ in 0..(v as usize % most + 1).min(live.len()) {
                        let old = u64::from(live.pop_front().unwrap());
                        longest = longest.max(steps_of(|| assert!(table.remove(old))).0);
                        assert!(!table.remove(old));
                        assert_eq!(table.find(old), None);
                    }
                    assert!(table.is_counted());
                }
            }
            let all: std::collections::BTreeMap<_, _> = table.iter().collect();
            assert_eq!(all, live.iter().map(|&v| (u64::from(v), v ^ 5)).collect());
            for v in live {
                assert_eq!(table.find(u64::from(v)), Some(v ^ 5));
                assert!(table.remove(u64::from(v)));
            }
            assert!(table.is_counted() && table.parts.len() == 1 && table.bytes() < 2_000, "{} bytes", table.bytes());
            assert!(table.parts[0].lines.iter().all(|line| line.names == [NO_NAME; SLOTS] && line.overflow == 0));
            // To divide a segment or build it anew, and there may be two to do so to, whatever the size of all.
            assert!(longest < 16 * SEGMENT, "{longest} steps");
        }
    }
}
