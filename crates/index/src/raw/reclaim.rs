//! Reclamation: decides when memory that readers could still use may be freed.
//!
//! **Protocol.** Readers increment a counter before they follow a pointer, and decrement it after the last use; they
//! wait for no other thread and never free memory. The writer unlinks an item, *retires* it, and frees it once every
//! counter has been seen at zero at some moment after that: every reader that could have seen the item has then
//! finished. This is the idea of sleepable RCU (McKenney 2006): counters exist for two parities, and new readers are
//! directed to the other one, so that each counter reaches zero under any load. Each thread uses one of several
//! counters (stripes), each on a cache line of its own, so that readers do not contend for one.
//!
//! **Invariants.** An item is unlinked before it is retired, so no later reader finds it; a reader is counted before it
//! follows its first pointer; an item is freed only after each counter was seen at zero since it was retired. This file
//! is safe code, but the `unsafe` code of this folder relies on it.
//!
//! **Checked by** the tests and the loom models below (`make loom`), and by Miri (`make miri`).
//!
//! No existing crate is used, as their general collectors sometimes let readers run other threads' destructors, which
//! causes their slowest lookups. In this module, only the writer frees memory.

use std::mem;
use std::sync::Arc;

use super::levels::ChangeRecord;
use crate::stats::step;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence, stripe_of_thread};

/// Counter of readers on two cache lines of its own, as Intel's spatial prefetcher fetches pairs of lines.
#[repr(align(128))]
struct Cell(AtomicU64);

/// Counters of the readers that are using the memory of one index.
pub(crate) struct Readers {
    /// Reader counters: one for each group of threads (stripe) and each parity, at index `stripe * 2 + parity`. The
    /// parity says which of two counters the readers of a period use.
    cells: Box<[Cell]>,
    /// Parity (one of two groups of reader counters) that new readers use, in the lowest bit.
    parity: AtomicUsize,
    index: IndexId,
    under_change: Arc<ChangeRecord>,
}

/// Identifier of a block index, unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexId(u64);

impl IndexId {
    fn new() -> Self {
        // Not the model checker's: it says nothing about the order of anything.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Self(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

/// Guard of a reader of the index: while it lives, no memory that the reader has found in the index is freed.
pub(crate) struct Guard<'r> {
    cell: &'r Cell,
    readers: &'r Readers,
}

impl Guard<'_> {
    /// Panics if this reader's guard belongs to another index, as it would not prevent this index's memory from being
    /// freed.
    #[inline]
    pub(super) fn assert_of(&self, index: IndexId) {
        assert!(self.readers.index == index, "a guard of one index, and things of another");
    }

    #[inline]
    pub(super) fn under_change(&self) -> &ChangeRecord {
        &self.readers.under_change
    }
}

impl Readers {
    /// Creates counters for `stripes` groups of threads; `stripes` is a power of two, at most 64, about the number of
    /// cores.
    pub(crate) fn new(stripes: usize) -> Self {
        assert!(stripes.is_power_of_two() && stripes <= 64);
        Self {
            cells: (0..stripes * 2).map(|_| Cell(AtomicU64::new(0))).collect(),
            parity: AtomicUsize::new(0),
            index: IndexId::new(),
            under_change: Arc::default(),
        }
    }

    /// Creates reader counters for this machine: for one group of threads per core, at most 32 groups.
    pub(crate) fn for_this_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(8, usize::from);
        Self::new(cores.next_power_of_two().min(32))
    }

    /// Number of reader counters, each on cache lines of its own.
    pub(crate) fn places(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn index(&self) -> IndexId {
        self.index
    }

    pub(super) fn under_change(&self) -> Arc<ChangeRecord> {
        self.under_change.clone()
    }

    #[inline]
    pub(crate) fn enter(&self) -> Guard<'_> {
        self.enter_by(stripe_of_thread())
    }

    #[inline]
    fn enter_by(&self, stripe: usize) -> Guard<'_> {
        let stripe = stripe & (self.cells.len() / 2 - 1);
        let parity = self.parity.load(Ordering::Relaxed) & 1;
        let cell = &self.cells[stripe * 2 + parity];
        // The announcement must be visible before any pointer is read (the writer's fence is the other half). A locked
        // instruction is that barrier on x86; elsewhere it takes a fence, and so it does where the language's own model is
        // what is checked, which knows no locked instructions.
        cell.0.fetch_add(1, Ordering::SeqCst);
        #[cfg(any(loom, miri, not(target_arch = "x86_64")))]
        fence(Ordering::SeqCst);
        #[cfg(not(any(loom, miri, not(target_arch = "x86_64"))))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        Guard { cell, readers: self }
    }

    pub(crate) fn bytes(&self) -> usize {
        mem::size_of_val::<[Cell]>(&self.cells) + size_of::<ChangeRecord>()
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cell.0.fetch_sub(1, Ordering::Release);
    }
}

