//! Hash table that can be read while it changes. A lookup usually reads one cache line, and entries never move.
//!
//! **Protocol.** One writer inserts, replaces and removes by single stores of words while any number of readers search.
//! A line holds seven 64-bit values, a tag byte for each, and the number of entries that belong to this line but found
//! it full (the layout of folly's F14, with this overflow count instead of tombstones). Keys are not stored: the caller
//! decides if a value is the wanted one, which it has to read anyway. Entries never move and a removal leaves no trace,
//! so readers may search while the writer inserts and removes: an entry that is there all the time is always found.
//!
//! The table does not grow by itself: its owner builds a larger one.
//!
//! **Invariants.** The value of an empty slot is never passed to a reader: the memory that it points to may be freed. A
//! value is in its slot before its tag is in the line, and its tag is removed before the value's memory may be freed.
//! An overflow count is never less than the number of entries that passed its line, and is exact when the writer has
//! returned. Only the holder of the writer's token changes a table.
//!
//! **Checked by** the tests and the loom models below (`make loom`), and by Miri (`make miri`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::boxes::WriterToken;
#[cfg(not(loom))]
use super::zeroed::{Zeroable, ZeroedList};
use crate::spread::{line_after, line_of};
use crate::sync::{AtomicU64, Ordering};

const SLOTS: usize = 7;
/// Average number of entries per line (a group of seven entries in one cache line) at which a hash table counts as
/// full.
const FULL: usize = 4;
const LOW: u64 = 0x0001_0101_0101_0101;
const HIGH: u64 = LOW << 7;
/// Value added to a line's word for each entry that found the line (a group of seven entries) full: one, in the word's
/// top byte, the overflow count. Entries beyond the maximum of this byte are counted in `beyond`.
const ONE_OVERFLOW: u64 = 1 << 56;
const MAX_OVERFLOW: u64 = 255;

#[cfg_attr(loom, derive(Default))]
#[repr(align(64))]
struct Line {
    /// Tags of the line's slots (places for entries) in bytes 0 to 6, each a byte of the entry's hash, or 0 for an
    /// empty slot; in byte 7 the number of entries that found the line full.
    meta: AtomicU64,
    slots: [AtomicU64; SLOTS],
}

// SAFETY: it consists of atomic integers.
#[cfg(not(loom))]
unsafe impl Zeroable for Line {}

/// Lines of a hash table, each a group of seven entries in one cache line: a plain list under the model checker loom,
/// as its atomics cannot be made from zeros.
#[cfg(loom)]
type Lines = Box<[Line]>;
#[cfg(not(loom))]
type Lines = ZeroedList<Line>;

/// Hash table for one writer and many readers, with 64-bit values and without keys.
pub(crate) struct Table {
    lines: Lines,
    /// Number of entries that found their line (a group of seven entries) full, for each line, as far as this number
    /// exceeds the [`MAX_OVERFLOW`] that the line itself can count. Used only by the writer, and empty unless many
    /// different keys have equal hashes.
    beyond: Mutex<HashMap<usize, u64>>,
}

impl Table {
    /// Creates a table for `entries` entries, with at most four sevenths of its slots in use. Entries that once found
    /// their line (a group of seven slots) full stay in another line, and with more slots in use they would be far from
    /// their lines.
    pub(crate) fn with_room_for(entries: usize) -> Self {
        let lines = entries.div_ceil(FULL).max(1);
        #[cfg(loom)]
        let lines = (0..lines).map(|_| Line::default()).collect();
        #[cfg(not(loom))]
        let lines = ZeroedList::new(lines);
        Self { lines, beyond: Mutex::default() }
    }

    /// Frees a part of the memory of this hash table; returns true if more is left. The table must not be searched
    /// afterwards.
    pub(crate) fn shed(&mut self) -> bool {
        #[cfg(loom)]
        return !std::mem::take(&mut self.lines).is_empty();
        #[cfg(not(loom))]
        self.lines.shed()
    }

    /// Number of entries at which the hash table should be replaced by a larger one.
    pub(crate) fn room(&self) -> usize {
        self.lines.len() * FULL
    }

    pub(crate) fn bytes(&self) -> usize {
        #[cfg(loom)]
        return size_of_val::<[Line]>(&self.lines);
        #[cfg(not(loom))]
        self.lines.bytes()
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        line_of(hash, self.lines.len())
    }

    #[inline]
    fn after(&self, line: usize) -> usize {
        line_after(line, self.lines.len())
    }

