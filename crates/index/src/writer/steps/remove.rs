//! A rank holds blocks no more.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::fingerprint::words;
use crate::handle::RankRef;
use crate::types::{BlockHash, Tier};
use crate::writer::holders::workers::inner;
use crate::writer::state::{MOST_NAMES, Writer};

/// Blocks before the run, the run, and the offset in it: less for a block than for those before it in its chain.
pub(crate) type LeafOrder = (Reverse<u32>, u32, Reverse<u32>);

/// Order of a list of names along their chains.
pub(crate) enum Way {
    LeavesFirst,
    RootFirst,
    Neither,
}

/// Pairs of neighbours that are looked at to tell the order of a list. Of lists in no order, one in 32,768 is not found out,
/// and takes longer.
const LOOKS: usize = 16;

impl Writer {
    /// The number of a rank, if it is known.
    #[inline]
    pub(crate) fn number_of(&self, rank: &impl RankRef) -> Option<u32> {
        match rank.handle() {
            Some(handle) => {
                self.ask_for(handle);
                self.workers.rank_of(handle)
            }
            None => self.workers.rank(rank.worker(), rank.rank()),
        }
    }

    /// Tells how far from the leaves a rank's blocks are, for many that go in parts: a part that goes before what is
    /// below it leaves a hole. A hint, as others may change it before they go. What is not known comes last.
    pub(crate) fn farness(&self, rank: Option<u32>, block_hashes: &[BlockHash], out: &mut Vec<(LeafOrder, BlockHash)>) {
        let Some(books) = rank.and_then(|rank| self.workers.get(rank)) else {
            out.extend(block_hashes.iter().map(|&block_hash| (LeafOrder::default(), block_hash)));
            return;
        };
        let widest = books.widest();
        out.extend(block_hashes.iter().map(|&block_hash| {
            let name = inner(block_hash);
            let at = self.find(widest, name).or_else(|| Some(self.find_in_branches(widest, name)?.1));
            let far =
                at.map_or(Default::default(), |at| (Reverse(self.runs.start(at.run)), at.run, Reverse(at.offset)));
            (far, block_hash)
        }));
    }

    /// Returns which way along their chains a rank's blocks are listed, as far as some neighbours among them show.
    pub(crate) fn way_of(&self, rank: Option<u32>, block_hashes: &[BlockHash]) -> Way {
        let mut pairs = Vec::with_capacity(2 * LOOKS);
        for look in 0..LOOKS {
            let at = look * block_hashes.len().saturating_sub(2) / (LOOKS - 1);
            self.farness(rank, &block_hashes[at..(at + 2).min(block_hashes.len())], &mut pairs);
        }
        let all = |is: fn(&LeafOrder, &LeafOrder) -> bool| {
            pairs.chunks(2).all(|pair| is(&pair[0].0, &pair[pair.len() - 1].0))
        };
        match () {
            () if all(PartialOrd::le) => Way::LeavesFirst,
            () if all(PartialOrd::ge) => Way::RootFirst,
            () => Way::Neither,
        }
    }

    /// Removes blocks of a rank from a tier. The caller counts the event, as these may
    /// be a part of one.
    #[inline]
    pub(crate) fn remove(&mut self, rank: Option<u32>, tier: Tier, block_hashes: &[BlockHash]) {
        let Some(rank) = rank else {
            self.counters.unknown_removals += block_hashes.len() as u64;
            return;
        };
        self.finish_clearing(rank);
        let names = self.inner_names(block_hashes);
        if let Some(pool) = self.pool_at(rank, tier) {
            self.counters.unknown_removals += self.loading.write().remove_from_pool(pool, &names) as u64;
            self.names_done(names);
            return;
        }
        self.touch(self.device_of(rank), names.iter().copied());
        if tier == Tier::Gpu {
            self.remove_from_device(rank, &names);
        } else {
            self.remove_elsewhere(rank, tier, &names);
        }
        self.tell_loading(rank, &names, false);
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
