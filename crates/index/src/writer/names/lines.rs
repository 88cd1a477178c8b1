//! Lines of a hash table for the writer alone, which grows and shrinks in small steps without being rebuilt as a whole.
//!
//! Lines are in the order of the hashes that belong to them, in pieces of memory of a limited size. To grow, a table
//! starts a second set of lines and moves the entries of a few old lines with every event, those of the lowest hashes
//! first. The *frontier* is the hash up to which entries have moved: lower hashes are in the new lines, all others in
//! the old ones. So a look-up always reads one place, and old memory is freed piece by piece as new memory is
//! allocated.
//!
//! The number of lines is a power of two, or 1.5 times one: small tables double, large ones grow alternately by half
//! and by a third.

use smallvec::SmallVec;

use crate::raw::prefetch;
use crate::spread::line_of;
use crate::stats::step;

/// Number of lines (groups of entries, each in one cache line) of a hash table that are allocated together, as one
/// piece of memory.
const PIECE: usize = 2048;
/// Number of lines (groups of entries in one cache line) whose entries are moved for each added or removed entry while
/// a hash table shrinks. At this pace, an emptied table becomes as small as a new one.
const SHRINKING_PACE: usize = 2;
/// Number of lines (groups of entries in one cache line of a hash table) that are prefetched before their entries are
/// moved.
const AHEAD: usize = 8;
/// Number of lines (groups of entries in one cache line of a hash table) up to which all entries of the table are moved
/// in one step, as entries are unevenly distributed over few lines.
const FEW: usize = 64;

/// Number of lines (groups of entries in one cache line) below which a full hash table doubles, as time matters more
/// than memory in small tables.
const SMALL: usize = 1 << 18;

/// Line of a hash table: a group of entries that fills one cache line.
pub(in crate::writer) trait Line: Copy {
    const EMPTY: Self;
    /// Average number of entries in two lines (groups of entries in one cache line) at which a hash table counts as
    /// full.
    const FULL_PAIR: usize;
    /// Number of lines (groups of entries) moved for each added entry while the hash table grows. With a value of one,
    /// one entry per line is added during the growth, and must find space.
    const PACE: usize;
}

/// Lines of a hash table that grows and shrinks in small steps; each is a group of entries that fills one cache line.
pub(in crate::writer) struct Lines<L: Line> {
    /// Two sides of the hash table, which are sets of lines (groups of entries): one for the hashes from `frontier` on,
    /// and one for lower hashes. A look-up chooses a side without a branch instruction, which no processor could
    /// predict.
    sides: [Side<L>; 2],
    frontier: u64,
    /// Number of lines (groups of entries in one cache line) for higher hashes whose entries have moved to the set of
    /// lines for lower hashes, as the hash table grows or shrinks.
    moved: usize,
    /// Total size, in bytes, of all memory that the hash table has allocated for its lines (groups of entries in one
    /// cache line).
    bytes: usize,
}

const UPPER: usize = 0;
const LOWER: usize = 1;

/// Side of a hash table: one of the two sets of lines (groups of entries in one cache line) that exist while the
/// entries move from old to new lines.
pub(in crate::writer) struct Side<L: Line> {
    /// Allocated pieces of memory with lines (groups of entries): in the set for lower hashes those up to the frontier,
    /// the hash up to which entries have moved; in the set for higher hashes those from there on. Most tables have one
    /// piece, whose address is stored in place.
    pieces: SmallVec<[Box<[L]>; 1]>,
    pub(in crate::writer) lines: usize,
    /// Number of a hash's low bits that the hash table does not store with its entries: a tag consists of the bits
    /// above them. Chosen by the table.
    pub(in crate::writer) shift: u32,
}

