//! Hash table for the writer alone, with ten 32-bit words per cache line.
//!
//! A line has a tag for each word, and the number of entries that belong to this line but found it full; these are in
//! the next line that had space. A look-up continues with the next line only if that number is not zero: with the most
//! entries, after any changes, one look-up in two does.
//!
//! Keys are not stored: the caller decides if a word is the wanted one. That costs a few cache misses, so tags are wide
//! enough to make wrong candidates rare.
//!
//! A tag is fifteen bits of the hash; its first two to seven are among those that choose the line. So a line and a tag
//! together determine the entry's line in a larger table, and entries are moved there without reading their keys. With
//! each doubling, one bit less of the tag distinguishes the entries of a line; once in six doublings the keys are read,
//! and tags start at a later bit.

use super::lines::{LineMove, Lines, Side, first_of};
use super::slot_lines::{ALL, FAR, FAR_AWAY, LATE, Line, OVERFLOW, SLOTS, insert, locate, slot, take};
use crate::raw::prefetch;
use crate::spread::{line_after, line_of};

/// Number of bits of an entry's hash that are stored in its tag, by which a line (a group of ten entries in one cache
/// line) is searched.
const BITS: u32 = 15;
/// Bit that is set in the tag (part of the hash) of every entry; the tag of an empty slot is 0.
const TAKEN: u16 = 1 << BITS;

/// Hash table of 32-bit words without keys; ten words are in one cache line.
pub(in crate::writer) struct Slots {
    lines: Lines<Line>,
    len: usize,
}

/// Number of bits by which a hash is shifted right so that its tag (the part stored with an entry) is in the lowest
/// bits, in a table of `lines` lines (groups of ten entries).
fn shift_for(lines: usize) -> u32 {
    let first_bit = lines.ilog2().checked_sub(7).map_or(0, |more| 5 + more / 6 * 6);
    u64::BITS - BITS - first_bit
}

/// Tag of a hash, by which a line (a group of ten entries) is searched: 15 bits of the hash after a shift to the right
/// by `shift`, with [`TAKEN`] set.
#[inline]
fn tag(hash: u64, shift: u32) -> u16 {
    (hash >> shift) as u16 | TAKEN
}

/// Lowest and highest hash with this tag (part of the hash) that belong to the line (a group of ten entries) whose
/// lowest hash is `first`.
#[inline]
fn hashes_of(first: u64, tag: u16, shift: u32) -> (u64, u64) {
    let unknown = (1 << shift) - 1;
    let bits = u64::from(tag & !TAKEN) << shift;
    let from = first & !unknown;
    let least = from.wrapping_add(bits.wrapping_sub(from) & (u64::MAX >> (u64::BITS - BITS - shift)));
    (least.max(first), least | unknown)
}

impl Slots {
    /// Creates an empty hash table.
    pub(in crate::writer) fn new() -> Self {
        Self { lines: Lines::with_room_for(0, shift_for), len: 0 }
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        self.lines.bytes()
    }

    /// True if the hash table's counts of its bytes and entries are correct, for tests.
    #[cfg(test)]
    pub(in crate::writer) fn is_counted(&self) -> bool {
        let taken = self.lines.iter().map(|line| line.tags.iter().filter(|tag| **tag != 0).count());
        self.lines.is_counted() && self.len == taken.sum::<usize>()
    }

    #[inline]
    pub(in crate::writer) fn prefetch(&self, hash: u64) {
        let (piece, at) = self.lines.side(hash).of(hash);
        prefetch(&piece[at]);
    }

