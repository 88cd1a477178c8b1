//! The lines of a hash table for the writer alone, which grows and shrinks without ever being built anew as a whole.
//!
//! Lines lie in the order of the hashes that belong to them, in pieces of memory of a bounded size. To grow is to begin
//! another set of lines and to move what is in a few of the old ones with every event, those of the lowest hashes first.
//! Up to where that has come is the *frontier*: hashes below it are in the new lines, all others in the old ones. So a
//! look-up goes to one place, as it does while nothing moves, and old memory goes piece by piece as new memory comes.
//!
//! There are as many lines as a power of two, or half as many again: small tables double, large ones grow by half and by a
//! third in turn.

use smallvec::SmallVec;

use crate::raw::prefetch;
use crate::spread::line_of;
use crate::stats::step;

/// Lines of a piece of memory.
const PIECE: usize = 2048;
/// Lines that are moved for each entry that comes or goes while a table shrinks: an empty one is as small as a new one.
const SHRINKING_PACE: usize = 2;
/// Lines that are asked for before they are moved.
const AHEAD: usize = 8;
/// Tables of so few lines are moved at once: what each line has to take differs much among few.
const FEW: usize = 64;

/// Tables of fewer lines double when they are full: there time counts for more than memory.
const SMALL: usize = 1 << 18;

/// A line of a table: a cache line.
pub(in crate::writer) trait Line: Copy {
    const EMPTY: Self;
    /// Entries in two lines, on average, of a full table.
    const FULL_PAIR: usize;
    /// Lines that are moved for each entry that comes while the table grows. At one, one entry a line comes meanwhile, and
    /// must find room.
    const PACE: usize;
}

/// See the module's text.
pub(in crate::writer) struct Lines<L: Line> {
    /// Sides for the hashes from `frontier` on, and for all others: a look-up chooses without a branch, which no processor
    /// could predict.
    sides: [Side<L>; 2],
    frontier: u64,
    /// Lines of the upper side whose entries have moved.
    moved: usize,
    /// Bytes of all pieces.
    bytes: usize,
}

const UPPER: usize = 0;
const LOWER: usize = 1;

/// Side of a table: one set of lines.
pub(in crate::writer) struct Side<L: Line> {
    /// Pieces that there are: of the lower side up to the frontier, of the upper side from there on. Most tables are
    /// one piece: here it costs no look elsewhere.
    pieces: SmallVec<[Box<[L]>; 1]>,
    pub(in crate::writer) lines: usize,
    /// Bit at which what the table keeps of hashes begins; the table's own.
    pub(in crate::writer) shift: u32,
}

/// A line whose entries are to be moved.
pub(in crate::writer) struct LineMove<'t, L> {
    /// The piece of memory that it is in; entries that it had no room for are in the next lines of the piece, in the first
    /// ones after the last.
    pub(in crate::writer) piece: &'t mut [L],
    pub(in crate::writer) at: usize,
    /// The lowest and the largest hash that belong to it.
    pub(in crate::writer) first: u64,
    pub(in crate::writer) last: u64,
    /// Number of the hash's line among `lines` lines.
    pub(in crate::writer) line: usize,
    pub(in crate::writer) lines: usize,
    pub(in crate::writer) shift: u32,
}

impl<L: Line> Side<L> {
    fn none() -> Self {
        Self::of_so_many(0, 0)
    }

    /// Makes a side without any memory yet.
    fn of_so_many(lines: usize, shift: u32) -> Self {
        Self { pieces: SmallVec::with_capacity(lines.div_ceil(PIECE)), lines, shift }
    }

    /// A line in its piece of memory.
    #[inline]
    fn place(line: usize) -> (usize, usize) {
        (line / PIECE, line % PIECE)
    }

    /// The piece of memory that a hash belongs to, and the line in it.
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

    /// A line and the next, if they are in one piece of memory.
    #[inline]
    pub(in crate::writer) fn pair_mut(&mut self, line: usize) -> Option<&mut [L; 2]> {
        let (piece, at) = Self::place(line);
        self.pieces[piece][at..].first_chunk_mut()
    }

    /// Asks for a line that will soon be needed, if it is there.
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

    /// Makes pieces up to the one of a line; returns their bytes.
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

/// The lowest hash that belongs to a line among `lines` lines; none if there is no line with this number.
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

/// The least number of lines there can be that is not less than this.
fn at_least(lines: usize) -> usize {
    let power = lines.next_power_of_two();
    if lines <= power / 4 * 3 { power / 4 * 3 } else { power }
}

/// The next smaller number of lines that there can be.
fn fewer(lines: usize) -> usize {
    if lines.is_power_of_two() { (lines / 4 * 3).max(1) } else { lines / 3 * 2 }
}

/// Number of lines that `entries` entries need.
fn lines_for<L: Line>(entries: usize) -> usize {
    at_least((2 * entries).div_ceil(L::FULL_PAIR).max(1))
}

impl<L: Line> Lines<L> {
    /// Lines with room for `entries` entries.
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

    /// True if the bytes are what they must be.
    #[cfg(test)]
    pub(in crate::writer) fn is_counted(&self) -> bool {
        self.bytes == self.all().map(size_of_val::<[L]>).sum::<usize>()
    }

    fn all(&self) -> impl Iterator<Item = &[L]> {
        self.sides.iter().rev().flat_map(|side| &side.pieces).map(|piece| &**piece)
    }

    /// All lines there are, those that have moved among them, in which nothing is left.
    pub(in crate::writer) fn iter(&self) -> impl Iterator<Item = &L> {
        self.all().flatten()
    }

    /// The lines among which a hash is.
    #[inline]
    pub(in crate::writer) fn side(&self, hash: u64) -> &Side<L> {
        &self.sides[usize::from(hash < self.frontier)]
    }

    #[inline]
    pub(in crate::writer) fn side_mut(&mut self, hash: u64) -> &mut Side<L> {
        &mut self.sides[usize::from(hash < self.frontier)]
    }

    /// The line that a hash belongs to: the lowest hash of the next, none after the last, and the piece of memory it is in.
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

    /// Lines when all that is begun will be done.
    #[inline]
    fn lines(&self) -> usize {
        if self.is_moving() { self.sides[LOWER].lines } else { self.sides[UPPER].lines }
    }

    #[inline]
    fn room(&self) -> usize {
        self.lines() * L::FULL_PAIR / 2
    }

    /// True if the table of `len` entries has nothing to do before `more` come.
    #[inline]
    pub(in crate::writer) fn is_ready(&self, len: usize, more: usize) -> bool {
        !self.is_moving() && len + more <= self.room() && !self.is_too_large_for(len + more)
    }

    /// True if the next smaller number of lines would still be two fifths empty.
    #[inline]
    fn is_too_large_for(&self, len: usize) -> bool {
        len * 5 < self.room() * 2 && self.sides[UPPER].lines > 1
    }

    /// Makes room for `more` entries beside the `len` there are, or gives room back, as far as it is time for it now that
    /// `changed` have come or gone. `shift`: what the table keeps of hashes with that number of lines. `to` moves the
    /// entries of a line.
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
        // Growing has time until as many have come as there is room for: what goes meanwhile need not hurry it, unless so
        // much has gone that all of it was for nothing.
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

    /// Gives up a piece; returns whether there are more. There is nothing to be looked up after.
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
