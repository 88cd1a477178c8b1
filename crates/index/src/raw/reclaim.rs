//! When may memory that readers could still see be freed?
//!
//! **Protocol.** Readers announce themselves in a counter before they follow a pointer and take themselves back after; they never
//! wait and never free. The writer unlinks a thing, *retires* it, and frees it once every counter has been seen at
//! zero at some moment after that: whoever could have seen the thing has left. This is the idea of sleepable RCU
//! (McKenney 2006): counters come in two parities and new readers are steered to the other one, so that each counter
//! gets its quiet moment under any load. Counters are striped by thread, each on a cache line of its own, so that
//! readers do not fight for one.
//!
//! **Invariants.** A thing is unlinked before it is retired, so no reader that comes later finds it; a reader is counted
//! before it follows its first pointer; a thing is freed only after each counter was seen at zero since it was retired.
//! All of it is safe code, but the `unsafe` of this room stands on it.
//!
//! **Checked by** the tests and the loom model below (`make loom`).
//!
//! Why not a crate: the general collectors let readers run other people's destructors now and then, which is where
//! their lookup tail comes from. Here all freeing is the writer's.

use std::mem;

use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence, stripe_of_thread};

/// Two cache lines, as Intel's spatial prefetcher fetches pairs.
#[repr(align(128))]
struct Cell(AtomicU64);

/// The readers of one index, counted.
pub(crate) struct Readers {
    /// `[stripe * 2 + parity]`.
    cells: Box<[Cell]>,
    /// Which parity new readers use (its lowest bit).
    parity: AtomicUsize,
}

/// A reader at work. While it lives, nothing it has seen is freed.
pub(crate) struct Pin<'r>(&'r Cell);

impl Readers {
    /// `stripes`: a power of two of at most 64; about the number of cores.
    pub(crate) fn new(stripes: usize) -> Self {
        assert!(stripes.is_power_of_two() && stripes <= 64);
        Self { cells: (0..stripes * 2).map(|_| Cell(AtomicU64::new(0))).collect(), parity: AtomicUsize::new(0) }
    }

    /// As many stripes as the machine has cores, and at most 32.
    pub(crate) fn for_this_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(8, usize::from);
        Self::new(cores.next_power_of_two().min(32))
    }

    #[inline]
    pub(crate) fn pin(&self) -> Pin<'_> {
        let stripe = stripe_of_thread() & (self.cells.len() / 2 - 1);
        let parity = self.parity.load(Ordering::Relaxed) & 1;
        let cell = &self.cells[stripe * 2 + parity];
        // The announcement must be visible before any pointer is read (the writer's fence is the other half). A locked
        // instruction is that barrier on x86; elsewhere it takes a fence.
        cell.0.fetch_add(1, Ordering::SeqCst);
        #[cfg(any(loom, not(target_arch = "x86_64")))]
        fence(Ordering::SeqCst);
        #[cfg(all(not(loom), target_arch = "x86_64"))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        Pin(cell)
    }

    pub(crate) fn bytes(&self) -> usize {
        mem::size_of_val::<[Cell]>(&self.cells)
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

/// The writer's half: what is retired and not yet free.
pub(crate) struct Retired<T> {
    /// Retired since the current wait began.
    fresh: Vec<T>,
    /// Retired before it began.
    waiting: Vec<T>,
    /// Nobody can hold these any more.
    ready: Vec<T>,
    /// Counters not yet seen at zero since it began: a bit each.
    unseen: u128,
    /// Whether new readers have been steered back once in this wait.
    flipped_back: bool,
}

impl<T> Retired<T> {
    pub(crate) fn new() -> Self {
        Self { fresh: Vec::new(), waiting: Vec::new(), ready: Vec::new(), unseen: 0, flipped_back: false }
    }

    /// Whether there is something that nobody can hold any more.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// `thing` has been unlinked: no reader that comes now can find it.
    pub(crate) fn push(&mut self, thing: T) {
        self.fresh.push(thing);
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.fresh.iter().chain(&self.waiting).chain(&self.ready)
    }

    /// Gives `free` what no reader can hold any more, at most `most` at a time. Never waits; returns whether anything
    /// is left.
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

    /// Finds out what no reader can hold any more.
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
            // Pairs with the barrier in `pin`: a counter read as zero below means that its later readers see every
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
            if self.unseen >> i & 1 == 1 && cell.0.load(Ordering::Acquire) == 0 {
                self.unseen &= !(1 << i);
            }
        }
    }
}

/// The bits of all counters of one parity.
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
        let mut retired = Retired::new();
        let mut freed = Vec::new();
        retired.push(1);
        assert!(!retired.advance(&readers, usize::MAX, |x| freed.push(x)));
        assert_eq!(freed, [1]);

        let pin = readers.pin();
        retired.push(2);
        assert!(retired.advance(&readers, usize::MAX, |x| freed.push(x)));
        retired.push(3);
        assert!(retired.advance(&readers, usize::MAX, |x| freed.push(x)));
        assert_eq!(freed, [1]);
        drop(pin);
        assert!(!retired.advance(&readers, usize::MAX, |x| freed.push(x)));
        assert_eq!(freed, [1, 2, 3]);
    }

    #[test]
    fn a_steady_stream_of_readers_does_not_stop_freeing() {
        let readers = Readers::new(1);
        let mut retired = Retired::new();
        let mut freed = 0;
        let mut pin = readers.pin();
        retired.push(());
        for _ in 0..4 {
            retired.advance(&readers, usize::MAX, |()| freed += 1);
            let next = readers.pin(); // the counters are never all at zero
            pin = next;
        }
        drop(pin);
        assert_eq!(freed, 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::sync::atomic::{AtomicBool, AtomicUsize as LoomUsize};

    use super::*;

    /// A reader that finds the thing linked must find it unfreed, whatever the interleaving.
    #[test]
    fn never_frees_under_a_reader() {
        loom::model(|| {
            let readers = Arc::new(Readers::new(1));
            let linked = Arc::new(LoomUsize::new(1));
            let freed = Arc::new(AtomicBool::new(false));
            let reader = {
                let (readers, linked, freed) = (readers.clone(), linked.clone(), freed.clone());
                loom::thread::spawn(move || {
                    let pin = readers.pin();
                    if linked.load(Ordering::Acquire) == 1 {
                        assert!(!freed.load(Ordering::Relaxed));
                    }
                    drop(pin);
                })
            };
            let mut retired = Retired::new();
            linked.store(0, Ordering::Release);
            retired.push(());
            for _ in 0..2 {
                retired.advance(&readers, usize::MAX, |()| freed.store(true, Ordering::Relaxed));
            }
            reader.join().unwrap();
        });
    }
}
