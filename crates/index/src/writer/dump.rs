//! What is held, as events that make an equal index.

use std::sync::Arc;

use super::Writer;
use super::ranks::Rank;
use crate::runs::Position;
use crate::stats::{Counters, RankStats, Stats};
use crate::types::{BlockHash, Event, Tier};

/// Consecutive blocks of one holder.
pub(super) struct HeldChain {
    pub(super) parent: Option<u64>,
    pub(super) names: Vec<u64>,
    pub(super) contents: Vec<u64>,
}

impl Writer {
    /// All that a holder holds: regular blocks with parents before children, then odd ones in any order.
    pub(super) fn chains_of(&mut self, holder: u32) -> Vec<HeldChain> {
        let mut chains = Vec::new();
        for (run, cutoff) in self.runs_of(holder) {
            let positions = (0..cutoff).map(|offset| Position { run, offset });
            let it = &self.holders[holder as usize];
            // Below the first position that only odd blocks cover there is nothing regular.
            let regular: Vec<_> = positions.take_while(|&at| !it.covers_oddly(at)).collect();
            let Some(&first) = regular.first() else { continue };
            chains.push(HeldChain {
                parent: self.block_at(holder, first).0,
                names: regular.iter().map(|&at| self.name_of(holder, at)).collect(),
                contents: regular.iter().map(|&at| self.runs.content(at)).collect(),
            });
        }
        let odd = self.holders[holder as usize].odd.iter().flat_map(|odd| &odd.blocks);
        chains.extend(odd.map(|(&name, block)| HeldChain {
            parent: block.parent,
            names: vec![name],
            contents: vec![block.content],
        }));
        chains
    }

    /// See [`crate::BlockIndex::dump`].
    pub(crate) fn dump(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut ranks: Vec<(Arc<str>, u32)> = self.workers.ranks().map(|(name, n, _)| (name.clone(), n)).collect();
        ranks.sort_unstable();
        for (worker, rank) in ranks {
            let store = |tier, chain: &HeldChain| Event::Store {
                worker: (&*worker).into(),
                rank,
                tier,
                parent: chain.parent.map(BlockHash),
                block_hashes: chain.names.iter().copied().map(BlockHash).collect(),
                content_hashes: chain.contents.clone(),
            };
            let Some(books) = self.workers.get(&worker, rank) else { continue };
            let (device, widest) = (books.device, books.widest());
            let copies: Vec<(u64, u32)> = books.copies.iter().map(|(&name, &extra)| (name, extra)).collect();
            let offloaded: Vec<(u64, [u32; 3])> =
                books.offloaded.iter().map(|(&name, &claims)| (name, claims)).collect();
            events.extend(self.chains_of(device).iter().map(|chain| store(Tier::Gpu, chain)));
            for (name, extra) in copies {
                events
                    .extend(self.single(device, name).iter().flat_map(|one| (0..extra).map(|_| store(Tier::Gpu, one))));
            }
            // After the device's, so that they say what their names mean.
            for (name, claims) in offloaded {
                let Some(one) = self.single(widest, name) else { continue };
                for (tier, &copies) in Tier::ALL[1..].iter().zip(&claims) {
                    events.extend((0..copies).map(|_| store(*tier, &one)));
                }
            }
        }
        events
    }

    fn single(&self, holder: u32, name: u64) -> Option<HeldChain> {
        let (parent, content) = self.block(holder, name)?;
        Some(HeldChain { parent, names: vec![name], contents: vec![content] })
    }

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
