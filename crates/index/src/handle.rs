//! References to a worker's rank: by name, or by a handle that is looked up by name only once.

use std::sync::Arc;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Reference to a worker's rank in calls of the index: a [`RankHandle`], or the pair of the worker's name and the
/// rank's number.
pub trait RankRef {
    /// Name of the worker.
    fn worker(&self) -> &str;
    /// Data-parallel rank within the worker.
    fn rank(&self) -> u32;
    /// Handle, which saves the look-up by name; None if the reference is a pair of name and number.
    fn handle(&self) -> Option<&RankHandle>;
}

/// Handle of a worker's rank, which is looked up by name once and then found by number. A handle may be created before
/// the worker is known, works with any index, and stays valid when the rank is cleared, or dropped and registered
/// again.
#[derive(Debug)]
pub struct RankHandle {
    worker: Arc<str>,
    rank: u32,
    /// Number of the rank in the index at the last look-up. `life`: identifier of the registration that had this number
    /// then, 0 before the first look-up.
    number: AtomicU32,
    life: AtomicU64,
    /// Number that the index gave to the rank's device, as of the last look-up; used only for prefetching.
    device: AtomicU32,
}

/// Counter of registrations: each rank that any index of this process registers gets a new number, its life.
pub(crate) struct Lives;

impl Lives {
    pub(crate) fn next() -> u64 {
        // Not loom's: a plain counter that nothing is ordered by.
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1
    }
}

impl RankHandle {
    /// Creates a handle for a worker's rank, which need not be known to any index.
    #[must_use]
    pub fn new(worker: &str, rank: u32) -> Self {
        Self {
            worker: worker.into(),
            rank,
            number: AtomicU32::new(0),
            life: AtomicU64::new(0),
            device: AtomicU32::new(0),
        }
    }

    /// Number and life (identifier of the registration) of the rank at the last look-up. If two threads write at once,
    /// the two may not belong together, so the caller must check that the number still has this life, which is never
    /// reused.
    #[inline]
    pub(crate) fn found(&self) -> (u32, u64) {
        (self.number.load(Ordering::Relaxed), self.life.load(Ordering::Relaxed))
    }

    /// Number that the index gave to the rank's device, as of the last look-up. The number may be outdated, so use it
    /// only for prefetching.
    #[inline]
    pub(crate) fn device(&self) -> u32 {
        self.device.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn remember_device(&self, device: u32) {
        if self.device() != device {
            self.device.store(device, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn remember(&self, number: u32, life: u64) {
        self.number.store(number, Ordering::Relaxed);
        self.life.store(life, Ordering::Relaxed);
    }
}

impl RankRef for RankHandle {
    #[inline]
    fn worker(&self) -> &str {
        &self.worker
    }
    #[inline]
    fn rank(&self) -> u32 {
        self.rank
    }
    #[inline]
    fn handle(&self) -> Option<&RankHandle> {
        Some(self)
    }
}

impl RankRef for (&str, u32) {
    #[inline]
    fn worker(&self) -> &str {
        self.0
    }
    #[inline]
    fn rank(&self) -> u32 {
        self.1
    }
    #[inline]
    fn handle(&self) -> Option<&RankHandle> {
        None
    }
}