    /// First value under `hash` that the predicate `is_it` accepts; None if there is none. Values of other keys may be
    /// passed to `is_it` as well.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u64) -> bool) -> Option<u64> {
        let tag = tag(hash);
        let mut at = self.home(hash);
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            let meta = line.meta.load(Ordering::Acquire);
            let mut hits = zero_bytes(meta ^ (tag * LOW));
            while hits != 0 {
                let value = line.slots[slot(hits)].load(Ordering::Acquire);
                if is_it(value) {
                    return Some(value);
                }
                hits &= hits - 1;
            }
            if meta < ONE_OVERFLOW {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a value under a hash to the table. The caller must keep the number of entries below [`Self::room`].
    pub(crate) fn insert(&self, hash: u64, value: u64, _writer: &mut WriterToken) {
        let mut at = self.home(hash);
        loop {
            let line = &self.lines[at];
            let meta = line.meta.load(Ordering::Relaxed);
            let empty = zero_bytes(meta);
            if empty != 0 {
                let slot = slot(empty);
                line.slots[slot].store(value, Ordering::Release);
                line.meta.store(meta | tag(hash) << (8 * slot), Ordering::Release);
                return;
            }
            if meta >> 56 < MAX_OVERFLOW {
                line.meta.store(meta + ONE_OVERFLOW, Ordering::Release);
            } else {
                *self.beyond().entry(at).or_default() += 1;
            }
            at = self.after(at);
        }
    }

    /// Locks the counts, by line (a group of seven entries), of entries that found their line full and exceed the
    /// line's own count; never waits, as only the writer calls this method.
    fn beyond(&self) -> std::sync::MutexGuard<'_, HashMap<usize, u64>> {
        self.beyond.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decrements the overflow count of a line: the number of entries that belong to the line but found it full.
    fn one_less_past(&self, line: usize) {
        let meta = &self.lines[line].meta;
        let now = meta.load(Ordering::Relaxed);
        if now >> 56 == MAX_OVERFLOW {
            let mut beyond = self.beyond();
            if let Some(more) = beyond.get_mut(&line) {
                *more -= 1;
                if *more == 0 {
                    beyond.remove(&line);
                }
                return;
            }
        }
        meta.store(now - ONE_OVERFLOW, Ordering::Release);
    }

    /// Replaces the value `old` under a hash by `new`; returns true if the hash table contained `old`.
    pub(crate) fn replace(&self, hash: u64, old: u64, new: u64, _writer: &mut WriterToken) -> bool {
        self.at(hash, old).is_some_and(|(line, slot, _)| {
            self.lines[line].slots[slot].store(new, Ordering::Release);
            true
        })
    }

    /// Removes a value under a hash from the table; returns true if the table contained the value.
    pub(crate) fn remove(&self, hash: u64, value: u64, _writer: &mut WriterToken) -> bool {
        let Some((line, slot, distance)) = self.at(hash, value) else { return false };
        let meta = &self.lines[line].meta;
        meta.store(meta.load(Ordering::Relaxed) & !(0xff << (8 * slot)), Ordering::Release);
        let mut at = self.home(hash);
        for _ in 0..distance {
            self.one_less_past(at);
            at = self.after(at);
        }
        true
    }

    /// Finds an entry of the table by its hash and value. Returns its line (a group of seven entries), its slot (place
    /// in the line), and the number of lines between the line for its hash and the line where it is.
    fn at(&self, hash: u64, value: u64) -> Option<(usize, usize, usize)> {
        let tag = tag(hash);
        let mut at = self.home(hash);
        for distance in 0..self.lines.len() {
            let line = &self.lines[at];
            let meta = line.meta.load(Ordering::Relaxed);
            let mut hits = zero_bytes(meta ^ (tag * LOW));
            while hits != 0 {
                if line.slots[slot(hits)].load(Ordering::Relaxed) == value {
                    return Some((at, slot(hits), distance));
                }
                hits &= hits - 1;
            }
            if meta < ONE_OVERFLOW {
                return None;
            }
            at = self.after(at);
        }
        None
    }
}

/// Tag of a hash, a byte by which a line (a group of seven entries) is searched: the hash's low byte, or 1 if that byte
/// is 0.
#[inline]
fn tag(hash: u64) -> u64 {
    (hash & 0xff).max(1)
}

/// High bit of each of a line's seven tags (bytes of its entries' hashes) that is zero, which means an empty slot. The
/// result must be exact: the cheaper form with a borrow may also mark a byte above a zero byte, so that a reader would
/// get the value of an empty slot, whose memory may be freed.
#[inline]
fn zero_bytes(meta: u64) -> u64 {
    let low_bits = HIGH - LOW; // 0x7f in each tag byte: their sums stay within the byte
    !(((meta & low_bits) + low_bits) | meta) & HIGH
}

/// Slot (place in a line, a group of seven entries) of the lowest bit set in `marks`, a bit mask with one byte per
/// slot.
#[inline]
fn slot(marks: u64) -> usize {
    marks.trailing_zeros() as usize / 8
}

#[cfg(all(test, not(loom)))]
mod tests {
    use kvatlas_testing::mix as hash;

