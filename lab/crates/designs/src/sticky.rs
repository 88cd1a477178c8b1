//! The thread of each worker: assigned in turn on first use, and never changed.
//!
//! Senders look it up for each change, from several threads at once, so it is a lock-free array of atomics by worker
//! number, in pages that double.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::interface::WorkerId;

/// The worker number from which on threads follow from the number, so that one wild number does not cost gigabytes.
const DEALT: u32 = 1 << 22;
const PAGES: usize = DEALT.ilog2() as usize;

#[derive(Debug)]
pub(super) struct StickyThreads {
    count: usize,
    dealt: AtomicUsize,
    /// The threads of workers: page p has workers 2^p - 1 to 2^(p+1) - 2; each entry is a thread plus 1, or 0 if
    /// unassigned.
    pages: [OnceLock<Box<[AtomicU32]>>; PAGES],
}

impl StickyThreads {
    /// Makes an empty assignment of workers to `count` threads.
    pub(super) fn new(count: usize) -> Self {
        Self { count, dealt: AtomicUsize::new(0), pages: [const { OnceLock::new() }; PAGES] }
    }

    #[inline]
    pub(super) fn of(&self, worker: WorkerId) -> usize {
        if self.count == 1 {
            return 0;
        }
        if worker >= DEALT - 1 {
            return worker as usize % self.count;
        }
        let page = (worker + 1).ilog2();
        let entries = self.pages[page as usize].get_or_init(|| (0..1 << page).map(|_| AtomicU32::new(0)).collect());
        let entry = &entries[(worker + 1 - (1 << page)) as usize];
        match entry.load(Ordering::Relaxed) {
            0 => self.deal(entry),
            home => home as usize - 1,
        }
    }

    #[cold]
    fn deal(&self, entry: &AtomicU32) -> usize {
        let next = self.dealt.fetch_add(1, Ordering::Relaxed) % self.count;
        match entry.compare_exchange(0, next as u32 + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => next,
            // Another sender was first.
            Err(home) => home as usize - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_dealt_in_turn_and_kept() {
        let sticky = StickyThreads::new(3);
        let workers = [0, 5, 1, 2, 1_000_000, DEALT - 2];
        let first: Vec<_> = workers.iter().map(|&worker| sticky.of(worker)).collect();
        assert_eq!(first, [0, 1, 2, 0, 1, 2]);
        let again: Vec<_> = workers.iter().rev().map(|&worker| sticky.of(worker)).collect();
        assert!(again.iter().rev().eq(&first));
        assert_eq!(sticky.of(u32::MAX), u32::MAX as usize % 3);
        assert_eq!(StickyThreads::new(1).of(77), 0);
    }
}
