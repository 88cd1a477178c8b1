//! Hash table from block hash to position (a run of blocks and an offset in it), for one holder (a rank's cache).
//! Unlike the shared table, it contains the block hashes.
//!
//! A line is a cache line: five block hashes, the numbers of their positions, and the number of entries that belong to
//! this line but found it full; these are in the next line that had space. The number decreases again when one of them
//! is removed, so there are no tombstones.
//!
//! The shared table leaves the block hashes to the runs, where they are close to the data that a look-up needs next.
//! The block hashes of one holder are stored nowhere else, and storing them outside the table would cost three more
//! cache misses.

use super::lines::{LineMove, Lines, Side};
use crate::position::NO_NAME;
use crate::raw::prefetch;
use crate::spread::{Secret, line_after, line_of};
use crate::stats::step;

const SLOTS: usize = 5;
/// Number of block hashes for which memory of the hash table is prefetched before they are looked up, about as many as
/// a core can wait for at once.
const AHEAD: usize = 16;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    /// Block hashes in the line (a group of five entries in one cache line of the hash table); [`NO_NAME`] in an empty
    /// slot.
    names: [u64; SLOTS],
    numbers: [u32; SLOTS],
    /// Number of entries that belong to this line (a group of five entries) and are in later lines because this line
    /// was full.
    overflow: u32,
}

const _: () = assert!(size_of::<Line>() == 64);

impl super::lines::Line for Line {
    const EMPTY: Self = Self { names: [NO_NAME; SLOTS], numbers: [0; SLOTS], overflow: 0 };
    const FULL_PAIR: usize = 8;
    const PACE: usize = 2;
}

/// Hash table of the block hashes of one holder (a rank's cache) and the numbers of their positions (run and offset).
pub(in crate::writer) struct OwnTable {
    lines: Lines<Line>,
    len: usize,
    secret: Secret,
}

impl OwnTable {
    /// Creates an empty table with space for `names` block hashes.
    pub(in crate::writer) fn with_room_for(names: usize) -> Self {
        Self { lines: Lines::with_room_for(names, |_| 0), len: 0, secret: Secret::new() }
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        self.lines.bytes()
    }

    /// True if the table's counts of its bytes and block hashes are correct, for tests.
    #[cfg(test)]
    pub(in crate::writer) fn is_counted(&self) -> bool {
        self.lines.is_counted() && self.len == self.iter().count()
    }

    /// Frees a part of the memory of this table of block hashes; returns true if more is left. The table must not be
    /// searched afterwards.
    pub(in crate::writer) fn shed(&mut self) -> bool {
        self.lines.shed()
    }

    #[inline]
    fn hash(&self, name: u64) -> u64 {
        self.secret.mix(name, 0)
    }

    #[inline]
    fn prefetch_one(&self, name: u64) {
        let hash = self.hash(name);
        let (piece, at) = self.lines.side(hash).of(hash);
        prefetch(&piece[at]);
    }

    /// Prefetches the memory of the hash table for the first block hashes of a list, before they are looked up one by
    /// one.
    #[inline]
    pub(in crate::writer) fn prefetch_first(&self, names: &[u64]) {
        names.iter().take(AHEAD).for_each(|&name| self.prefetch_one(name));
    }

    /// Prefetches the memory of the hash table for a block hash that will be looked up soon. Call it for each `i`
    /// before `names[i]` is looked up, after one call of `prefetch_first`.
    #[inline]
    pub(in crate::writer) fn prefetch(&self, names: &[u64], i: usize) {
        if let Some(&name) = names.get(i + AHEAD) {
            self.prefetch_one(name);
        }
    }

