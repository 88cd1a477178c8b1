//! Stores of blocks for a rank, and removals of its blocks.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::fingerprint::words;
use crate::handle::RankRef;
use crate::types::{BlockHash, Error, Tier};
use crate::writer::holders::workers::{Rank, inner};
use crate::writer::state::{MOST_NAMES, Writer};

/// Chain of consecutive blocks to store: a whole store event, or a part of one.
pub(crate) struct Chain<'a> {
    pub(crate) parent: Option<BlockHash>,
    pub(crate) block_hashes: &'a [BlockHash],
    pub(crate) content_hashes: &'a [u64],
    /// Rank for which the first part of the store was applied; None if this chain is the first part itself.
    begun: Option<StoreStart>,
    /// Number of blocks in those parts of the store that follow this chain.
    promised: usize,
}

/// Rank of a store whose first part was applied, with the rank's life (identifier of its registration) and the number
/// of times that the tier had been cleared then.
#[derive(Clone, Copy)]
struct StoreStart {
    rank: u32,
    life: u64,
    clears: u32,
}

impl<'a> Chain<'a> {
    pub(crate) fn new(
        parent: Option<BlockHash>,
        block_hashes: &'a [BlockHash],
        content_hashes: &'a [u64],
    ) -> Result<Self, Error> {
        if block_hashes.len() != content_hashes.len() {
            let (block_hashes, content_hashes) = (block_hashes.len(), content_hashes.len());
            return Err(Error::LengthMismatch { block_hashes, content_hashes });
        }
        Ok(Self { parent, block_hashes, content_hashes, begun: None, promised: 0 })
    }

    /// Number of blocks in the chain.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.block_hashes.len()
    }

    /// Makes this chain the next part of a store, after the part `before`.
    pub(crate) fn goes_on(&mut self, before: &Self) {
        self.begun = before.begun;
    }

    /// Splits off the part of the chain after its first `blocks` blocks, to be stored later ([`Self::goes_on`]); None
    /// if there is no such part.
    pub(crate) fn split_off(&mut self, blocks: usize) -> Option<Self> {
        if self.len() <= blocks {
            return None;
        }
        let (block_hashes, names) = self.block_hashes.split_at(blocks);
        let (content_hashes, contents) = self.content_hashes.split_at(blocks);
        (self.block_hashes, self.content_hashes, self.promised) = (block_hashes, content_hashes, names.len());
        let parent = block_hashes.last().copied();
        Some(Self { parent, block_hashes: names, content_hashes: contents, begun: None, promised: 0 })
    }
}

impl Writer {
    /// Stores a chain of blocks on a tier of a rank.
    #[inline]
    pub(crate) fn store(&mut self, rank: &impl RankRef, tier: Tier, chain: &mut Chain<'_>) -> Result<(), Error> {
        if let Some(handle) = rank.handle() {
            self.ask_for(handle);
        }
        if let Some(begun) = chain.begun {
            // There is room: it was promised.
            self.promised -= chain.len();
            if self.is_still(begun, tier) {
                self.store_at(begun.rank, tier, chain);
            }
            return Ok(());
        }
        if chain.len() > 0 {
            // A block needs at most one new run for each view, and so does each that waits for a block that may now come.
            let blocks = chain.len() + chain.promised + self.promised + self.waiting;
            if !self.runs.can_number(blocks.saturating_mul(4)) {
                return Err(Error::Full { what: "it can number 2^28 pages of 16 blocks" });
            }
            self.promised += chain.promised;
            let rank = self.known_rank(rank);
            self.store_at(rank, tier, chain);
            if chain.promised > 0 {
                let books = self.rank_mut(rank);
                chain.begun = Some(StoreStart { rank, life: books.life, clears: books.clears[tier as usize] });
            }
        }
        self.counters.stores += 1;
        Ok(())
    }

    /// True if the rank and tier of a partly applied store still exist: the worker was not dropped, and the tier was
    /// not cleared. Otherwise the rest of the store is ignored, as if the whole store had come before the drop or
    /// clear.
    fn is_still(&self, begun: StoreStart, tier: Tier) -> bool {
        self.workers
            .get(begun.rank)
            .is_some_and(|books| books.life == begun.life && books.clears[tier as usize] == begun.clears)
    }

