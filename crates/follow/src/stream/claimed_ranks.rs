//! Ranks that an engine's batches name, and the ranks that their blocks are stored under.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use crate::state::{Keyspace, Stream};

/// Most announced ranks that are remembered.
const MOST_RANKS: usize = 4096;

/// Ranks that one stream stores under.
#[derive(Debug, Default)]
pub(super) struct ClaimedRanks {
    /// Rank to store under, by announced rank. An entry never changes, even if other streams come and go: blocks stored under a
    /// rank are removed under it.
    by_announced: HashMap<u32, u32>,
    /// True if a batch has named the registered rank, or none.
    plain: bool,
    /// Last announced rank, with the rank to store under.
    recent: Option<(u32, u32)>,
}

impl ClaimedRanks {
    /// Rank to store a batch under.
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

    /// True if several ranks of the engine are stored under this one.
    pub(super) fn is_shared(&self, rank: u32, registered: u32) -> bool {
        if self.by_announced.is_empty() {
            return false;
        }
        let claimed = self.by_announced.values().filter(|stored| **stored == rank).count();
        let is_registered = rank == registered;
        claimed + usize::from(is_registered && self.plain) > 1 || is_registered && self.by_announced.len() >= MOST_RANKS
    }

    /// Announced ranks with the ranks to store under, and whether a batch named the registered rank or none; for a snapshot.
    pub(super) fn saved(&self) -> (Vec<(u32, u32)>, bool) {
        let mut claimed: Vec<_> = self.by_announced.iter().map(|(announced, stored)| (*announced, *stored)).collect();
        claimed.sort_unstable();
        (claimed, self.plain)
    }

    /// Claims the ranks of a snapshot. False if one is taken.
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