/// List of items that the writer has unlinked (made unreachable for new readers) and not yet freed.
pub(crate) struct RetiredList<T> {
    /// Items retired (unlinked, to be freed later) after the current waiting period for readers began.
    fresh: Vec<T>,
    /// Items retired (unlinked, to be freed later) before the current waiting period for readers began.
    waiting: Vec<T>,
    /// Retired (unlinked) items that no reader can use any longer, so that they may be freed.
    ready: Vec<T>,
    /// Reader counters that were not yet seen at zero in the current waiting period, as a bit mask.
    unseen: u128,
    /// True if new readers were directed back to the first parity's counters in the current waiting period.
    flipped_back: bool,
}

impl<T> RetiredList<T> {
    pub(crate) fn new() -> Self {
        Self { fresh: Vec::new(), waiting: Vec::new(), ready: Vec::new(), unseen: 0, flipped_back: false }
    }

    /// True if there are retired (unlinked) items that no reader can use any longer.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Adds an item to be freed later, which has been unlinked, so that readers that start from now on cannot find it.
    pub(crate) fn push(&mut self, thing: T) {
        self.fresh.push(thing);
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.fresh.iter().chain(&self.waiting).chain(&self.ready)
    }

    /// Passes retired (unlinked) items that no reader can use any longer to `free`, at most `most` per call. Never
    /// waits. Returns true if any items are left.
    pub(crate) fn advance(&mut self, readers: &Readers, most: usize, mut free: impl FnMut(T)) -> bool {
        self.look(readers);
        let from = self.ready.len().saturating_sub(most);
        self.ready.drain(from..).for_each(&mut free);
        if self.ready.is_empty() && self.fresh.is_empty() && self.waiting.is_empty() {
            // Give back what a burst has left behind.
            for list in [&mut self.ready, &mut self.fresh, &mut self.waiting] {
                list.shrink_to(64);
            }
            return false;
        }
        true
    }

    /// Reads the reader counters, and moves retired items that no reader can use any longer to the list `ready`.
    fn look(&mut self, readers: &Readers) {
        // Twice: what was fresh can often go at once.
        for _ in 0..2 {
            if self.waiting.is_empty() {
                if self.fresh.is_empty() {
                    return;
                }
                mem::swap(&mut self.fresh, &mut self.waiting);
                self.unseen = u128::MAX >> (128 - readers.cells.len());
                self.flipped_back = false;
                readers.parity.fetch_xor(1, Ordering::Relaxed);
            }
            // Pairs with the barrier in `enter`: a counter read as zero below means that its later readers see every
            // unlinking done above.
            fence(Ordering::SeqCst);
            self.scan(readers);
            if self.unseen != 0
                && !self.flipped_back
                && self.unseen & parity_bits(readers.parity.load(Ordering::Relaxed) ^ 1) == 0
            {
                // The parity that was in use has drained; now give the other its quiet moment.
                readers.parity.fetch_xor(1, Ordering::Relaxed);
                self.flipped_back = true;
                self.scan(readers);
            }
            if self.unseen != 0 {
                return;
            }
            if self.ready.is_empty() {
                mem::swap(&mut self.ready, &mut self.waiting);
            } else {
                self.ready.append(&mut self.waiting);
            }
        }
    }

    fn scan(&mut self, readers: &Readers) {
        for (i, cell) in readers.cells.iter().enumerate() {
            step();
            if self.unseen >> i & 1 == 1 && cell.0.load(Ordering::Acquire) == 0 {
                self.unseen &= !(1 << i);
            }
        }
    }
}

