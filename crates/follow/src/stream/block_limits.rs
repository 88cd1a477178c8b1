//! Limits on the blocks of a stream in the index.

use std::collections::HashMap;
use std::sync::Arc;

use crate::state::{Keyspace, Stream};
use kvatlas_stream::limits::{Limit, LimitsConfig, SharedCounts};

/// Fewest blocks stored between two looks at the index, each of which takes its lock.
const STEP: u64 = 1024;

/// Limits of one stream. The index is looked at once enough blocks were stored that a limit may be reached.
pub(crate) struct BlockLimits {
    limits: LimitsConfig,
    shared: Arc<SharedCounts>,
    /// Blocks that may be stored before the next look at the index.
    room: u64,
}

impl BlockLimits {
    pub(crate) fn new(limits: LimitsConfig, shared: Arc<SharedCounts>) -> Self {
        // The first look finds the blocks of other ranks, and those that were there before.
        Self { limits, shared, room: 0 }
    }

    /// Counts shared by all streams.
    pub(crate) fn shared(&self) -> &SharedCounts {
        &self.shared
    }

    /// Most blocks that a rank may hold.
    pub(crate) fn most_of_rank(&self) -> u64 {
        self.limits.blocks_per_rank
    }

    /// Adds stored blocks. Returns the limit that is exceeded now, if any.
    pub(crate) fn add(&mut self, blocks: u64, keyspace: &Keyspace, stream: &Stream) -> Option<Limit> {
        if blocks < self.room || blocks == 0 {
            self.room -= blocks;
            return None;
        }
        let LimitsConfig { blocks_per_rank, blocks_per_worker, .. } = self.limits;
        let ranks = keyspace.index().ranks_of(&stream.worker);
        let mut held: HashMap<u32, u64> =
            ranks.into_iter().map(|rank| (rank.rank, rank.device_blocks + rank.offloaded_blocks)).collect();
        // Those of several cache groups count in place of the indexed ones, which are among them.
        for (rank, hybrid) in keyspace.hybrids().load().of_worker(&stream.worker) {
            let indexed = held.entry(*rank).or_default();
            *indexed = hybrid.blocks().max(*indexed as usize) as u64;
        }
        let of_worker = held.values().sum::<u64>();
        let most = held.iter().filter(|(rank, _)| stream.feeds(**rank)).map(|(_, held)| *held).max().unwrap_or(0);
        let limit = if most > blocks_per_rank {
            Limit::BlocksPerRank
        } else if of_worker > blocks_per_worker {
            Limit::BlocksPerWorker
        } else {
            // All ranks of a worker may grow at the same time.
            let left = (blocks_per_rank - most).min((blocks_per_worker - of_worker) / 2);
            self.room = left.max(STEP);
            return None;
        };
        self.room = 0;
        self.shared.count(limit);
        let (worker, rank) = (&*stream.worker, stream.registration.rank);
        let held = if limit == Limit::BlocksPerRank { most } else { of_worker };
        tracing::warn!(worker, rank, held, limit = limit.name(), "a limit is reached: the stream's blocks are dropped");
        let what = if limit == Limit::BlocksPerRank { "rank" } else { "worker" };
        let name = limit.name();
        stream.status.set_error(format!("the {what} holds {held} blocks, more than limits.{name} allows"));
        Some(limit)
    }
}
