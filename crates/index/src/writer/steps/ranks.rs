//! Registration of workers' ranks, and statistics of their blocks.

use std::sync::Arc;

use crate::fingerprint;
use crate::handle::{Lives, RankHandle, RankRef};
use crate::raw::prefetch_all;
use crate::roster::{ALL_VIEWS, Member};
use crate::stats::{Counters, RankStats, Stats};
use crate::writer::holders::workers::{Copies, OffloadedBlocks, Rank};
use crate::writer::state::Writer;

impl Writer {
    pub(in crate::writer) fn rank_mut(&mut self, rank: u32) -> &mut Rank {
        self.workers.get_mut(rank).expect("added before it is used")
    }

    /// Holder (number of a rank's cache) for the blocks that a rank has on its device. A clear may replace the holder
    /// by another one.
    #[inline]
    pub(in crate::writer) fn device_of(&self, rank: u32) -> u32 {
        self.workers.get(rank).expect("added before it is used").device
    }

    /// Prefetches the data of a rank and its device. If there are a thousand ranks, these data are seldom in the
    /// processor's cache.
    #[inline]
    pub(in crate::writer) fn ask_for(&self, handle: &RankHandle) {
        self.workers.ask_for(handle.found().0);
        if let Some(holder) = self.holders.get(handle.device() as usize) {
            prefetch_all(holder);
        }
    }

    /// Number of a rank in the writer's table; registers the rank if it is new.
    #[inline]
    pub(in crate::writer) fn known_rank(&mut self, rank: &impl RankRef) -> u32 {
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
            is_tracked: false,
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
        if self.loading.read().is_member(worker) {
            self.track(number);
        }
        number
    }
}

impl Writer {
    /// Names of all workers, sorted, each with the number of its blocks.
    pub(crate) fn workers(&self) -> Vec<(Box<str>, u64)> {
        let mut out: Vec<(Box<str>, u64)> = Vec::with_capacity(self.workers.len());
        let mut ranks: Vec<_> = self.workers.ranks().collect();
        ranks.sort_unstable_by_key(|(name, ..)| *name);
        for (name, _, books) in ranks {
            let blocks = self.holders[books.device as usize].names() + books.offloaded.len() as u64;
            match out.last_mut() {
                Some((last, sum)) if **last == **name => *sum += blocks,
                _ => out.push(((&**name).into(), blocks)),
            }
        }
        out
    }

    /// All ranks as pairs of the worker's name and the data-parallel rank, in any order.
    pub(crate) fn rank_names(&self) -> Vec<(Box<str>, u32)> {
        self.workers.ranks().map(|(name, rank, _)| ((&**name).into(), rank)).collect()
    }

    /// Statistics of every rank, in any order, as described at [`crate::BlockIndex::ranks`].
    pub(crate) fn ranks(&self) -> Vec<RankStats> {
        self.workers.ranks().map(|(worker, rank, books)| self.rank_stats(worker, rank, books)).collect()
    }

    /// Statistics of one worker's ranks, as described at [`crate::BlockIndex::ranks_of`].
    pub(crate) fn ranks_of(&self, worker: &str) -> Vec<RankStats> {
        let Some((name, ranks)) = self.workers.by_name.get_key_value(worker) else { return Vec::new() };
        let books = |&(n, rank): &(u32, u32)| Some(self.rank_stats(name, n, self.workers.get(rank)?));
        ranks.iter().filter_map(books).collect()
    }

    fn rank_stats(&self, worker: &Arc<str>, rank: u32, books: &Rank) -> RankStats {
        let device = &self.holders[books.device as usize];
        RankStats {
            worker: worker.clone(),
            rank,
            device_blocks: device.names(),
            offloaded_blocks: books.offloaded.len() as u64,
            unlinked: device.unlinked() as u64,
            copies: books.copies.sum(),
            fingerprint: fingerprint::of_rank(books.device_word, books.offloaded.words()),
        }
    }

    /// Sizes and counts of the index, as described at [`crate::BlockIndex::stats`].
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            workers: self.workers.len() as u64,
            positions: self.runs.positions() as u64,
            runs: self.runs.len() as u64,
            sets: self.sets.len() as u64,
            bytes: self.bytes() as u64,
            ..Stats::default()
        };
        for (_, _, books) in self.workers.ranks() {
            let device = &self.holders[books.device as usize];
            stats.holders += 1 + books.wider.iter().flatten().count() as u64;
            stats.blocks += device.names() + books.offloaded.len() as u64;
            stats.unlinked += device.unlinked() as u64;
            stats.copies += books.copies.sum();
        }
        let Counters { stores, removes, clears, drops, replaced, unknown_removals, private_holders } = self.counters;
        Stats { stores, removes, clears, drops, replaced, unknown_removals, private_holders, ..stats }
    }
}