/// Line (group of entries in one cache line of a hash table) whose entries are to be moved to the set of lines that the
/// table grows or shrinks to.
pub(in crate::writer) struct LineMove<'t, L> {
    /// Piece of memory that contains the line (group of entries), which is at index `at`. Entries that found the line
    /// full are in the following lines of the piece, continuing at its first line after the last one.
    pub(in crate::writer) piece: &'t mut [L],
    pub(in crate::writer) at: usize,
    /// Lowest hash whose entries belong to the line (group of entries) to be moved. `last`: highest of these hashes.
    pub(in crate::writer) first: u64,
    pub(in crate::writer) last: u64,
    /// Number of the line (group of entries) within its set of lines. `lines`: number of lines in this set.
    pub(in crate::writer) line: usize,
    pub(in crate::writer) lines: usize,
    pub(in crate::writer) shift: u32,
}

impl<L: Line> Side<L> {
    fn none() -> Self {
        Self::of_so_many(0, 0)
    }

    /// Creates a side of a hash table (one of its two sets of lines, groups of entries) for this number of lines,
    /// without allocating memory.
    fn of_so_many(lines: usize, shift: u32) -> Self {
        Self { pieces: SmallVec::with_capacity(lines.div_ceil(PIECE)), lines, shift }
    }

    /// Index of the piece of memory that contains a line (group of entries), and index of the line within the piece.
    #[inline]
    fn place(line: usize) -> (usize, usize) {
        (line / PIECE, line % PIECE)
    }

    /// Piece of memory that contains the line (group of entries) to which a hash belongs, and index of this line within
    /// the piece.
    #[inline]
    pub(in crate::writer) fn of(&self, hash: u64) -> (&[L], usize) {
        let (piece, at) = Self::place(line_of(hash, self.lines));
        (&self.pieces[piece], at)
    }

    #[inline]
    pub(in crate::writer) fn of_mut(&mut self, hash: u64) -> (&mut [L], usize) {
        let (piece, at) = Self::place(line_of(hash, self.lines));
        (&mut self.pieces[piece], at)
    }

    /// Two consecutive lines (groups of entries in one cache line), from the line with this number on; None if they are
    /// not in one piece of memory.
    #[inline]
    pub(in crate::writer) fn pair_mut(&mut self, line: usize) -> Option<&mut [L; 2]> {
        let (piece, at) = Self::place(line);
        self.pieces[piece][at..].first_chunk_mut()
    }

    /// Prefetches the line (group of entries in one cache line) with this number, if its memory is allocated.
    #[inline]
    fn ask_for(&self, line: usize) {
        let (piece, at) = Self::place(line);
        if let Some(it) = self.pieces.get(piece).and_then(|piece| piece.get(at)) {
            prefetch(it);
        }
    }

    #[inline]
    pub(in crate::writer) fn line_of(&self, hash: u64) -> usize {
        line_of(hash, self.lines)
    }

    /// Allocates all pieces of memory up to the one with this line (group of entries in one cache line); returns their
    /// size in bytes.
    #[inline]
    fn make_until(&mut self, line: usize) -> usize {
        let mut bytes = 0;
        while self.pieces.len() <= line / PIECE {
            let lines = (self.lines - self.pieces.len() * PIECE).min(PIECE);
            self.pieces.push(vec![L::EMPTY; lines].into());
            bytes += lines * size_of::<L>();
        }
        bytes
    }
}

/// Lowest hash that belongs to the line (group of entries) with this number in a hash table of `lines` lines; None for
/// the line after the last one.
#[inline]
pub(in crate::writer) fn first_of(line: usize, lines: usize) -> Option<u64> {
    // 2^64 / lines for each, rounded up, without a division of so large a number.
    let (line, power) = (line as u64, lines.trailing_zeros());
    let last = u64::MAX >> power;
    let (stretch, within) = match line {
        _ if line == lines as u64 => return None,
        _ if lines.is_power_of_two() => (line, 0),
        _ => (line / 3, [0, last / 3 + 1, last - last / 3 + 1][line as usize % 3]),
    };
    Some(stretch.checked_shl(u64::BITS - power).unwrap_or(0) + within)
}

