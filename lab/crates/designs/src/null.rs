//! A rung without an index: what the ladder's driver, its queues and its threads cost by themselves, on this machine.

use kvatlas_index::BlockHash;

use crate::interface::{ConcurrentDesign, LadderStats, Refusal, Scores, WorkerId};

/// A design that takes every change, keeps nothing, and finds nothing.
#[derive(Debug, Default)]
pub struct Null;

impl ConcurrentDesign for Null {
    fn store(&self, _: WorkerId, _: Option<BlockHash>, _: &[BlockHash], _: &[u64]) -> Result<(), Refusal> {
        Ok(())
    }

    fn remove(&self, _: WorkerId, _: &[BlockHash]) {}

    fn clear(&self, _: WorkerId) {}

    fn drop_worker(&self, _: WorkerId) {}

    fn find(&self, _: &[u64], scores: &mut Scores) {
        scores.clear();
    }

    fn stats(&self) -> LadderStats {
        LadderStats::default()
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        Vec::new()
    }
}
