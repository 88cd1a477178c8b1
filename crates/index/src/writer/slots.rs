//! A hash table for the writer alone: ten 32-bit words a cache line.
//!
//! A line has a 16-bit tag for each word and a count of the entries that wanted this line and found it full; those are
//! in the next line that had room. Look-ups go on to the next line only where that count is not zero: at the highest
//! load, kept up under any churn, one in two does.
//!
//! Keys are not stored: the caller says whether a word is the one it means. That costs it a few misses, so tags are
//! wide enough to make it nearly never in vain.

use crate::raw::{equal_lanes, prefetch};
use crate::spread::{line_after, line_of};

const SLOTS: usize = 10;
/// Entries in two lines, on average, of a full table.
const FULL_PAIR: usize = 13;

#[derive(Default, Clone)]
#[repr(align(64))]
struct Line {
    /// 0 for an empty slot.
    tags: [u16; SLOTS],
    /// Entries that are in later lines because this was full.
    overflow: u32,
    words: [u32; SLOTS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// See the module's text.
pub(super) struct Slots {
    lines: Vec<Line>,
}

impl Slots {
    /// Room for `entries` at a load of at most two thirds.
    pub(super) fn with_room_for(entries: usize) -> Self {
        Self { lines: vec![Line::default(); (2 * entries).div_ceil(FULL_PAIR).max(1)] }
    }

    /// How many entries it holds before it should grow.
    pub(super) fn room(&self) -> usize {
        self.lines.len() * FULL_PAIR / 2
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val::<[Line]>(&self.lines)
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        line_of(hash, self.lines.len())
    }

    #[inline]
    fn after(&self, line: usize) -> usize {
        line_after(line, self.lines.len())
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.lines[self.home(hash)]);
    }

    /// The first word under `hash` that `is_it` accepts. Words of other keys may be offered too.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.locate(hash, is_it).map(|(line, slot, _)| self.lines[line].words[slot])
    }

    /// Adds a word. The caller keeps the number of entries below [`Self::room`].
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, word: u32) {
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            let empty = line.marks(0);
            if empty != 0 {
                let slot = slot(empty);
                line.words[slot] = word;
                line.tags[slot] = tag(hash);
                return;
            }
            line.overflow += 1;
            at = self.after(at);
        }
    }

    /// Adds a word unless `is_it` accepts one that is there; returns whether it was added. The caller keeps the number
    /// of entries below [`Self::room`].
    #[inline]
    pub(super) fn insert_new(&mut self, hash: u64, word: u32, mut is_it: impl FnMut(u32) -> bool) -> bool {
        let home = self.home(hash);
        let line = &mut self.lines[home];
        if line.overflow == 0 {
            let mut marks = line.marks(tag(hash));
            while marks != 0 {
                if is_it(line.words[slot(marks)]) {
                    return false;
                }
                marks &= marks - 1;
            }
            let empty = line.marks(0);
            if empty != 0 {
                let slot = slot(empty);
                line.words[slot] = word;
                line.tags[slot] = tag(hash);
                return true;
            }
        }
        if self.locate(hash, is_it).is_some() {
            return false;
        }
        self.insert(hash, word);
        true
    }

    /// Takes the word that `is_it` accepts out; returns whether there was one.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, is_it: impl FnMut(u32) -> bool) -> bool {
        let Some((line, slot, distance)) = self.locate(hash, is_it) else { return false };
        self.lines[line].tags[slot] = 0;
        let mut at = self.home(hash);
        for _ in 0..distance {
            self.lines[at].overflow -= 1;
            at = self.after(at);
        }
        true
    }

    /// Line, slot, and lines from home.
    #[inline]
    fn locate(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<(usize, usize, usize)> {
        let mut at = self.home(hash);
        for distance in 0..self.lines.len() {
            let line = &self.lines[at];
            let mut marks = line.marks(tag(hash));
            while marks != 0 {
                let slot = slot(marks);
                if is_it(line.words[slot]) {
                    return Some((at, slot, distance));
                }
                marks &= marks - 1;
            }
            if line.overflow == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }
}

impl Line {
    /// Bit 2 i for each slot i with this tag.
    #[inline]
    fn marks(&self, tag: u16) -> u32 {
        let [a, b, c, d, e, f, g, h, y, z] = self.tags;
        equal_lanes([a, b, c, d, e, f, g, h], tag) | u32::from(y == tag) << 16 | u32::from(z == tag) << 18
    }
}

/// The tag of a hash: its low bits, never 0.
#[inline]
fn tag(hash: u64) -> u16 {
    (hash as u16).max(1)
}

/// The slot of the lowest mark.
#[inline]
fn slot(marks: u32) -> usize {
    marks.trailing_zeros() as usize / 2
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    fn hash(v: u32) -> u64 {
        kvatlas_testing::mix(u64::from(v))
    }

    #[test]
    fn behaves_as_a_set_under_churn_at_full_load() {
        for entries in [1, 6, 20, 600, 6_000] {
            let mut slots = Slots::with_room_for(entries);
            let mut live = std::collections::VecDeque::new();
            for v in 1..60_000 {
                slots.insert(hash(v), v);
                live.push_back(v);
                if live.len() == slots.room() {
                    for _ in 0..(v as usize % 300 + 1).min(live.len()) {
                        let old = live.pop_front().unwrap();
                        assert!(slots.remove(hash(old), |x| x == old));
                        assert!(!slots.remove(hash(old), |x| x == old));
                    }
                }
            }
            for &v in &live {
                assert_eq!(slots.find(hash(v), |x| x == v), Some(v));
            }
            for v in live {
                assert!(slots.remove(hash(v), |x| x == v));
            }
            assert!(slots.lines.iter().all(|line| line.tags == [0; SLOTS] && line.overflow == 0));
        }
    }
}