    use super::*;
    use crate::raw::reclaim::Readers;

    #[test]
    fn its_memory_goes_back_in_pieces() {
        for (entries, most) in [(1, 1), (600, 1), (400_000, 8)] {
            let mut table = Table::with_room_for(entries);
            let (mut bytes, mut pieces) = (table.bytes(), 1);
            while table.shed() {
                assert!(table.bytes() < bytes);
                (bytes, pieces) = (table.bytes(), pieces + 1);
            }
            assert!(table.bytes() == 0 && pieces <= most && (pieces > 1) == (most > 1), "{entries}: {pieces}");
        }
    }

    #[test]
    fn behaves_as_a_set_under_churn_at_full_load() {
        let writer = &mut WriterToken::of(&Readers::new(1));
        let table = Table::with_room_for(600);
        let mut live = std::collections::VecDeque::new();
        for v in 1..if cfg!(miri) { 1_500 } else { 20_000u64 } {
            table.insert(hash(v), v, writer);
            live.push_back(v);
            if live.len() == table.room() {
                for _ in 0..v % 300 + 1 {
                    let old = live.pop_front().unwrap();
                    assert!(table.remove(hash(old), old, writer));
                    assert!(!table.remove(hash(old), old, writer));
                    assert_eq!(table.find(hash(old), |x| x == old), None);
                }
            }
        }
        for &v in &live {
            assert_eq!(table.find(hash(v), |x| x == v), Some(v));
            assert!(table.replace(hash(v), v, v + (1 << 40), writer));
        }
        for v in live {
            assert!(table.remove(hash(v), v + (1 << 40), writer));
        }
        assert!(table.lines.iter().all(|l| l.meta.load(Ordering::Relaxed) << 8 == 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "safe code, and minutes of it")]
    fn a_line_that_too_many_wanted_recovers() {
        let writer = &mut WriterToken::of(&Readers::new(1));
        let table = Table::with_room_for(4_000);
        // Who knew the secret could do this: all want the first line.
        for v in 1..=1_000 {
            table.insert(0, v, writer);
        }
        assert_eq!(table.lines[0].meta.load(Ordering::Relaxed) >> 56, MAX_OVERFLOW);
        assert!(!table.beyond().is_empty());
        for v in (1..=1_000).step_by(2).chain((1..=1_000).skip(1).step_by(2)) {
            assert_eq!(table.find(0, |x| x == v), Some(v));
            assert!(table.remove(0, v, writer));
        }
        assert!(table.lines.iter().all(|line| line.meta.load(Ordering::Relaxed) == 0));
        assert!(table.beyond().is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::raw::reclaim::Readers;

    const STAYS: u64 = 7;

    /// Starts a reader that searches for the value [`STAYS`], which it must find; returns the values that were passed
    /// to it.
    fn look(table: &Arc<Table>, hash: u64) -> loom::thread::JoinHandle<Vec<u64>> {
        let table = table.clone();
        loom::thread::spawn(move || {
            let mut offered = Vec::new();
            let found = table.find(hash, |value| {
                offered.push(value);
                value == STAYS
            });
            assert_eq!(found, Some(STAYS));
            offered
        })
    }

    /// Checks that a reader finds an entry that stays in the hash table, and under the hash of an entry that comes and
    /// goes only values that this entry had.
    #[test]
    fn what_stays_is_found_while_others_come_and_go() {
        loom::model(|| {
            let writer = &mut WriterToken::of(&Readers::new(1));
            let table = Arc::new(Table::with_room_for(1));
            // One tag for all, so that every probe looks at every slot that it is offered.
            table.insert(1, 3, writer);
            table.insert(1, STAYS, writer);
            let reader = look(&table, 1);
            assert!(table.replace(1, 3, 4, writer));
            assert!(table.remove(1, 4, writer));
            table.insert(1, 5, writer);
            let offered = reader.join().unwrap();
            assert!(offered.iter().all(|value| [3, 4, 5, STAYS].contains(value)));
        });
    }

    /// Checks that a reader finds an entry that found its line (a group of entries) full and stays in another one,
    /// while both lines change.
    #[test]
    fn what_stays_is_found_beyond_a_full_line() {
        loom::model(|| {
            let writer = &mut WriterToken::of(&Readers::new(1));
            let table = Arc::new(Table::with_room_for(2 * FULL));
            (0..SLOTS as u64).for_each(|i| table.insert(1, 100 + i, writer));
            table.insert(1, STAYS, writer);
            table.insert(1, 8, writer);
            let reader = look(&table, 1);
            assert!(table.remove(1, 103, writer));
            assert!(table.remove(1, 8, writer));
            table.insert(1, 9, writer);
            let offered = reader.join().unwrap();
            assert!(offered.iter().all(|value| [8, 9, STAYS].contains(value) || (100..107).contains(value)));
        });
    }
}
