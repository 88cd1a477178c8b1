//! Block hash → position, for one holder: a hash table that has the names in it.
//!
//! A line is a cache line: five names, the numbers of their positions, and a count of the entries that wanted this line
//! and found it full; those are in the next line that had room. There are no tombstones, as that count goes down again.
//!
//! The shared table leaves the names to the runs, where they are beside what a look-up wants next. One holder's own are
//! nowhere else, and to look there first would be three misses more.

use crate::position::NO_NAME;
use crate::raw::prefetch;
use crate::spread::{Secret, line_after, line_of};

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

/// See the module's text.
pub(super) struct OwnTable {
    lines: Vec<Line>,
    len: usize,
    secret: Secret,
}

impl OwnTable {
    pub(super) fn new() -> Self {
        Self { lines: vec![EMPTY], len: 0, secret: Secret::new() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    fn room(&self) -> usize {
        self.lines.len() * FULL
    }

    #[inline]
    fn home(&self, name: u64) -> usize {
        line_of(self.secret.mix(name, 0), self.lines.len())
    }

    #[inline]
    fn after(&self, line: usize) -> usize {
        line_after(line, self.lines.len())
    }

    /// Asks for the lines of the first names that are soon to be looked up.
    #[inline]
    pub(super) fn prefetch_first(&self, names: &[u64]) {
        names.iter().take(AHEAD).for_each(|&name| prefetch(&self.lines[self.home(name)]));
    }

    /// Asks for the lines of names that are being looked up one by one: called for each `i` before `names[i]` is, and for
    /// the first as above.
    #[inline]
    pub(super) fn prefetch(&self, names: &[u64], i: usize) {
        if let Some(&name) = names.get(i + AHEAD) {
            prefetch(&self.lines[self.home(name)]);
        }
    }

    /// Every name with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let entries = self.lines.iter().flat_map(|line| line.names.iter().copied().zip(line.numbers));
        entries.filter(|(name, _)| *name != NO_NAME)
    }

    #[inline]
    pub(super) fn find(&self, name: u64) -> Option<u32> {
        self.locate(name).map(|(line, slot, _)| self.lines[line].numbers[slot])
    }

    /// Adds a name unless it is there; returns whether it was added. There must be room.
    #[inline]
    pub(super) fn insert_new(&mut self, name: u64, number: u32) -> bool {
        let home = self.home(name);
        let line = &self.lines[home];
        let (hits, empty) = (line.marks(name), line.marks(NO_NAME));
        if hits != 0 || line.overflow > 0 && self.locate(name).is_some() {
            return false;
        }
        self.len += 1;
        if empty == 0 {
            self.insert_at(home, name, number);
        } else {
            let (line, slot) = (&mut self.lines[home], empty.trailing_zeros() as usize);
            (line.names[slot], line.numbers[slot]) = (name, number);
        }
        true
    }

    #[inline]
    fn insert_at(&mut self, mut at: usize, name: u64, number: u32) {
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
    pub(super) fn remove(&mut self, name: u64) -> bool {
        let Some((line, slot, distance)) = self.locate(name) else { return false };
        self.lines[line].names[slot] = NO_NAME;
        let mut at = self.home(name);
        for _ in 0..distance {
            self.lines[at].overflow -= 1;
            at = self.after(at);
        }
        self.len -= 1;
        true
    }

    /// Line, slot, and lines from home.
    #[inline]
    fn locate(&self, name: u64) -> Option<(usize, usize, usize)> {
        let mut at = self.home(name);
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

    /// Makes room for `more` names, or gives room back.
    #[inline]
    pub(super) fn reserve(&mut self, more: usize) {
        let room = self.room();
        if self.len + more > room || (self.len * 4 < room && room > 64) {
            self.rebuild(self.len + more);
        }
    }

    #[cold]
    #[inline(never)]
    fn rebuild(&mut self, wanted: usize) {
        let lines = (wanted + wanted / 2).div_ceil(FULL).max(1);
        let old = std::mem::replace(&mut self.lines, vec![EMPTY; lines]);
        for line in &old {
            for (&name, &number) in line.names.iter().zip(&line.numbers) {
                if name != NO_NAME {
                    self.insert_at(self.home(name), name, number);
                }
            }
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
    use super::*;

    #[test]
    fn behaves_as_a_map_under_churn() {
        let mut table = OwnTable::new();
        let mut live = std::collections::VecDeque::new();
        for v in 1..60_000_u32 {
            table.reserve(1);
            assert!(table.insert_new(u64::from(v), v ^ 5));
            assert!(!table.insert_new(u64::from(v), 0));
            live.push_back(v);
            let drop_to = if v % 9_000 > 6_000 { 50 } else { usize::MAX };
            while live.len() > drop_to.min(4_000) {
                let old = u64::from(live.pop_front().unwrap());
                assert!(table.remove(old) && !table.remove(old));
                assert_eq!(table.find(old), None);
                table.reserve(0);
            }
        }
        assert_eq!((table.len, table.iter().count()), (live.len(), live.len()));
        for v in live {
            assert_eq!(table.find(u64::from(v)), Some(v ^ 5));
            assert!(table.remove(u64::from(v)));
        }
        assert!(table.lines.iter().all(|line| line.names == [NO_NAME; SLOTS] && line.overflow == 0));
    }
}
