//! Limits on the number of a stream's blocks in the index, and the assignment of ranks named in batches to the ranks
//! under which blocks are stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_stream::limits::{Limit, LimitsConfig, SharedCounts};

use crate::state::{Keyspace, Stream};

/// Minimum number of blocks stored between two counts of the index's blocks, each of which takes a lock.
const STEP: u64 = 1024;

/// Limits on the number of one stream's blocks. The blocks in the index are counted only when a limit may have been
/// reached.
pub(crate) struct BlockLimits {
    limits: LimitsConfig,
    shared: Arc<SharedCounts>,
    /// Number of blocks that may be stored before the index's blocks are counted again.
    room: u64,
}

impl BlockLimits {
    pub(crate) fn new(limits: LimitsConfig, shared: Arc<SharedCounts>) -> Self {
        // The first look finds the blocks of other ranks, and those that were there before.
        Self { limits, shared, room: 0 }
    }

    /// Returns the counts shared by all streams, which include how often each limit was reached.
    pub(crate) fn shared(&self) -> &SharedCounts {
        &self.shared
    }

    /// Returns the maximum number of blocks that a rank may hold.
    pub(crate) fn most_of_rank(&self) -> u64 {
        self.limits.blocks_per_rank
    }

    /// Records `blocks` newly stored blocks. Returns the limit that is now exceeded, if any.
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

/// Maximum number of ranks named in batches that are remembered.
const MOST_RANKS: usize = 4096;

/// Ranks named in a stream's batches, with the ranks under which their blocks are stored.
#[derive(Debug, Default)]
pub(super) struct ClaimedRanks {
    /// Rank under which blocks are stored, by the rank named in batches. An entry never changes, even if other streams
    /// are added or removed, because blocks must be removed under the rank under which they were stored.
    by_announced: HashMap<u32, u32>,
    /// True if any batch has named the registered rank, or no rank.
    plain: bool,
    /// Rank named in the last batch, with the rank under which its blocks are stored.
    recent: Option<(u32, u32)>,
}

impl ClaimedRanks {
    /// Returns the rank under which the blocks of a batch are stored. `announced` is the rank that the batch names, if
    /// any.
    pub(super) fn rank(&mut self, keyspace: &Keyspace, stream: &Stream, announced: Option<u32>) -> u32 {
        let registered = stream.registration.rank;
        let Some(announced) = announced.filter(|rank| *rank != registered) else {
            self.plain = true;
            return registered;
        };
        let rank = match self.recent {
            Some((name, rank)) if name == announced => rank,
            _ => self.claim(keyspace, stream, announced),
        };
        self.recent = Some((announced, rank));
        if rank != announced {
            stream.status.counters.rank_conflicts.fetch_add(1, Relaxed);
        }
        rank
    }

    fn claim(&mut self, keyspace: &Keyspace, stream: &Stream, announced: u32) -> u32 {
        if let Some(rank) = self.by_announced.get(&announced) {
            return *rank;
        }
        if self.by_announced.len() >= MOST_RANKS {
            return stream.registration.rank;
        }
        let rank = keyspace.claim(stream, announced);
        self.by_announced.insert(announced, rank);
        rank
    }

    /// True if the blocks of several ranks that batches name are stored under the one rank `rank`.
    pub(super) fn is_shared(&self, rank: u32, registered: u32) -> bool {
        if self.by_announced.is_empty() {
            return false;
        }
        let claimed = self.by_announced.values().filter(|stored| **stored == rank).count();
        let is_registered = rank == registered;
        claimed + usize::from(is_registered && self.plain) > 1 || is_registered && self.by_announced.len() >= MOST_RANKS
    }

    /// Returns two values for a snapshot: the ranks named in batches, each with the rank under which its blocks are
    /// stored; and true if any batch named the registered rank or none.
    pub(super) fn saved(&self) -> (Vec<(u32, u32)>, bool) {
        let mut claimed: Vec<_> = self.by_announced.iter().map(|(announced, stored)| (*announced, *stored)).collect();
        claimed.sort_unstable();
        (claimed, self.plain)
    }

    /// Restores, from a snapshot, the assignment of ranks named in batches to the ranks under which blocks are stored.
    /// Returns false if another stream supplies the blocks of one of these ranks.
    pub(super) fn restore(
        &mut self,
        keyspace: &Keyspace,
        stream: &Stream,
        claimed: &[(u32, u32)],
        plain: bool,
    ) -> bool {
        self.plain = plain;
        claimed.iter().all(|(announced, stored)| self.claim(keyspace, stream, *announced) == *stored)
    }
}