    /// All block hashes in the table, each with the number of its position (run of blocks and offset).
    pub(in crate::writer) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let entries = self.lines.iter().flat_map(|line| line.names.iter().copied().zip(line.numbers));
        entries.filter(|(name, _)| *name != NO_NAME)
    }

    /// Calls `f` with about `names` block hashes and the numbers of their positions (run and offset), from a place in
    /// the table on, at least those of one line (a cache line of slots). Returns the next place, or None at the end. The first place is 0.
    /// Block hashes that are in the table from the first call to the last one are all visited, whatever changes in
    /// between: places are hashes, which stay the same while the table grows and shrinks.
    pub(in crate::writer) fn some_from(&self, place: u64, names: usize, mut f: impl FnMut(u64, u32)) -> Option<u64> {
        let mut place = place;
        for _ in 0..names.div_ceil(SLOTS).max(1) {
            let (next, piece, home) = self.lines.line_at(place);
            let (mut at, mut distance) = (home, 0);
            loop {
                step();
                let line = &piece[at];
                for (&name, &number) in line.names.iter().zip(&line.numbers) {
                    let is_of_line = |hash| hash >= place && next.is_none_or(|next| hash < next);
                    if name != NO_NAME && is_of_line(self.hash(name)) {
                        f(name, number);
                    }
                }
                distance += 1;
                if line.overflow == 0 || distance == piece.len() {
                    break;
                }
                at = line_after(at, piece.len());
            }
            place = next?;
        }
        Some(place)
    }

    #[inline]
    pub(in crate::writer) fn find(&self, name: u64) -> Option<u32> {
        let hash = self.hash(name);
        let (piece, home) = self.lines.side(hash).of(hash);
        let (line, slot, _) = locate(piece, home, name)?;
        Some(piece[line].numbers[slot])
    }

    /// Adds a block hash unless it is in the table; returns true if it was added. `number`: number of its block's
    /// position (run of blocks and offset). There must be space ([`Self::make_ready`]).
    #[inline]
    pub(in crate::writer) fn insert_new(&mut self, name: u64, number: u32) -> bool {
        let hash = self.hash(name);
        let (piece, home) = self.lines.side_mut(hash).of_mut(hash);
        let line = &mut piece[home];
        let (hits, empty) = (line.marks(name), line.marks(NO_NAME));
        if hits != 0 || line.overflow > 0 && locate(piece, home, name).is_some() {
            return false;
        }
        self.len += 1;
        if empty == 0 {
            insert(piece, home, name, number);
        } else {
            let (line, slot) = (&mut piece[home], empty.trailing_zeros() as usize);
            (line.names[slot], line.numbers[slot]) = (name, number);
        }
        true
    }

    /// Removes a block hash from the table; returns true if the table contained it.
    #[inline]
    pub(in crate::writer) fn remove(&mut self, name: u64) -> bool {
        let hash = self.hash(name);
        let (piece, home) = self.lines.side_mut(hash).of_mut(hash);
        let Some(it) = locate(piece, home, name) else { return false };
        take(piece, home, it);
        self.len -= 1;
        true
    }

    /// Grows or shrinks the table by some steps, as needed for `more` further block hashes; `changed`: number of block
    /// hashes added or removed since the last call.
    #[inline]
    pub(in crate::writer) fn make_ready(&mut self, more: usize, changed: usize) {
        if !self.lines.is_ready(self.len, more) {
            let secret = self.secret;
            let to = |from: LineMove<'_, Line>, lower: &mut Side<Line>| move_line(from, lower, secret);
            self.lines.make_ready(self.len, more, changed, |_| 0, to);
        }
    }
}

/// Moves all entries that belong to a line (a group of five entries) to `to`, the set of lines that the hash table
/// grows or shrinks to. `secret`: key of the hash function.
fn move_line(from: LineMove<'_, Line>, to: &mut Side<Line>, secret: Secret) {
    let LineMove { piece, at, line, lines, .. } = from;
    let (mut next, mut distance) = (at, 0);
    loop {
        for slot in 0..SLOTS {
            let (name, number) = (piece[next].names[slot], piece[next].numbers[slot]);
            let hash = secret.mix(name, 0);
            if name != NO_NAME && line_of(hash, lines) == line {
                let (lower, home) = to.of_mut(hash);
                insert(lower, home, name, number);
                take(piece, at, (next, slot, distance));
            }
        }
        if piece[next].overflow == 0 || distance + 1 == piece.len() {
            return;
        }
        (next, distance) = (line_after(next, piece.len()), distance + 1);
    }
}

/// Finds a block hash in a piece of the hash table. Returns its line (a group of five entries), its slot (place in the
/// line), and the number of lines between the line to which its hash belongs, `home`, and the line where it is.
#[inline]
fn locate(piece: &[Line], home: usize, name: u64) -> Option<(usize, usize, usize)> {
    let mut at = home;
    for distance in 0..piece.len() {
        let line = &piece[at];
        if let Some(slot) = line.slot(name) {
            return Some((at, slot, distance));
        }
        if line.overflow == 0 {
            return None;
        }
        at = line_after(at, piece.len());
    }
    None
}

