//! The ranks that an engine's batches name, and those that their blocks are stored under.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use crate::state::{Keyspace, Stream};

/// Number of announced ranks, at most, that are remembered with the rank that they are stored under.
const MOST_RANKS: usize = 4096;

/// The ranks that one stream stores under.
#[derive(Debug, Default)]
pub(super) struct ClaimedRanks {
    /// The ranks that are stored under, by those announced. It never changes, whoever else comes and goes: what was
    /// stored under a rank is removed under it.
    by_announced: HashMap<u32, u32>,
    /// True if a batch has named the registered rank, or none.
    plain: bool,
    /// The announced rank used last, with the rank that it is stored under.
    recent: Option<(u32, u32)>,
}

impl ClaimedRanks {
    /// The rank to store under.
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

    /// Ranks that batches named with those that they are stored under, and whether any named the registered one or none.
    pub(super) fn saved(&self) -> (Vec<(u32, u32)>, bool) {
        let mut claimed: Vec<_> = self.by_announced.iter().map(|(announced, stored)| (*announced, *stored)).collect();
        claimed.sort_unstable();
        (claimed, self.plain)
    }

    /// Claims the same ranks as a snapshot has them. False if they are to be had no more.
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