/// Smallest number of lines (groups of entries in one cache line) that a hash table can have and that is at least
/// `lines`.
fn at_least(lines: usize) -> usize {
    let power = lines.next_power_of_two();
    if lines <= power / 4 * 3 { power / 4 * 3 } else { power }
}

/// Largest number of lines (groups of entries in one cache line) that a hash table can have and that is less than
/// `lines`.
fn fewer(lines: usize) -> usize {
    if lines.is_power_of_two() { (lines / 4 * 3).max(1) } else { lines / 3 * 2 }
}

/// Number of lines (groups of entries in one cache line) that a hash table with `entries` entries needs.
fn lines_for<L: Line>(entries: usize) -> usize {
    at_least((2 * entries).div_ceil(L::FULL_PAIR).max(1))
}

impl<L: Line> Lines<L> {
    /// Creates lines (groups of entries in one cache line) of a hash table for `entries` entries. The function `shift`
    /// returns, for a number of lines, how many low bits of a hash the table does not store with its entries.
    pub(in crate::writer) fn with_room_for(entries: usize, shift: impl FnOnce(usize) -> u32) -> Self {
        let lines = lines_for::<L>(entries);
        let mut upper = Side::of_so_many(lines, shift(lines));
        let bytes = upper.make_until(lines - 1);
        Self { sides: [upper, Side::none()], frontier: 0, moved: 0, bytes }
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        let lists = self.sides.iter().map(|side| &side.pieces).filter(|pieces| pieces.spilled());
        self.bytes + lists.map(SmallVec::capacity).sum::<usize>() * size_of::<Box<[L]>>()
    }

    /// True if the count of the bytes of all lines (groups of entries of the hash table) is correct, for tests.
    #[cfg(test)]
    pub(in crate::writer) fn is_counted(&self) -> bool {
        self.bytes == self.all().map(size_of_val::<[L]>).sum::<usize>()
    }

    fn all(&self) -> impl Iterator<Item = &[L]> {
        self.sides.iter().rev().flat_map(|side| &side.pieces).map(|piece| &**piece)
    }

    /// All allocated lines (groups of entries in one cache line of the hash table), including those whose entries have
    /// moved, which are empty.
    pub(in crate::writer) fn iter(&self) -> impl Iterator<Item = &L> {
        self.all().flatten()
    }

    /// Side of the hash table (one of its two sets of lines, groups of entries) to which a hash belongs.
    #[inline]
    pub(in crate::writer) fn side(&self, hash: u64) -> &Side<L> {
        &self.sides[usize::from(hash < self.frontier)]
    }

    #[inline]
    pub(in crate::writer) fn side_mut(&mut self, hash: u64) -> &mut Side<L> {
        &mut self.sides[usize::from(hash < self.frontier)]
    }

    /// Line (group of entries in one cache line) to which a hash belongs: the lowest hash of the next line (None for
    /// the last line), the piece of memory, and the line's index in it.
    pub(in crate::writer) fn line_at(&self, hash: u64) -> (Option<u64>, &[L], usize) {
        let side = self.side(hash);
        let line = side.line_of(hash);
        let next = first_of(line + 1, side.lines);
        // On the lower side, hashes end at the frontier; the line that it is in may be whole only later.
        let is_below = hash < self.frontier;
        let next = if is_below { Some(next.map_or(self.frontier, |next| next.min(self.frontier))) } else { next };
        let (piece, at) = Side::<L>::place(line);
        (next, &side.pieces[piece], at)
    }

    #[inline]
    pub(in crate::writer) fn is_moving(&self) -> bool {
        self.sides[LOWER].lines != 0
    }

    /// Number of lines (groups of entries in one cache line) that the hash table has after the current move of entries
    /// between its two sets of lines.
    #[inline]
    fn lines(&self) -> usize {
        if self.is_moving() { self.sides[LOWER].lines } else { self.sides[UPPER].lines }
    }

    #[inline]
    fn room(&self) -> usize {
        self.lines() * L::FULL_PAIR / 2
    }

