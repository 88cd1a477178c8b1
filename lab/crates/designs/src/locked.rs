//! A single-threaded design behind one lock: the simplest way to share it.
//!
//! Lookups share the lock, each change takes it exclusively. With it a [`LocalDesign`] works in an
//! [`EventPool`](super::pool::EventPool); more than one event thread then only queue for the lock.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::interface::{ConcurrentDesign, LadderStats, LocalDesign, Refusal, Scores, WorkerId};
use kvatlas_index::BlockHash;

/// Any [`LocalDesign`] behind a reader–writer lock.
#[derive(Debug, Default)]
pub struct RwLocked<T>(RwLock<T>);

impl<T: LocalDesign> RwLocked<T> {
    /// Puts a lock around a design.
    #[must_use]
    pub fn new(design: T) -> Self {
        Self(RwLock::new(design))
    }

    // A poisoned lock means that a change panicked, which the pool reports.
    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: LocalDesign + Sync> ConcurrentDesign for RwLocked<T> {
    fn store(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal> {
        self.write().store(worker, parent, block_hashes, content_hashes)
    }

    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]) {
        self.write().remove(worker, block_hashes);
    }

    fn clear(&self, worker: WorkerId) {
        self.write().clear(worker);
    }

    fn drop_worker(&self, worker: WorkerId) {
        self.write().drop_worker(worker);
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        self.read().find(content_hashes, scores);
    }

    fn stats(&self) -> LadderStats {
        self.read().stats()
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        self.read().holdings()
    }
}