    #[inline]
    fn store_at(&mut self, rank: u32, tier: Tier, chain: &Chain<'_>) {
        self.finish_clearing(rank);
        let parent = chain.parent.map(inner);
        let names = self.inner_names(chain.block_hashes);
        if tier != Tier::Gpu && self.store_in_pool(rank, tier, parent, &names, chain.content_hashes) {
            self.names_done(names);
            return;
        }
        self.touch(self.device_of(rank), names.iter().copied());
        self.coming = chain.promised;
        match tier {
            Tier::Gpu => self.store_on_device(rank, parent, &names, chain.content_hashes),
            tier => {
                self.add_view(rank, tier);
                self.store_as_pools_say(rank, tier, parent, &names, chain.content_hashes);
            }
        }
        self.coming = 0;
        self.tell_loading(rank, &names, tier == Tier::Gpu);
        self.names_done(names);
    }

    fn store_on_device(&mut self, rank: u32, parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let books = self.rank_mut(rank);
        let device = books.device;
        if !books.copies.is_empty() {
            self.end_copies_of_replaced(rank, parent, names, contents);
        }
        let mut same = Vec::new();
        // Other views may have replaced names, too.
        self.replaced_words = 0;
        self.counters.replaced += self.gain(device, parent, names, contents, &mut same);
        // Sum over all blocks held under these block hashes now, minus the sum over those held before.
        let new = words(Tier::Gpu, names);
        let held = words(Tier::Gpu, &same).wrapping_add(self.replaced_words);
        let sum = &mut self.rank_mut(rank).device_word;
        *sum = sum.wrapping_add(new).wrapping_sub(held);
        if self.count_copies && !same.is_empty() {
            let copies = &mut self.rank_mut(rank).copies;
            same.iter().for_each(|&name| copies.add(name));
        }
        self.widen(rank, parent, names, contents);
    }

    /// Removes the copies, except the first, of block hashes that are about to be assigned to other blocks.
    fn end_copies_of_replaced(&mut self, rank: u32, parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let device = self.device_of(rank);
        for (i, (&name, &content)) in names.iter().zip(contents).enumerate() {
            let parent = if i == 0 { parent } else { Some(names[i - 1]) };
            if self.rank_mut(rank).copies.of(name) > 0 && !self.has_block(device, parent, name, content) {
                self.rank_mut(rank).copies.forget(name);
            }
        }
    }

    /// Stores blocks on a tier, given only by block hashes that the rank has already on any tier. Returns the block
    /// hashes that it does not have.
    pub(crate) fn store_known(
        &mut self,
        rank: &impl RankRef,
        tier: Tier,
        block_hashes: &[BlockHash],
    ) -> Vec<BlockHash> {
        let mut unknown = Vec::new();
        if let Some(rank) = self.number_of(rank) {
            self.finish_clearing(rank);
        }
        for &block_hash in block_hashes {
            let widest = self.number_of(rank).and_then(|rank| self.workers.get(rank)).map(Rank::widest);
            let known = widest.and_then(|widest| self.block(widest, inner(block_hash)));
            let Some((parent, content)) = known.or_else(|| self.block_in_pools(rank, block_hash)) else {
                unknown.push(block_hash);
                continue;
            };
            let parent = parent.map(BlockHash);
            let stored =
                Chain::new(parent, &[block_hash], &[content]).and_then(|mut chain| self.store(rank, tier, &mut chain));
            if stored.is_err() {
                unknown.push(block_hash);
            }
        }
        unknown
    }
}

/// Sort key by the distance from the end of the chain: a block's key is smaller than the keys of the blocks before it.
pub(crate) type LeafOrder = (Reverse<u32>, u32, Reverse<u32>);

/// Order of the block hashes in a list compared with the order of their blocks in chains: the same, reversed, or
/// neither.
pub(crate) enum Way {
    LeavesFirst,
    RootFirst,
    Neither,
}

/// Number of neighbouring pairs that are checked to find the order of a list of block hashes. One in 32,768 unordered
/// lists is taken for ordered; its removal then takes longer.
const LOOKS: usize = 16;

impl Writer {
    /// Number of a rank in the writer's table; None if the rank is unknown.
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

    /// Appends pairs of a sort key and a block hash to `out`. Sorted by these keys, blocks at the ends of chains come
    /// first, so that a removal in parts leaves no holes. The keys are only hints, as other writers may change the
    /// chains. Unknown blocks come last.
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

    /// Order of a list of a rank's block hashes along their chains, judged by some neighbouring pairs.
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

    /// Removes blocks of a rank from a tier. The caller counts the event, as these blocks may be only a part of it.
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