    /// First word under `hash` that the predicate `is_it` accepts; None if there is none. Words of other keys may be
    /// passed to `is_it` as well.
    #[inline]
    pub(in crate::writer) fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let side = self.lines.side(hash);
        let (piece, home) = side.of(hash);
        let (line, slot, _) = locate(piece, home, tag(hash, side.shift), is_it)?;
        Some(piece[line].words[slot])
    }

    /// Adds a word under a hash to the table. There must be space for the word ([`Self::make_ready`]).
    #[inline]
    pub(in crate::writer) fn insert(&mut self, hash: u64, word: u32) {
        let side = self.lines.side_mut(hash);
        let tag = tag(hash, side.shift);
        let (piece, home) = side.of_mut(hash);
        insert(piece, home, tag, word);
        self.len += 1;
    }

    /// Adds a word to the hash table, unless `is_it` accepts a word under this hash; returns true if it was added.
    /// There must be space for it ([`Self::make_ready`]).
    #[inline]
    pub(in crate::writer) fn insert_new(&mut self, hash: u64, word: u32, mut is_it: impl FnMut(u32) -> bool) -> bool {
        let side = self.lines.side_mut(hash);
        let tag = tag(hash, side.shift);
        let (piece, home) = side.of_mut(hash);
        let line = &mut piece[home];
        if line.overflow() == 0 {
            let mut marks = line.marks(tag);
            while marks != 0 {
                if is_it(line.words[slot(marks)]) {
                    return false;
                }
                marks &= marks - 1;
            }
            let empty = line.marks(0);
            if empty != 0 {
                line.put(slot(empty), tag, word);
                self.len += 1;
                return true;
            }
        }
        if locate(piece, home, tag, is_it).is_some() {
            return false;
        }
        insert(piece, home, tag, word);
        self.len += 1;
        true
    }

    /// Removes from the hash table the word under a hash that `is_it` accepts; returns true if there was one.
    #[inline]
    pub(in crate::writer) fn remove(&mut self, hash: u64, is_it: impl FnMut(u32) -> bool) -> bool {
        let side = self.lines.side_mut(hash);
        let tag = tag(hash, side.shift);
        let (piece, home) = side.of_mut(hash);
        let Some((line, slot, distance)) = locate(piece, home, tag, is_it) else { return false };
        take(piece, home, (line, slot, distance));
        self.len -= 1;
        true
    }

    /// Grows or shrinks the table by some steps, as needed for `more` further words; `changed`: number of words added
    /// or removed since the last call. `hash_of` returns the hash of any word in the table.
    #[inline]
    pub(in crate::writer) fn make_ready(&mut self, more: usize, changed: usize, hash_of: impl Fn(u32) -> u64) {
        if !self.lines.is_ready(self.len, more) {
            let to = |from: LineMove<'_, Line>, lower: &mut Side<Line>| move_line(from, lower, &hash_of);
            self.lines.make_ready(self.len, more, changed, shift_for, to);
        }
    }
}

/// Moves all entries that belong to a line (a group of ten entries) to `to`, the set of lines that the hash table grows
/// or shrinks to.
#[inline]
fn move_line(mut from: LineMove<'_, Line>, to: &mut Side<Line>, hash_of: impl Fn(u32) -> u64) {
    if !move_within(&mut from, to) {
        move_one_by_one(&mut from, to, &hash_of);
    }
    if from.piece[from.at].overflow() > 0 {
        move_overflow(from, to, hash_of);
    }
}

/// Moves the entries in a line (a group of ten entries) at once, if they go to at most two lines of `to`, the table's
/// other set of lines, that have space, and their tags (parts of the hashes) tell to which one. Returns true if the
/// entries were moved, as in nearly all cases; moving entries one by one takes several times as long.
#[inline]
fn move_within(from: &mut LineMove<'_, Line>, to: &mut Side<Line>) -> bool {
    let old = &mut from.piece[from.at];
    let (low, high) = (to.line_of(from.first), to.line_of(from.last));
    if old.notes & ((1 << OVERFLOW) - 1) != 0 || to.shift != from.shift || high > low + 1 {
        return false;
    }
    let mut low_marks = !old.marks(0) & ALL;
    let mut high_marks = 0;
    if high > low
        && let Some(first) = first_of(high, to.lines)
    {
        let part = tag(first, to.shift);
        // A hash with this tag may belong to either, unless it is the lowest with this tag that parts them.
        if first << (u64::BITS - to.shift) != 0 && old.marks(part) != 0 {
            return false;
        }
        // Tags rise with the hashes that belong to one line.
        high_marks = low_marks & !old.lesser(part);
        low_marks &= !high_marks;
    }
    let Some(new) = to.pair_mut(low) else { return false };
    let empty = [new[0].marks(0), new[1].marks(0)];
    if low_marks.count_ones() > empty[0].count_ones() || high_marks.count_ones() > empty[1].count_ones() {
        return false;
    }
    for (new, (mut marks, mut empty)) in new.iter_mut().zip([(low_marks, empty[0]), (high_marks, empty[1])]) {
        while marks != 0 {
            let slot_of = slot(marks);
            new.put(slot(empty), old.tags[slot_of], old.words[slot_of]);
            (marks, empty) = (marks & (marks - 1), empty & (empty - 1));
        }
    }
    old.tags = [0; SLOTS];
    true
}

