//! How much is held, and by whom.

use std::sync::Arc;

use super::state::Writer;
use super::workers::Rank;
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

    /// See [`crate::BlockIndex::ranks`].
    pub(crate) fn ranks(&self) -> Vec<RankStats> {
        let numbers = |(worker, rank, books): (&Arc<str>, u32, &Rank)| {
            let device = &self.holders[books.device as usize];
            RankStats {
                worker: worker.clone(),
                rank,
                device_blocks: device.names(),
                offloaded_blocks: books.offloaded.len() as u64,
                unlinked: device.unlinked() as u64,
                copies: books.copies.values().map(|&extra| u64::from(extra)).sum(),
            }
        };
        let mut ranks: Vec<RankStats> = self.workers.ranks().map(numbers).collect();
        ranks.sort_unstable_by(|a, b| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)));
        ranks
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
            stats.copies += books.copies.values().map(|&extra| u64::from(extra)).sum::<u64>();
        }
        let Counters { stores, removes, clears, drops, replaced, unknown_removals, private_holders } = self.counters;
        Stats { stores, removes, clears, drops, replaced, unknown_removals, private_holders, ..stats }
    }
}
