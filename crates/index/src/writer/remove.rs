//! A rank holds blocks no more.

use smallvec::SmallVec;

use super::state::{MOST_NAMES, Writer};
use crate::fingerprint::words;
use crate::handle::RankHandle;
use crate::types::{BlockHash, Tier};

impl Writer {
    /// A rank does not hold these blocks on a tier any more.
    pub(crate) fn remove(&mut self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) {
        self.remove_by(self.workers.rank(worker, rank), tier, block_hashes);
    }

    /// The same, by a handle.
    #[inline]
    pub(crate) fn remove_from(&mut self, handle: &RankHandle, tier: Tier, block_hashes: &[BlockHash]) {
        self.ask_for(handle);
        self.remove_by(self.workers.rank_of(handle), tier, block_hashes);
    }

    #[inline]
    fn remove_by(&mut self, rank: Option<u32>, tier: Tier, block_hashes: &[BlockHash]) {
        self.counters.removes += 1;
        let Some(rank) = rank else {
            self.counters.unknown_removals += block_hashes.len() as u64;
            return;
        };
        let names = self.inner_names(block_hashes);
        self.touch(self.device_of(rank), names.iter().copied());
        if tier == Tier::Gpu {
            self.remove_from_device(rank, &names);
        } else {
            self.remove_elsewhere(rank, tier, &names);
        }
        self.names_done(names);
    }

    fn remove_from_device(&mut self, rank: u32, names: &[u64]) {
        let books = self.rank_mut(rank);
        let device = books.device;
        let mut left: SmallVec<[u64; 64]> = SmallVec::new();
        let mut names = names;
        if !books.copies.is_empty() {
            left.extend(names.iter().copied().filter(|name| !books.copies.take(*name)));
            names = &left;
        }
        let mut gone = std::mem::take(&mut self.gone);
        self.lose(device, names, &mut gone);
        self.counters.unknown_removals += (names.len() - gone.len()) as u64;
        let lost = words(Tier::Gpu, &gone);
        let sum = &mut self.rank_mut(rank).device_word;
        *sum = sum.wrapping_sub(lost);
        self.narrow(rank, &gone);
        gone.clear();
        if gone.capacity() <= MOST_NAMES {
            self.gone = gone;
        }
    }
}