/// Bit mask of all reader counters of one parity; each reader uses a counter of the parity that was current when it
/// started.
fn parity_bits(parity: usize) -> u128 {
    let even = u128::MAX / 3;
    if parity & 1 == 0 { even } else { even << 1 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn frees_at_once_without_readers_and_later_with() {
        let readers = Readers::new(2);
        let mut retired = RetiredList::new();
        let mut freed = Vec::new();
        retired.push(1);
        assert!(!retired.advance(&readers, usize::MAX, |x| freed.push(x)));
        assert_eq!(freed, [1]);

        let guard = readers.enter();
        retired.push(2);
        assert!(retired.advance(&readers, usize::MAX, |x| freed.push(x)));
        retired.push(3);
        assert!(retired.advance(&readers, usize::MAX, |x| freed.push(x)));
        assert_eq!(freed, [1]);
        drop(guard);
        assert!(!retired.advance(&readers, usize::MAX, |x| freed.push(x)));
        assert_eq!(freed, [1, 2, 3]);
    }

    #[test]
    fn a_steady_stream_of_readers_does_not_stop_freeing() {
        let readers = Readers::new(1);
        let mut retired = RetiredList::new();
        let mut freed = 0;
        let mut guard = readers.enter();
        retired.push(());
        for _ in 0..4 {
            retired.advance(&readers, usize::MAX, |()| freed += 1);
            let next = readers.enter(); // the counters are never all at zero
            guard = next;
        }
        drop(guard);
        assert_eq!(freed, 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::sync::atomic::{AtomicBool, AtomicUsize as LoomUsize};

    use super::*;

    /// Checks that a reader that finds an item in the index finds memory that is not yet freed, in all interleavings of
    /// reader and writer.
    #[test]
    fn never_frees_under_a_reader() {
        loom::model(|| {
            let readers = Arc::new(Readers::new(1));
            let linked = Arc::new(LoomUsize::new(1));
            let freed = Arc::new(AtomicBool::new(false));
            let reader = {
                let (readers, linked, freed) = (readers.clone(), linked.clone(), freed.clone());
                loom::thread::spawn(move || {
                    let guard = readers.enter();
                    if linked.load(Ordering::Acquire) == 1 {
                        assert!(!freed.load(Ordering::Relaxed));
                    }
                    drop(guard);
                })
            };
            let mut retired = RetiredList::new();
            linked.store(0, Ordering::Release);
            retired.push(());
            for _ in 0..2 {
                retired.advance(&readers, usize::MAX, |()| freed.store(true, Ordering::Relaxed));
            }
            reader.join().unwrap();
        });
    }

    /// Checks two readers with different counters and three items that are retired one after the other. This is the
    /// smallest case in which a counter is read in one parity and used in the other while the next waiting period has
    /// begun.
    #[test]
    fn never_frees_under_readers_of_two_stripes() {
        let mut model = loom::model::Builder::new();
        // All interleavings up to this number of forced switches; without a bound it takes days.
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(|| {
            const THINGS: usize = 3;
            let readers = Arc::new(Readers::new(2));
            let linked = Arc::new(LoomUsize::new(0));
            let freed: Arc<[AtomicBool; THINGS]> = Arc::new(std::array::from_fn(|_| AtomicBool::new(false)));
            let threads: Vec<_> = (0..2)
                .map(|stripe| {
                    let (readers, linked, freed) = (readers.clone(), linked.clone(), freed.clone());
                    loom::thread::spawn(move || {
                        let guard = readers.enter_by(stripe);
                        if let Some(freed) = freed.get(linked.load(Ordering::Acquire)) {
                            assert!(!freed.load(Ordering::Relaxed));
                        }
                        drop(guard);
                    })
                })
                .collect();
            let mut retired = RetiredList::new();
            for thing in 0..THINGS {
                linked.store(thing + 1, Ordering::Release);
                retired.push(thing);
                retired.advance(&readers, usize::MAX, |thing| freed[thing].store(true, Ordering::Relaxed));
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            while retired.advance(&readers, usize::MAX, |thing| freed[thing].store(true, Ordering::Relaxed)) {}
            assert!(freed.iter().all(|freed| freed.load(Ordering::Relaxed)));
        });
    }
}
