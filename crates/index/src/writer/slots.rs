//! One segment of a hash table for the writer alone: nine 32-bit words a cache line.
//!
//! A line has a 16-bit tag for each word and a count of the entries that wanted this line and found it full; those are
//! in the next line that had room. Look-ups go on to the next line only where that count is not zero: at the highest
//! load, kept up under any churn, one in two does.
//!
//! Keys are not stored: the caller says whether a word is the one it means. That costs it a few misses, so tags are
//! wide enough to make it rarely in vain. The line that an entry wants follows from its tag, so a segment grows and
//! shrinks without a look at the keys; eight more bits of each hash are there for whoever divides it.

use crate::raw::{equal_lanes, prefetch};
use crate::spread::line_after;
use crate::steps::step;

const SLOTS: usize = 9;
/// Entries in two lines, on average, of a full segment.
const FULL_PAIR: usize = 12;
/// Lines that are never given back.
const FEWEST: usize = 4;

/// More entries of one line in later lines than this are counted no more; that line stays full of them.
const MOST_OVERFLOW: u8 = u8::MAX;

#[derive(Default, Clone)]
#[repr(C, align(64))]
struct Line {
    words: [u32; SLOTS],
    /// 0 for an empty slot.
    tags: [u16; SLOTS],
    /// More of the hashes.
    more: [u8; SLOTS],
    /// Entries that are in later lines because this was full.
    overflow: u8,
}

/// What is kept of a hash.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// Never 0.
    pub(super) tag: u16,
    /// Bits that no look-up needs.
    pub(super) more: u8,
}

const _: () = assert!(size_of::<Line>() == 64);

/// See the module's text.
pub(super) struct Slots {
    lines: Box<[Line]>,
    len: u32,
}

impl Slots {
    /// Room for `entries` at a load of at most two thirds.
    pub(super) fn with_room_for(entries: usize) -> Self {
        Self { lines: vec![Line::default(); (2 * entries).div_ceil(FULL_PAIR).max(1)].into(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// How many entries it holds before it grows.
    pub(super) fn room(&self) -> usize {
        self.lines.len() * FULL_PAIR / 2
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val::<[Line]>(&self.lines)
    }

    /// Whether so many entries are neither too many for it nor too few.
    #[inline]
    pub(super) fn fits(&self, entries: usize) -> bool {
        entries <= self.room() && (entries * 4 >= self.room() || self.lines.len() <= FEWEST)
    }

    /// What is kept of hashes, and words, in the order of lines.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Kept, u32)> {
        let slots = self.lines.iter().flat_map(|line| line.tags.into_iter().zip(line.more).zip(line.words));
        let kept = slots.map(|((tag, more), word)| (Kept { tag, more }, word));
        kept.inspect(|_| step()).filter(|(kept, _)| kept.tag != 0)
    }

    #[inline]
    fn home(&self, tag: u16) -> usize {
        (usize::from(tag) * self.lines.len()) >> u16::BITS
    }

    #[inline]
    pub(super) fn prefetch(&self, tag: u16) {
        prefetch(&self.lines[self.home(tag)]);
    }

    /// The first word under `tag` that `is_it` accepts. Words of other keys may be offered too.
    #[inline]
    pub(super) fn find(&self, tag: u16, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.locate(tag, is_it).map(|(line, slot, _)| self.lines[line].words[slot])
    }

    /// Adds a word. There must be room ([`Self::fits`]).
    #[inline]
    pub(super) fn insert(&mut self, kept: Kept, word: u32) {
        self.len += 1;
        let mut at = self.home(kept.tag);
        loop {
            let line = &mut self.lines[at];
            let empty = line.marks(0);
            if empty != 0 {
                line.put(slot(empty), kept, word);
                return;
            }
            line.overflow = line.overflow.saturating_add(1);
            at = line_after(at, self.lines.len());
        }
    }

    /// Adds a word unless `is_it` accepts one that is there; returns whether it was added. There must be room.
    #[inline]
    pub(super) fn insert_new(&mut self, kept: Kept, word: u32, mut is_it: impl FnMut(u32) -> bool) -> bool {
        let home = self.home(kept.tag);
        let line = &mut self.lines[home];
        if line.overflow == 0 {
            let mut marks = line.marks(kept.tag);
            while marks != 0 {
                if is_it(line.words[slot(marks)]) {
                    return false;
                }
                marks &= marks - 1;
            }
            let empty = line.marks(0);
            if empty != 0 {
                line.put(slot(empty), kept, word);
                self.len += 1;
                return true;
            }
        }
        if self.locate(kept.tag, is_it).is_some() {
            return false;
        }
        self.insert(kept, word);
        true
    }

    /// Takes the word that `is_it` accepts out; returns whether there was one.
    #[inline]
    pub(super) fn remove(&mut self, tag: u16, is_it: impl FnMut(u32) -> bool) -> bool {
        let Some((line, slot, distance)) = self.locate(tag, is_it) else { return false };
        self.lines[line].tags[slot] = 0;
        self.len -= 1;
        let mut at = self.home(tag);
        for _ in 0..distance {
            let overflow = &mut self.lines[at].overflow;
            *overflow -= u8::from(*overflow < MOST_OVERFLOW);
            at = line_after(at, self.lines.len());
        }
        true
    }

    /// Line, slot, and lines from home.
    #[inline]
    fn locate(&self, tag: u16, mut is_it: impl FnMut(u32) -> bool) -> Option<(usize, usize, usize)> {
        let mut at = self.home(tag);
        for distance in 0..self.lines.len() {
            let line = &self.lines[at];
            let mut marks = line.marks(tag);
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
            at = line_after(at, self.lines.len());
        }
        None
    }
}

impl Line {
    /// Bit 2 i for each slot i with this tag.
    #[inline]
    fn marks(&self, tag: u16) -> u32 {
        let [a, b, c, d, e, f, g, h, z] = self.tags;
        equal_lanes([a, b, c, d, e, f, g, h], tag) | u32::from(z == tag) << 16
    }

    #[inline]
    fn put(&mut self, slot: usize, kept: Kept, word: u32) {
        self.words[slot] = word;
        self.tags[slot] = kept.tag;
        self.more[slot] = kept.more;
    }
}

/// The tag of a hash: its low bits, never 0.
#[inline]
pub(super) fn tag(hash: u64) -> u16 {
    (hash as u16).max(1)
}

/// The slot of the lowest mark.
#[inline]
fn slot(marks: u32) -> usize {
    marks.trailing_zeros() as usize / 2
}