    /// True if a hash table with `len` entries needs no work, such as growing, before `more` entries are added.
    #[inline]
    pub(in crate::writer) fn is_ready(&self, len: usize, more: usize) -> bool {
        !self.is_moving() && len + more <= self.room() && !self.is_too_large_for(len + more)
    }

    /// True if a hash table with `len` entries would still be at least two fifths empty with the next smaller number of
    /// lines (groups of entries).
    #[inline]
    fn is_too_large_for(&self, len: usize) -> bool {
        len * 5 < self.room() * 2 && self.sides[UPPER].lines > 1
    }

    /// Grows or shrinks the hash table by some steps, as needed for `more` entries in addition to the present `len`;
    /// `changed`: number of entries added or removed since the last call. The function `shift` returns, for a number of
    /// lines (groups of entries), how many low bits of a hash are not stored; `to` moves the entries of a line.
    #[cold]
    #[inline(never)]
    pub(in crate::writer) fn make_ready(
        &mut self,
        len: usize,
        more: usize,
        changed: usize,
        shift: impl Fn(usize) -> u32,
        mut to: impl FnMut(LineMove<'_, L>, &mut Side<L>),
    ) {
        // Growing must be complete only when as many entries were added as there is room for. Removals need not hurry
        // it, unless they leave too few entries for the larger table.
        let is_growing = self.sides[LOWER].lines > self.sides[UPPER].lines && !self.is_too_large_for(len + more);
        let mut due = if is_growing { L::PACE * more } else { SHRINKING_PACE * (more + changed) };
        loop {
            if self.is_moving() {
                let few =
                    self.sides[UPPER].lines <= FEW || 2 * due > self.sides[UPPER].lines || len + more > self.room();
                self.go_on(if few { usize::MAX } else { std::mem::take(&mut due) }, &mut to);
                if self.is_moving() {
                    return;
                }
            }
            let lines = if len + more > self.room() {
                let lines = lines_for::<L>(len + more);
                if lines < SMALL { lines.next_power_of_two() } else { lines }
            } else if self.is_too_large_for(len + more) {
                fewer(self.sides[UPPER].lines)
            } else {
                return;
            };
            self.sides[LOWER] = Side::of_so_many(lines, shift(lines));
        }
    }

    fn go_on(&mut self, lines: usize, to: &mut impl FnMut(LineMove<'_, L>, &mut Side<L>)) {
        let Self { sides: [upper, lower], frontier, moved, bytes } = self;
        let end = upper.lines.min(moved.saturating_add(lines));
        for line in *moved..end {
            step();
            let first = *frontier;
            let next = first_of(line + 1, upper.lines);
            let last = next.map_or(u64::MAX, |next| next - 1);
            *bytes += lower.make_until(lower.line_of(last));
            upper.ask_for(line + AHEAD);
            lower.ask_for(lower.line_of(first) + 2 * AHEAD);
            let (piece, at) = Side::<L>::place(line);
            let is_last = at + 1 == upper.pieces[piece].len();
            to(
                LineMove {
                    piece: &mut upper.pieces[piece],
                    at,
                    first,
                    last,
                    line,
                    lines: upper.lines,
                    shift: upper.shift,
                },
                lower,
            );
            if is_last {
                let done = std::mem::take(&mut upper.pieces[piece]);
                *bytes -= size_of_val::<[L]>(&done);
            }
            (*moved, *frontier) = (line + 1, next.unwrap_or(0));
        }
        if *moved == upper.lines {
            *upper = std::mem::replace(lower, Side::none());
            (*moved, *frontier) = (0, 0);
        }
    }

    /// Frees a part of the memory of the hash table; returns true if more is left. The table must not be searched
    /// afterwards.
    pub(in crate::writer) fn shed(&mut self) -> bool {
        for side in &mut self.sides {
            while let Some(piece) = side.pieces.pop() {
                self.bytes -= size_of_val::<[L]>(&piece);
                if !piece.is_empty() {
                    return true;
                }
            }
        }
        false
    }
}
