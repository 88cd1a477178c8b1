//! A rank holds blocks no more.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::state::Writer;
use super::workers::{inner, shrink};
use crate::types::{BlockHash, Tier};

impl Writer {
    /// A rank does not hold these blocks on a tier any more.
    pub(crate) fn remove(&mut self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) {
        self.counters.removes += 1;
        let names: SmallVec<[u64; 64]> = block_hashes.iter().map(|&name| inner(name)).collect();
        if self.workers.get_mut(worker, rank).is_none() {
            self.counters.unknown_removals += names.len() as u64;
        } else if tier == Tier::Gpu {
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
            left.extend(names.iter().copied().filter(|name| !take_copy(&mut books.copies, *name)));
            shrink(&mut books.copies);
            names = &left;
        }
        let mut gone = Vec::with_capacity(names.len());
        self.lose(device, names, &mut gone);
        self.counters.unknown_removals += (names.len() - gone.len()) as u64;
        self.narrow(worker, rank, &gone);
    }
}

/// One copy less, if there is more than one.
fn take_copy(copies: &mut HashMap<u64, u32>, name: u64) -> bool {
    let Some(extra) = copies.get_mut(&name) else { return false };
    *extra -= 1;
    if *extra == 0 {
        copies.remove(&name);
    }
    true
}
