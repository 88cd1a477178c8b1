//! Statistics: how much is held, and by whom.

use std::sync::Arc;

use super::state::Writer;
use super::workers::Rank;
use crate::fingerprint;
use crate::stats::{Counters, RankStats, Stats};

impl Writer {
    /// Every worker, by name, with the number of blocks it holds.
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

    /// Every rank by name and number, in no particular order.
    pub(crate) fn rank_names(&self) -> Vec<(Box<str>, u32)> {
        self.workers.ranks().map(|(name, rank, _)| ((&**name).into(), rank)).collect()
    }

    /// See [`crate::BlockIndex::ranks`]; in no particular order.
    pub(crate) fn ranks(&self) -> Vec<RankStats> {
        self.workers.ranks().map(|(worker, rank, books)| self.rank_stats(worker, rank, books)).collect()
    }

    /// See [`crate::BlockIndex::ranks_of`].
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

    /// See [`crate::BlockIndex::stats`].
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