/// Moves the entries that belong to a line (a group of ten entries) to the other set of lines one by one, which works
/// for all lines.
#[cold]
#[inline(never)]
fn move_one_by_one(from: &mut LineMove<'_, Line>, to: &mut Side<Line>, hash_of: impl Fn(u32) -> u64) {
    let &mut LineMove { ref mut piece, at, first, shift, .. } = from;
    let Line { words, tags, notes } = piece[at];
    // All hashes first: where that is to wait for memory, it is for all of them at once.
    let mut hashes = [0; SLOTS];
    for ((hash, tag), word) in hashes.iter_mut().zip(tags).zip(words) {
        if tag != 0 {
            let (least, largest) = hashes_of(first, tag, shift);
            *hash = if is_known(to, shift, (least, largest)) { least } else { hash_of(word) };
        }
    }
    for slot in (0..SLOTS).filter(|&slot| tags[slot] != 0) {
        // What has wanted one of the last lines of the piece stays for now.
        if notes >> (LATE + slot as u32) & 1 == 0 {
            put(to, hashes[slot], words[slot]);
            piece[at].tags[slot] = 0;
        }
    }
}

/// True if an entry can be moved by its tag (part of its hash) alone, because all hashes with this tag belong to one
/// line (a group of ten entries) of `to`, the table's other set of lines, and determine the tag there. Otherwise the
/// key is needed: at the limits of lines, or if the tags in `to` start at a later bit.
fn is_known(to: &Side<Line>, shift: u32, (least, largest): (u64, u64)) -> bool {
    to.shift >= shift && to.line_of(least) == to.line_of(largest)
}

/// Moves the entries that belong to a line (a group of ten entries) but are in later lines, as the line was full, to
/// the other set of lines.
#[cold]
#[inline(never)]
fn move_overflow(from: LineMove<'_, Line>, to: &mut Side<Line>, hash_of: impl Fn(u32) -> u64) {
    let LineMove { piece, at, first, line, lines, shift, .. } = from;
    let (mut next, mut distance) = (at, 0);
    while piece[next].overflow() > 0 && distance + 1 < piece.len() {
        (next, distance) = (line_after(next, piece.len()), distance + 1);
        for slot in 0..SLOTS {
            let Line { tags, words, notes } = &piece[next];
            let (tag, word, notes) = (tags[slot], words[slot], notes >> slot);
            let is_far = notes >> FAR_AWAY & 1 == 1;
            if tag == 0 || notes >> LATE & 1 == 0 || distance >= FAR && !is_far {
                continue;
            }
            let (least, largest) = hashes_of(first, tag, shift);
            let is_told = !is_far && line_of(least, lines) == line_of(largest, lines);
            let is_known = is_told && (line_of(least, lines) != line || is_known(to, shift, (least, largest)));
            let hash = if is_known { least } else { hash_of(word) };
            if line_of(hash, lines) == line {
                put(to, hash, word);
                take(piece, at, (next, slot, distance));
            }
        }
    }
}

