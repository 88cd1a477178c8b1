//! Counts of what became of snapshots, for `/metrics` and `/health`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::encode::SnapshotSize;
use kvatlas_stream::{Outcome, Skip};

/// The last snapshot that was written to disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastWrite {
    pub(crate) written: SnapshotSize,
    /// Streams that are not in it, by reason.
    pub(crate) skipped: [u64; Skip::ALL.len()],
    pub(crate) took: Duration,
    pub(crate) ended: Instant,
    pub(crate) at: SystemTime,
}

/// Counts since the service began.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    pub(crate) writes: AtomicU64,
    pub(crate) failed_writes: AtomicU64,
    /// Snapshots that could not be loaded.
    pub(crate) refused: AtomicU64,
    last: Mutex<Option<LastWrite>>,
    /// The trouble with the directory now, in words.
    error: Mutex<Option<String>>,
}

impl Counts {
    pub(crate) fn ended(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Relaxed)
    }

    pub(crate) fn wrote(&self, last: LastWrite) {
        self.writes.fetch_add(1, Relaxed);
        *self.last.lock() = Some(last);
        *self.error.lock() = None;
    }

    pub(crate) fn failed(&self, error: String) {
        self.failed_writes.fetch_add(1, Relaxed);
        *self.error.lock() = Some(error);
    }

    pub(crate) fn last(&self) -> Option<LastWrite> {
        *self.last.lock()
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }
}
