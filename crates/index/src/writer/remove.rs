//! A rank holds blocks no more.

use smallvec::SmallVec;

use super::state::Writer;
use super::workers::inner;
use crate::types::{BlockHash, Tier};

impl Writer {
    /// A rank does not hold these blocks on a tier any more.
    pub(crate) fn remove(&mut self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) {
        self.counters.removes += 1;
        let names: SmallVec<[u64; 64]> = block_hashes.iter().map(|&name| inner(name)).collect();
        let Some(device) = self.workers.get(worker, rank).map(|books| books.device) else {
            self.counters.unknown_removals += names.len() as u64;
            return;
        };
        self.touch(device, names.iter().copied());
        if tier == Tier::Gpu {
            self.remove_from_device(worker, rank, &names);
        } else {
            self.remove_elsewhere(worker, rank, tier, &names);
        }
    }

    fn remove_from_device(&mut self, worker: &str, rank: u32, names: &[u64]) {
        let books = self.rank_mut(worker, rank);
        let device = books.device;
        let mut left: SmallVec<[u64; 64]> = SmallVec::new();
        let mut names = names;
        if !books.copies.is_empty() {
            left.extend(names.iter().copied().filter(|name| !books.copies.take(*name)));
            names = &left;
        }
        let mut gone = Vec::with_capacity(names.len());
        self.lose(device, names, &mut gone);
        self.counters.unknown_removals += (names.len() - gone.len()) as u64;
        self.narrow(worker, rank, &gone);
    }
}