fn put(to: &mut Side<Line>, hash: u64, word: u32) {
    let tag = tag(hash, to.shift);
    let (piece, home) = to.of_mut(hash);
    insert(piece, home, tag, word);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;

    use super::*;
    use crate::stats::steps_of;

    fn hash(word: u32) -> u64 {
        kvatlas_testing::mix(u64::from(word))
    }

    #[test]
    fn behaves_as_a_set_while_it_grows_and_shrinks() {
        for most in [1, 6, 20, 600, 6_000, 40_000, 80_000] {
            let mut table = Slots::new();
            let mut live = VecDeque::new();
            for word in 1..100_000 {
                table.make_ready(1, 0, hash);
                if word % 2 == 0 {
                    table.insert(hash(word), word);
                } else {
                    assert!(table.insert_new(hash(word), word, |x| x == word));
                    assert!(!table.insert_new(hash(word), word, |x| x == word));
                }
                live.push_back(word);
                if live.len() == most {
                    for _ in 0..(word as usize % most + 1).min(live.len()) {
                        let old = live.pop_front().unwrap();
                        assert!(table.remove(hash(old), |x| x == old));
                        assert!(!table.remove(hash(old), |x| x == old));
                        assert_eq!(table.find(hash(old), |x| x == old), None);
                        table.make_ready(0, 1, hash);
                    }
                    assert!(table.is_counted());
                }
                if word % 1_000 == 0 {
                    assert!(live.iter().all(|&it| table.find(hash(it), |x| x == it) == Some(it)));
                }
            }
            for word in live {
                assert!(table.remove(hash(word), |x| x == word));
                table.make_ready(0, 1, hash);
            }
            assert!(table.is_counted() && table.bytes() < 200, "{} bytes", table.bytes());
            assert!(table.lines.iter().all(|line| line.notes == 0));
        }
    }

    #[test]
    fn no_change_is_longer_in_a_large_table_than_in_a_small_one() {
        let mut table = Slots::new();
        let (mut longest, looked_at) = (0, Cell::new(0));
        let hash_of = |word| {
            looked_at.set(looked_at.get() + 1);
            hash(word)
        };
        let words = 1..1_000_000;
        for word in words.clone() {
            let (steps, ()) = steps_of(|| table.make_ready(1, 0, hash_of));
            longest = longest.max(steps);
            table.insert(hash(word), word);
            if word % 4_096 == 0 {
                assert!(table.bytes() < 400_000 + 21 * word as usize, "{} bytes", table.bytes());
            }
        }
        let (growing, of) = (looked_at.replace(0), words.len());
        // Of the two or three times that each is moved, those are not a tenth in which its key was looked at.
        assert!(growing < of * 3 / 10, "{growing} looks at keys of {of}");
        for word in words {
            assert!(table.remove(hash(word), |x| x == word));
            longest = longest.max(steps_of(|| table.make_ready(0, 1, hash_of)).0);
        }
        assert!(looked_at.get() < of / 4, "{} looks at keys of {of}", looked_at.get());
        assert!(longest <= 2 * 96, "{longest} lines moved at once");
    }

    #[test]
    fn a_line_and_a_tag_tell_where_a_hash_belongs_in_other_tables() {
        for lines in [1, 2, 3, 4, 6, 48, 64, 1 << 20, 3 << 19] {
            for lines_of_tags in [1, lines / 64, lines / 4, lines].map(|lines| lines.max(1)) {
                let shift = shift_for(lines_of_tags);
                for word in 0..1_000 {
                    let hash = hash(word);
                    let line = line_of(hash, lines);
                    let first = first_of(line, lines).expect("a line");
                    assert_eq!(u128::from(first), ((line as u128) << 64).div_ceil(lines as u128));
                    let (least, largest) = hashes_of(first, tag(hash, shift), shift);
                    assert!(least <= hash && hash <= largest, "{lines} lines: {least:x} {hash:x} {largest:x}");
                    assert_eq!(least >> shift, largest >> shift);
                }
            }
        }
    }
}
