//! Ranks by name, and by a handle that is looked up by name once.

use std::sync::Arc;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A rank of a worker as changes name it: a [`RankHandle`], or the pair of the worker's name and the rank's number.
pub trait RankRef {
    /// The worker's name.
    fn worker(&self) -> &str;
    /// The data-parallel rank within the worker.
    fn rank(&self) -> u32;
    /// The handle, which spares the look-up by name; none for a plain name.
    fn handle(&self) -> Option<&RankHandle>;
}

/// Rank of a worker, looked up by name once and then found by number. It may be made before the worker is known, serves
/// any index, and stays good when the rank is cleared, dropped and registered again.
#[derive(Debug)]
pub struct RankHandle {
    worker: Arc<str>,
    rank: u32,
    /// The rank's number when it was looked up last, and which life of the number that was; 0 for none.
    number: AtomicU32,
    life: AtomicU64,
    /// The holder of its device then: a hint at what will be looked at.
    device: AtomicU32,
}

/// Numbers lives: no two ranks that were ever made known to any index of this process have the same.
pub(crate) struct Lives;

impl Lives {
    pub(crate) fn next() -> u64 {
        // Not loom's: a plain counter that nothing is ordered by.
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1
    }
}

impl RankHandle {
    /// A handle for a rank of a worker, known or not.
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

    /// Number and life of the rank when it was last found. Written by two at once, the number may be of another life
    /// than is said: who reads it asks whether the number has this life, and no two numbers ever have.
    #[inline]
    pub(crate) fn found(&self) -> (u32, u64) {
        (self.number.load(Ordering::Relaxed), self.life.load(Ordering::Relaxed))
    }

    /// The holder of the rank's device when last remembered: a hint, to be prefetched and for nothing else.
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
