//! A hash table that is probed while it changes, and that no change builds anew as a whole.
//!
//! **Protocol.** It consists of segments, each a small table of its own (`table.rs`), and a directory of their
//! addresses that readers see. For every so many entries that come, one segment is divided in two, for every so many that
//! go two become one (linear hashing, Litwin 1980). Which segment a hash is in follows from their number, which is
//! part of the directory's version. A reader takes a segment's address between two looks at the version, and comes again if
//! it changed. The writer links the segment that is new first, then makes the version, then links the one that was
//! divided; of two that become one it links the one that has both first, then makes the version. A segment that is
//! replaced is complete, is changed no more, and is retired.
//!
//! **Invariants.** The first slots of a directory, as many as its version says, lead to segments that [`Segments`]
//! owns or has retired since the caller came. An entry that is there all the while is in the segment that a reader
//! takes: an address that was stored after a version was made is not seen with the version before.
//!
//! **Checked by** the tests and the loom model below.

use std::ptr;

use super::boxes::{Owned, Published, WriterToken};
use super::reclaim::Pin;
use super::table::Table;
use crate::steps::step;
use crate::sync::{AtomicU64, Ordering};

/// Entries a segment, on average: those that are next to be divided have up to twice as many.
const SEGMENT: usize = 256;
/// The low half of a version: the number of segments. The high half counts changes.
const COUNT: u64 = u32::MAX as u64;
const ONE_CHANGE: u64 = 1 << 32;

/// Where the segments are.
pub(crate) struct Directory {
    version: AtomicU64,
    /// Addresses of tables.
    slots: Box<[AtomicU64]>,
}

/// The segments, the writer's.
pub(crate) struct Segments {
    all: Vec<Segment>,
    len: usize,
    /// Of the tables.
    bytes: usize,
}

struct Segment {
    table: Owned<Table>,
    len: usize,
}

/// What readers may still see of a table that has changed.
#[allow(dead_code, reason = "they are here to be dropped in time")]
pub(crate) enum Unlinked {
    Segment(Owned<Table>),
    Directory(Owned<Directory>),
}

impl Unlinked {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Segment(table) => table.bytes(),
            Self::Directory(directory) => directory.bytes(),
        }
    }
}

/// Which of so many segments a hash is in: by bits that are not the tag, and hardly choose the line.
#[inline]
fn segment_of(hash: u64, count: u64) -> usize {
    let mask = count.next_power_of_two() - 1;
    let at = (hash >> 8) & mask;
    (if at < count { at } else { at & (mask >> 1) }) as usize
}

impl Directory {
    /// One with room for so many.
    fn new(room: usize, version: u64, segments: &[Segment]) -> Self {
        let slot = |at: usize| AtomicU64::new(segments.get(at).map_or(0, |segment| segment.table.address()));
        Self { version: AtomicU64::new(version), slots: (0..room).map(slot).collect() }
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val::<[AtomicU64]>(&self.slots)
    }

    /// The address of the segment of a hash.
    #[inline]
    fn segment(&self, hash: u64) -> u64 {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let address = self.slots[segment_of(hash, version & COUNT)].load(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return address;
            }
        }
    }

    /// The first value under `hash` that `is_it` accepts. Values of other keys may be offered too.
    #[inline]
    pub(crate) fn find(&self, _: &Pin<'_>, hash: u64, is_it: impl FnMut(u64) -> bool) -> Option<u64> {
        // SAFETY: rule 2: the segment is alive, or was retired since the reader came.
        unsafe { &*ptr::with_exposed_provenance::<Table>(self.segment(hash) as usize) }.find(hash, is_it)
    }

    /// Links a segment that takes the place of another.
    fn put(&self, at: usize, table: &Owned<Table>) {
        self.slots[at].store(table.address(), Ordering::Release);
    }

    /// Makes the next version.
    fn turn(&self, count: usize) {
        let changes = self.version.load(Ordering::Relaxed) & !COUNT;
        self.version.store(changes.wrapping_add(ONE_CHANGE) | count as u64, Ordering::Release);
    }
}

impl Segments {
    /// An empty table, and the directory to it.
    pub(crate) fn new() -> (Self, Directory) {
        let table = Owned::new(Table::with_room_for(1));
        let it = Self { bytes: table.bytes(), all: vec![Segment { table, len: 0 }], len: 0 };
        let directory = Directory::new(4, 1, &it.all);
        (it, directory)
    }

    pub(crate) fn bytes(&self, directory: &Directory) -> usize {
        self.bytes + self.all.capacity() * size_of::<Segment>() + directory.bytes()
    }

