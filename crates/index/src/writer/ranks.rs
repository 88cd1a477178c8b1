//! A rank of a worker becomes known.

use std::sync::Arc;

use hashbrown::HashMap;

use super::state::Writer;
use super::workers::{Copies, Rank};
use crate::handle::{Lives, RankHandle};
use crate::raw::Published;
use crate::roster::{ALL_VIEWS, Member, Roster};

impl Writer {
    pub(super) fn rank_mut(&mut self, rank: u32) -> &mut Rank {
        self.workers.get_mut(rank).expect("added before it is used")
    }

    /// The number of a rank, from now on known.
    #[inline]
    pub(super) fn known_rank(&mut self, worker: &str, rank: u32, roster: &Published<Roster>) -> u32 {
        self.workers.rank(worker, rank).unwrap_or_else(|| self.add_rank(worker, rank, roster))
    }

    /// The same, by a handle.
    #[inline]
    pub(super) fn known_rank_of(&mut self, handle: &RankHandle, roster: &Published<Roster>) -> u32 {
        self.workers.rank_of(handle).unwrap_or_else(|| {
            self.add_rank(handle.worker(), handle.rank(), roster);
            self.workers.rank_of(handle).expect("just added")
        })
    }

    #[cold]
    fn add_rank(&mut self, worker: &str, rank: u32, roster: &Published<Roster>) -> u32 {
        let name = match self.workers.by_name.get_key_value(worker) {
            Some((name, _)) => name.clone(),
            None => Arc::from(worker),
        };
        let device = self.new_holder();
        let others = self.workers.by_name.get(worker).map_or(&[][..], |ranks| ranks);
        let worker_number = others.first().map_or(device, |(_, rank)| *rank);
        let is_only_rank = others.is_empty();
        let only = match others {
            [(_, only)] => Some(*only),
            _ => None,
        };
        if let Some(only) = only {
            let wider = self.rank_mut(only).wider;
            let holders = wider.into_iter().flatten().chain([only]);
            holders.for_each(|holder| self.roster.put_among_ranks(holder));
        }
        let member = Member { worker: name.clone(), worker_number, rank, views: ALL_VIEWS, is_only_rank };
        self.roster.set(device, Some(member));
        self.publish_roster(roster);
        let books = Rank {
            device,
            life: Lives::next(),
            wider: [None; 3],
            copies: Copies::default(),
            offloaded: HashMap::new(),
            words: [0; 4],
        };
        self.workers.add(name, rank, books);
        device
    }
}
