//! A rank of a worker becomes known.

use std::sync::Arc;

use super::state::Writer;
use super::workers::{Copies, OffloadedBlocks, Rank};
use crate::handle::{Lives, RankHandle, RankRef};
use crate::raw::prefetch_all;
use crate::roster::{ALL_VIEWS, Member};

impl Writer {
    pub(super) fn rank_mut(&mut self, rank: u32) -> &mut Rank {
        self.workers.get_mut(rank).expect("added before it is used")
    }

    /// The holder of what a rank holds on its device. Another after a clear.
    #[inline]
    pub(super) fn device_of(&self, rank: u32) -> u32 {
        self.workers.get(rank).expect("added before it is used").device
    }

    /// Asks for the books of a rank and of its device, both at once: of a thousand ranks, those of one are seldom at hand.
    #[inline]
    pub(super) fn ask_for(&self, handle: &RankHandle) {
        self.workers.ask_for(handle.found().0);
        if let Some(holder) = self.holders.get(handle.device() as usize) {
            prefetch_all(holder);
        }
    }

    /// The number of a rank, from now on known.
    #[inline]
    pub(super) fn known_rank(&mut self, rank: &impl RankRef) -> u32 {
        let known = match rank.handle() {
            Some(handle) => self.workers.rank_of(handle),
            None => self.workers.rank(rank.worker(), rank.rank()),
        };
        known.unwrap_or_else(|| self.add_rank(rank.worker(), rank.rank()))
    }

    #[cold]
    fn add_rank(&mut self, worker: &str, rank: u32) -> u32 {
        let name = match self.workers.by_name.get_key_value(worker) {
            Some((name, _)) => name.clone(),
            None => Arc::from(worker),
        };
        let device = self.new_holder();
        let others = self.workers.by_name.get(worker).map_or(&[][..], |ranks| ranks);
        let (first, is_only_rank) = (others.first().map(|(_, first)| *first), others.is_empty());
        if let [(_, only)] = *others {
            let books = self.rank_mut(only);
            let holders = books.wider.into_iter().flatten().chain([books.device]);
            holders.for_each(|holder| self.roster.put_among_ranks(holder));
        }
        let books = Rank {
            device,
            life: Lives::next(),
            wider: [None; 3],
            copies: Copies::default(),
            offloaded: OffloadedBlocks::default(),
            device_word: 0,
            clears: [0; 4],
            new_view: None,
            clearing: None,
        };
        let number = self.workers.add(name.clone(), rank, books);
        // A worker has the number of its first rank.
        let worker_number = first.unwrap_or(number);
        if is_only_rank {
            self.roster.name(number, Some(name.clone()));
        }
        let member = Member { worker: name, worker_number, rank, views: ALL_VIEWS, is_only_rank };
        self.roster.set(device, Some(member));
        self.publish_roster();
        number
    }
}