    /// Whether the counts are what they must be.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_counted(&self) -> bool {
        self.bytes == self.all.iter().map(|segment| segment.table.bytes()).sum::<usize>()
            && self.len == self.all.iter().map(|segment| segment.len).sum::<usize>()
            && self.all.iter().all(|segment| segment.len == segment.table.values().count())
    }

    #[inline]
    fn of(&self, hash: u64) -> usize {
        segment_of(hash, self.all.len() as u64)
    }

    /// The first value under `hash` that `is_it` accepts.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(u64) -> bool) -> Option<u64> {
        self.all[self.of(hash)].table.find(hash, is_it)
    }

    /// Puts `new` where `old` is; returns whether `old` was there.
    pub(crate) fn replace(&self, hash: u64, old: u64, new: u64) -> bool {
        self.all[self.of(hash)].table.replace(hash, old, new)
    }

    /// Adds a value. `hash_of`: the hash of any value that is in the table.
    pub(crate) fn insert(
        &mut self,
        directory: &Published<Directory>,
        hash: u64,
        value: u64,
        hash_of: impl Fn(u64) -> u64,
        mut retire: impl FnMut(Unlinked),
        writer: &mut WriterToken,
    ) {
        let at = self.of(hash);
        if self.all[at].len == self.all[at].table.room() {
            let larger = self.rebuilt(at, 1, &hash_of);
            retire(self.put(directory, at, larger, writer));
        }
        self.all[at].table.insert(hash, value);
        self.all[at].len += 1;
        self.len += 1;
        if self.len > self.all.len() * SEGMENT {
            self.divide(directory, hash_of, retire, writer);
        }
    }

    /// Takes `value` out; returns whether it was there.
    pub(crate) fn remove(
        &mut self,
        directory: &Published<Directory>,
        hash: u64,
        value: u64,
        hash_of: impl Fn(u64) -> u64,
        mut retire: impl FnMut(Unlinked),
        writer: &mut WriterToken,
    ) -> bool {
        let at = self.of(hash);
        if !self.all[at].table.remove(hash, value) {
            return false;
        }
        self.all[at].len -= 1;
        self.len -= 1;
        let (len, room) = (self.all[at].len, self.all[at].table.room());
        if len * 4 < room && room > 16 {
            let smaller = self.rebuilt(at, 0, &hash_of);
            retire(self.put(directory, at, smaller, writer));
        }
        if self.len < (self.all.len() - 1) * (SEGMENT / 2) {
            self.unite(directory, hash_of, retire, writer);
        }
        true
    }

    /// A segment with room for what is in it and `more`, and then some.
    fn rebuilt(&self, at: usize, more: usize, hash_of: &impl Fn(u64) -> u64) -> Segment {
        let old = &self.all[at];
        Segment::of(old.len + more, old.table.values().map(|value| (hash_of(value), value)))
    }

    /// Puts a segment in the place of another, which is to be retired.
    fn put(&mut self, directory: &Published<Directory>, at: usize, new: Segment, writer: &WriterToken) -> Unlinked {
        directory.get(writer).put(at, &new.table);
        self.bytes = self.bytes + new.table.bytes() - self.all[at].table.bytes();
        Unlinked::Segment(std::mem::replace(&mut self.all[at], new).table)
    }

    /// Divides the next segment by one more bit of the hashes.
    #[cold]
    #[inline(never)]
    fn divide(
        &mut self,
        directory: &Published<Directory>,
        hash_of: impl Fn(u64) -> u64,
        mut retire: impl FnMut(Unlinked),
        writer: &mut WriterToken,
    ) {
        let count = self.all.len();
        let at = count - (count + 1).next_power_of_two() / 2;
        // Hashes first: to find them out is to wait for memory, and that is done for many at a time.
        let entries: Vec<_> = self.all[at].table.values().map(|value| (hash_of(value), value)).collect();
        let goes = |hash: u64| segment_of(hash, count as u64 + 1) == count;
        let going = entries.iter().filter(|(hash, _)| goes(*hash)).count();
        let new = Segment::of(going, entries.iter().copied().filter(|(hash, _)| goes(*hash)));
        let left = Segment::of(entries.len() - going, entries.iter().copied().filter(|(hash, _)| !goes(*hash)));
        if directory.get(writer).slots.len() == count {
            let version = directory.get(writer).version.load(Ordering::Relaxed);
            let larger = Directory::new(count * 2, version, &self.all);
            retire(Unlinked::Directory(directory.replace(larger, writer)));
        }
        self.bytes += new.table.bytes();
        directory.get(writer).put(count, &new.table);
        self.all.push(new);
        directory.get(writer).turn(count + 1);
        retire(self.put(directory, at, left, writer));
    }

    /// The reverse: the last segment goes back to where it came from.
    #[cold]
    #[inline(never)]
    fn unite(
        &mut self,
        directory: &Published<Directory>,
        hash_of: impl Fn(u64) -> u64,
        mut retire: impl FnMut(Unlinked),
        writer: &mut WriterToken,
    ) {
        let count = self.all.len() - 1;
        let at = count - (count + 1).next_power_of_two() / 2;
        let entries = self.all[at].table.values().chain(self.all[count].table.values());
        let both = Segment::of(self.all[at].len + self.all[count].len, entries.map(|value| (hash_of(value), value)));
        retire(self.put(directory, at, both, writer));
        directory.get(writer).turn(count);
        if let Some(last) = self.all.pop() {
            self.bytes -= last.table.bytes();
            retire(Unlinked::Segment(last.table));
        }
        let room = directory.get(writer).slots.len();
        if room > 4 && room > 4 * count {
            let version = directory.get(writer).version.load(Ordering::Relaxed);
            let smaller = Directory::new(room / 2, version, &self.all);
            retire(Unlinked::Directory(directory.replace(smaller, writer)));
            self.all.shrink_to(count + count / 2);
        }
    }
}

