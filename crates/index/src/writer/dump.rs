//! What is held, as events that make an equal index.

use std::sync::Arc;

use super::chains::HeldChain;
use super::state::Writer;
use crate::types::{BlockHash, Event, Tier};

impl Writer {
    /// See [`crate::BlockIndex::dump`].
    pub(crate) fn dump(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut ranks = self.rank_names();
        ranks.sort_unstable();
        for (worker, rank) in ranks {
            self.dump_rank(&worker, rank, &mut events);
        }
        events
    }

    /// Every rank by name and number, in no particular order.
    pub(crate) fn rank_names(&self) -> Vec<(Arc<str>, u32)> {
        self.workers.ranks().map(|(name, n, _)| (name.clone(), n)).collect()
    }

    /// See [`crate::BlockIndex::dump_rank`].
    pub(crate) fn dump_rank(&mut self, worker: &str, rank: u32, events: &mut Vec<Event>) {
        let store = |tier, chain: &HeldChain| Event::Store {
            worker: worker.into(),
            rank,
            tier,
            parent: chain.parent.map(BlockHash),
            block_hashes: chain.names.iter().copied().map(BlockHash).collect(),
            content_hashes: chain.contents.clone(),
        };
        let Some(number) = self.workers.rank(worker, rank) else { return };
        self.finish_clearing(number);
        let Some(books) = self.workers.get(number) else { return };
        let (device, widest) = (books.device, books.widest());
        let copies: Vec<(u64, u32)> = books.copies.iter().collect();
        let offloaded: Vec<(u64, [u32; 3])> = books.offloaded.iter().collect();
        events.extend(self.chains_of(device).iter().map(|chain| store(Tier::Gpu, chain)));
        for (name, extra) in copies {
            events.extend(self.single(device, name).iter().flat_map(|one| (0..extra).map(|_| store(Tier::Gpu, one))));
        }
        // After the device's, so that they say what their names mean.
        for (name, claims) in offloaded {
            let Some(one) = self.single(widest, name) else { continue };
            for (tier, &copies) in Tier::ALL[1..].iter().zip(&claims) {
                events.extend((0..copies).map(|_| store(*tier, &one)));
            }
        }
        self.forget_places([device, widest]);
    }

    fn single(&self, holder: u32, name: u64) -> Option<HeldChain> {
        let (parent, content) = self.block(holder, name)?;
        Some(HeldChain { parent, names: vec![name], contents: vec![content] })
    }
}
