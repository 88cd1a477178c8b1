//! Limits on a stream: its blocks in the index, and the ranks that the engine's batches name, with the ranks that their
//! blocks are stored under.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_stream::limits::{Limit, LimitsConfig, SharedCounts};

use crate::state::{Keyspace, Stream};

/// Minimum number of blocks stored between two counts of the index's blocks, each of which takes a lock.
const STEP: u64 = 1024;

/// Limits on the number of one stream's blocks. The index's blocks are counted once a limit may have been reached.
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

    /// Counts shared by all streams, among them how often each limit was reached.
    pub(crate) fn shared(&self) -> &SharedCounts {
        &self.shared
    }

    /// Maximum number of blocks that a rank may hold.
    pub(crate) fn most_of_rank(&self) -> u64 {
        self.limits.blocks_per_rank
    }

    /// Adds newly stored blocks. Returns the limit that is now exceeded, if any.
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

/// Maximum number of announced ranks that are remembered.
const MOST_RANKS: usize = 4096;

/// Ranks under which one stream stores blocks.
#[derive(Debug, Default)]
pub(super) struct ClaimedRanks {
    /// Rank to store blocks under, by announced rank. An entry never changes, even if other streams are added or
    /// removed: blocks are removed under the rank under which they were stored.
    by_announced: HashMap<u32, u32>,
    /// True if a batch has named the registered rank, or no rank.
    plain: bool,
    /// Last announced rank, with the rank to store blocks under.
    recent: Option<(u32, u32)>,
}

impl ClaimedRanks {
    /// Rank under which to store the blocks of a batch. `announced`: the rank that the batch names.
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

    /// True if blocks of several of the engine's ranks are stored under this rank.
    pub(super) fn is_shared(&self, rank: u32, registered: u32) -> bool {
        if self.by_announced.is_empty() {
            return false;
        }
        let claimed = self.by_announced.values().filter(|stored| **stored == rank).count();
        let is_registered = rank == registered;
        claimed + usize::from(is_registered && self.plain) > 1 || is_registered && self.by_announced.len() >= MOST_RANKS
    }

    /// Announced ranks with the ranks to store under, and whether a batch named the registered rank or no rank; for a
    /// snapshot.
    pub(super) fn saved(&self) -> (Vec<(u32, u32)>, bool) {
        let mut claimed: Vec<_> = self.by_announced.iter().map(|(announced, stored)| (*announced, *stored)).collect();
        claimed.sort_unstable();
        (claimed, self.plain)
    }

    /// Claims the ranks that a snapshot has for the stream. False if another stream feeds one of them.
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
