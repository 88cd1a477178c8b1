//! Lines of a hash table of 32-bit words: groups of ten words, each in one cache line. An entry that finds its line
//! full is put into a later line.

use crate::raw::{equal_lanes, lesser_lanes};
use crate::spread::line_after;

pub(in crate::writer) const SLOTS: usize = 10;
/// Bit mask with the bits of all slots (places for words in a line, a group of ten words), as used by the methods of
/// [`Line`].
pub(in crate::writer) const ALL: u32 = 0x5_5555;
/// Distance, in lines (groups of ten entries), between the line to which an entry's hash belongs and the later line
/// where the entry is, from which on the stored part of the hash no longer tells to which line the entry belongs.
pub(in crate::writer) const FAR: usize = 4;
/// Indexes of the first bits of the three parts of [`Line::notes`]. `LATE`: for each slot (place in the line), a bit
/// that is set if the entry belongs to an earlier line. `FAR_AWAY`: for each slot, a bit that is set if that line is
/// [`FAR`] or more lines away, or at the end of the piece of memory. `OVERFLOW`: number of entries that belong to this
/// line and are in later lines because it was full.
pub(in crate::writer) const LATE: u32 = 0;
pub(in crate::writer) const FAR_AWAY: u32 = SLOTS as u32;
pub(in crate::writer) const OVERFLOW: u32 = 2 * SLOTS as u32;
pub(in crate::writer) const MOST_OVERFLOW: u32 = u32::MAX >> OVERFLOW;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::writer) struct Line {
    pub(in crate::writer) words: [u32; SLOTS],
    /// Tags of the slots (places for words in the line, a group of ten words), each a part of an entry's hash; 0 for an
    /// empty slot.
    pub(in crate::writer) tags: [u16; SLOTS],
    pub(in crate::writer) notes: u32,
}

const _: () = assert!(size_of::<Line>() == 64);

impl super::lines::Line for Line {
    const EMPTY: Self = Self { words: [0; SLOTS], tags: [0; SLOTS], notes: 0 };
    const FULL_PAIR: usize = 13;
    const PACE: usize = 1;
}

/// Finds the word under the tag `tag` (part of a hash) that `is_it` accepts. Returns its line (a group of ten words),
/// its slot (place in the line), and the number of lines between the line to which its hash belongs, `home`, and the
/// line where it is.
#[inline]
pub(in crate::writer) fn locate(
    piece: &[Line],
    home: usize,
    tag: u16,
    mut is_it: impl FnMut(u32) -> bool,
) -> Option<(usize, usize, usize)> {
    let mut at = home;
    for distance in 0..piece.len() {
        let line = &piece[at];
        let mut marks = line.marks(tag);
        while marks != 0 {
            let slot = slot(marks);
            if is_it(line.words[slot]) {
                return Some((at, slot, distance));
            }
            marks &= marks - 1;
        }
        if line.overflow() == 0 {
            return None;
        }
        at = line_after(at, piece.len());
    }
    None
}

#[inline]
pub(in crate::writer) fn insert(piece: &mut [Line], home: usize, tag: u16, word: u32) {
    let line = &mut piece[home];
    let empty = line.marks(0);
    if empty == 0 {
        return insert_late(piece, home, tag, word);
    }
    line.put(slot(empty), tag, word);
}

#[cold]
#[inline(never)]
pub(in crate::writer) fn insert_late(piece: &mut [Line], home: usize, tag: u16, word: u32) {
    let (mut at, mut distance) = (home, 0);
    loop {
        piece[at].one_more_past();
        (at, distance) = (line_after(at, piece.len()), distance + 1);
        assert!(at != home, "there is room");
        let line = &mut piece[at];
        let empty = line.marks(0);
        if empty != 0 {
            let (slot, is_far) = (slot(empty), distance >= FAR || at < home);
            line.put(slot, tag, word);
            line.notes |= 1 << (LATE + slot as u32) | u32::from(is_far) << (FAR_AWAY + slot as u32);
            return;
        }
    }
}

/// Empties a slot (place in a line, a group of ten words), given its line, its index, and the number of lines between
/// the line to which the entry belongs, `home`, and this line.
#[inline]
pub(in crate::writer) fn take(piece: &mut [Line], home: usize, (line, slot, distance): (usize, usize, usize)) {
    piece[line].tags[slot] = 0;
    if distance > 0 {
        piece[line].notes &= !(1 << (LATE + slot as u32) | 1 << (FAR_AWAY + slot as u32));
        let mut at = home;
        for _ in 0..distance {
            piece[at].one_less_past();
            at = line_after(at, piece.len());
        }
    }
}

impl Line {
    #[inline]
    pub(in crate::writer) fn put(&mut self, slot: usize, tag: u16, word: u32) {
        (self.tags[slot], self.words[slot]) = (tag, word);
    }

    /// Number of entries that belong to this line (a group of ten entries) and are in later lines because this line was
    /// full.
    #[inline]
    pub(in crate::writer) fn overflow(&self) -> u32 {
        self.notes >> OVERFLOW
    }

    pub(in crate::writer) fn one_more_past(&mut self) {
        if self.overflow() < MOST_OVERFLOW {
            self.notes += 1 << OVERFLOW;
        }
    }

    /// Decrements the number of entries that belong to this line (a group of ten entries) but are in later lines. If
    /// the number has ever reached its maximum, it stays there, and the line is treated as full until its entries move.
    pub(in crate::writer) fn one_less_past(&mut self) {
        if self.overflow() < MOST_OVERFLOW {
            self.notes -= 1 << OVERFLOW;
        }
    }

    /// Bit mask of the slots of the line (a group of ten entries) with this tag (part of a hash): bit 2 i for slot i.
    #[inline]
    pub(in crate::writer) fn marks(&self, tag: u16) -> u32 {
        let [a, b, c, d, e, f, g, h, y, z] = self.tags;
        equal_lanes([a, b, c, d, e, f, g, h], tag) | u32::from(y == tag) << 16 | u32::from(z == tag) << 18
    }

    /// Bit mask of the slots of the line (a group of ten entries) with a smaller tag (part of a hash): bit 2 i for slot
    /// i. Bits of empty slots are undefined.
    #[inline]
    pub(in crate::writer) fn lesser(&self, tag: u16) -> u32 {
        // All tags have their highest bit: as signed numbers they are in the same order.
        let [a, b, c, d, e, f, g, h, y, z] = self.tags.map(u16::cast_signed);
        let tag = tag.cast_signed();
        lesser_lanes([a, b, c, d, e, f, g, h], tag) | u32::from(y < tag) << 16 | u32::from(z < tag) << 18
    }
}

/// Slot (place in a line, a group of ten entries) of the lowest bit set in `marks`, a bit mask with bit 2 i for slot i.
#[inline]
pub(in crate::writer) fn slot(marks: u32) -> usize {
    marks.trailing_zeros() as usize / 2
}