impl Segment {
    /// A segment of these entries, with room for so many. They can grow by half before it is too small.
    fn of(wanted: usize, entries: impl Iterator<Item = (u64, u64)>) -> Self {
        let table = Table::with_room_for(wanted + wanted / 2);
        let entries = entries.inspect(|_| step());
        let len = entries.map(|(hash, value)| table.insert(hash, value)).count();
        Self { table: Owned::new(table), len }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::raw::reclaim::{Readers, Retired};
    use crate::spread::mix;
    use crate::steps::steps_of;

    fn hash(value: u64) -> u64 {
        mix(value, 0, 7)
    }

    #[test]
    fn behaves_as_a_set_while_it_grows_and_shrinks() {
        for most in [1, 20, 600, 6_000, 40_000] {
            let (mut table, directory) = Segments::new();
            let directory = Published::new(directory);
            let (mut retired, readers, writer) = (Retired::new(), Readers::new(1), &mut WriterToken::new());
            let mut live = VecDeque::new();
            let mut longest = 0;
            for value in 1..100_000 {
                let (steps, ()) =
                    steps_of(|| table.insert(&directory, hash(value), value, hash, |it| retired.push(it), writer));
                longest = longest.max(steps);
                live.push_back(value);
                if live.len() == most {
                    for _ in 0..(value as usize % most + 1).min(live.len()) {
                        let old = live.pop_front().unwrap();
                        let (steps, was_there) =
                            steps_of(|| table.remove(&directory, hash(old), old, hash, |it| retired.push(it), writer));
                        longest = longest.max(steps);
                        assert!(was_there);
                        assert_eq!(table.find(hash(old), |x| x == old), None);
                    }
                    assert!(table.is_counted());
                }
                retired.advance(&readers, usize::MAX, drop);
            }
            for &value in &live {
                let pin = readers.pin();
                assert_eq!(directory.load(&pin).find(&pin, hash(value), |x| x == value), Some(value));
                assert!(table.replace(hash(value), value, value));
            }
            for value in live {
                assert!(table.remove(&directory, hash(value), value, hash, |it| retired.push(it), writer));
            }
            let bytes = table.bytes(directory.get(writer));
            assert!(table.is_counted() && table.all.len() == 1 && bytes < 2_000, "{bytes}");
            // To divide a segment or build it anew, and there may be two to do so to, whatever the size of all.
            assert!(longest < 6 * SEGMENT, "{longest} steps");
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::raw::reclaim::Readers;

    /// A reader finds what is there all the while, on whichever side of a division it is.
    #[test]
    fn what_stays_is_found_while_segments_are_divided_and_united() {
        for value in [1_u64, 2] {
            loom::model(move || {
                let (mut table, directory) = Segments::new();
                let directory = Arc::new(Published::new(directory));
                let hash = |value: u64| value << 8 | 1;
                // Kept until the reader is done.
                let mut retired = Vec::new();
                let writer = &mut WriterToken::new();
                for value in [1, 2] {
                    table.insert(&directory, hash(value), value, hash, |it| retired.push(it), writer);
                }
                let reader = {
                    let directory = directory.clone();
                    loom::thread::spawn(move || {
                        let readers = Readers::new(1);
                        let pin = readers.pin();
                        let found = directory.load(&pin).find(&pin, hash(value), |it| it == value);
                        assert_eq!(found, Some(value));
                    })
                };
                table.divide(&directory, hash, |it| retired.push(it), writer);
                table.unite(&directory, hash, |it| retired.push(it), writer);
                reader.join().unwrap();
            });
        }
    }
}