#[inline]
fn insert(piece: &mut [Line], home: usize, name: u64, number: u32) {
    let mut at = home;
    loop {
        let line = &mut piece[at];
        if let Some(slot) = line.slot(NO_NAME) {
            (line.names[slot], line.numbers[slot]) = (name, number);
            return;
        }
        line.overflow += 1;
        at = line_after(at, piece.len());
        assert!(at != home, "there is room");
    }
}

/// Empties a slot (place in a line, a group of five entries), given its line, its index, and the number of lines
/// between the line to which the entry belongs, `home`, and this line.
#[inline]
fn take(piece: &mut [Line], home: usize, (line, slot, distance): (usize, usize, usize)) {
    piece[line].names[slot] = NO_NAME;
    let mut at = home;
    for _ in 0..distance {
        piece[at].overflow -= 1;
        at = line_after(at, piece.len());
    }
}

impl Line {
    /// Bit mask of the slots of the line (a group of five entries of the hash table) with this block hash: bit i for
    /// slot i.
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
    use std::collections::{BTreeMap, VecDeque};

    use super::*;
    use crate::stats::steps_of;

    #[test]
    fn behaves_as_a_map_while_it_grows_and_shrinks() {
        for (most, room) in [(1, 0), (50, 0), (600, 70_000), (4_000, 3_000), (40_000, 0), (90_000, 0)] {
            let mut table = OwnTable::with_room_for(room);
            let mut live = VecDeque::new();
            let mut longest = 0;
            for v in 1..100_000_u32 {
                longest = longest.max(steps_of(|| table.make_ready(1, 0)).0);
                assert!(table.insert_new(u64::from(v), v ^ 5));
                assert!(!table.insert_new(u64::from(v), 0));
                live.push_back(v);
                if live.len() == most {
                    for _ in 0..(v as usize % most + 1).min(live.len()) {
                        let old = u64::from(live.pop_front().unwrap());
                        assert!(table.remove(old) && !table.remove(old));
                        assert_eq!(table.find(old), None);
                        longest = longest.max(steps_of(|| table.make_ready(0, 1)).0);
                    }
                    assert!(table.is_counted());
                }
                if v % 1_000 == 0 {
                    assert!(live.iter().all(|&v| table.find(u64::from(v)) == Some(v ^ 5)));
                }
            }
            let mut slices = BTreeMap::new();
            let mut place = Some(0);
            while let Some(from) = place {
                place = table.some_from(from, 7, |name, number| assert_eq!(slices.insert(name, number), None));
            }
            let all: BTreeMap<_, _> = table.iter().collect();
            assert_eq!(slices, all);
            assert_eq!(all, live.iter().map(|&v| (u64::from(v), v ^ 5)).collect());
            for v in live {
                assert_eq!(table.find(u64::from(v)), Some(v ^ 5));
                assert!(table.remove(u64::from(v)));
                table.make_ready(0, 1);
            }
            // The remaining lines are freed in as many steps as they had room for entries.
            (0..2 * room + 10_000).for_each(|_| table.make_ready(0, 1));
            assert!(table.is_counted() && table.bytes() < 200, "{} bytes", table.bytes());
            assert!(table.lines.iter().all(|line| line.names == [NO_NAME; SLOTS] && line.overflow == 0));
            assert!(longest <= 2 * 96, "{longest} lines moved at once, whatever the size of all");
        }
    }
    /// Checks that a reader, which reads a few lines (groups of entries) at a time, finds all entries that stay, while
    /// others are added and removed and the table grows and shrinks.
    #[test]
    fn what_stays_is_found_in_slices() {
        for (most, pace) in [(300, 3), (5_000, 20), (5_000, 400)] {
            let mut table = OwnTable::with_room_for(0);
            let put = |table: &mut OwnTable, name: u64| {
                table.make_ready(1, 0);
                assert!(table.insert_new(name, name as u32));
            };
            (0..100).for_each(|name| put(&mut table, name));
            let (mut found, mut place) = (std::collections::BTreeSet::new(), Some(0));
            let (mut next, mut oldest, mut grows) = (1_000, 1_000, true);
            while let Some(from) = place {
                for _ in 0..pace {
                    if grows {
                        put(&mut table, next);
                        next += 1;
                    } else {
                        assert!(table.remove(oldest));
                        table.make_ready(0, 1);
                        oldest += 1;
                    }
                    grows = if next - oldest >= most { false } else { grows || next == oldest };
                }
                place = table.some_from(from, 1, |name, number| {
                    assert_eq!(name as u32, number);
                    found.insert(name);
                });
            }
            assert!((0..100).all(|name| found.contains(&name)), "{most} {pace}");
        }
    }
}
