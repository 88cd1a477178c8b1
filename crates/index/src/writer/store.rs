//! A rank holds blocks from now on.

use super::state::Writer;
use super::workers::{Rank, inner};
use crate::error::Error;
use crate::fingerprint::words;
use crate::handle::RankHandle;
use crate::types::{BlockHash, Tier};

/// Consecutive blocks: a store, or a part of one.
pub(crate) struct Chain<'a> {
    pub(crate) parent: Option<BlockHash>,
    pub(crate) block_hashes: &'a [BlockHash],
    pub(crate) content_hashes: &'a [u64],
    /// Of a later part than the first.
    is_rest: bool,
    /// Blocks of the parts that follow.
    promised: usize,
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
        Ok(Self { parent, block_hashes, content_hashes, is_rest: false, promised: 0 })
    }

    /// How many blocks these are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.block_hashes.len()
    }

    /// Cuts off what comes after the first `blocks`, if it is longer.
    pub(crate) fn split_off(&mut self, blocks: usize) -> Option<Self> {
        if self.len() <= blocks {
            return None;
        }
        let (block_hashes, names) = self.block_hashes.split_at(blocks);
        let (content_hashes, contents) = self.content_hashes.split_at(blocks);
        (self.block_hashes, self.content_hashes, self.promised) = (block_hashes, content_hashes, names.len());
        let parent = block_hashes.last().copied();
        Some(Self { parent, block_hashes: names, content_hashes: contents, is_rest: true, promised: 0 })
    }
}

impl Writer {
    /// A rank holds consecutive blocks on a tier from now on.
    pub(crate) fn store(&mut self, worker: &str, rank: u32, tier: Tier, chain: &Chain<'_>) -> Result<(), Error> {
        let known = |writer: &Self| writer.workers.rank(worker, rank);
        self.store_by(known, |writer| writer.known_rank(worker, rank), tier, chain)
    }

    /// The same, by a handle.
    #[inline]
    pub(crate) fn store_to(&mut self, handle: &RankHandle, tier: Tier, chain: &Chain<'_>) -> Result<(), Error> {
        self.ask_for(handle);
        let known = |writer: &Self| writer.workers.rank_of(handle);
        self.store_by(known, |writer| writer.known_rank_of(handle), tier, chain)
    }

    #[inline]
    fn store_by(
        &mut self,
        known: impl FnOnce(&Self) -> Option<u32>,
        made_known: impl FnOnce(&mut Self) -> u32,
        tier: Tier,
        chain: &Chain<'_>,
    ) -> Result<(), Error> {
        if chain.is_rest {
            // There is room: it was promised. But the worker may have been dropped since the first part.
            self.promised -= chain.len();
            if let Some(rank) = known(self) {
                self.store_at(rank, tier, chain);
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
            let rank = made_known(self);
            self.store_at(rank, tier, chain);
        }
        self.counters.stores += 1;
        Ok(())
    }

    #[inline]
    fn store_at(&mut self, rank: u32, tier: Tier, chain: &Chain<'_>) {
        let parent = chain.parent.map(inner);
        let names = self.inner_names(chain.block_hashes);
        self.touch(self.device_of(rank), names.iter().copied());
        match tier {
            Tier::Gpu => self.store_on_device(rank, parent, &names, chain.content_hashes),
            tier => {
                self.add_view(rank, tier);
                self.store_elsewhere(rank, tier, parent, &names, chain.content_hashes);
            }
        }
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
        // All that is held under these names now, less what was held under them before.
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

    /// A name that is about to mean another block has one copy of that.
    fn end_copies_of_replaced(&mut self, rank: u32, parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let device = self.device_of(rank);
        for (i, (&name, &content)) in names.iter().zip(contents).enumerate() {
            let parent = if i == 0 { parent } else { Some(names[i - 1]) };
            if self.rank_mut(rank).copies.of(name) > 0 && self.block(device, name) != Some((parent, content)) {
                self.rank_mut(rank).copies.forget(name);
            }
        }
    }

    /// A rank holds on a tier what it holds under these names already. Returns those that mean nothing to it.
    pub(crate) fn store_known(
        &mut self,
        worker: &str,
        rank: u32,
        tier: Tier,
        block_hashes: &[BlockHash],
    ) -> Vec<BlockHash> {
        let mut unknown = Vec::new();
        for &block_hash in block_hashes {
            let widest = self.workers.rank(worker, rank).and_then(|rank| self.workers.get(rank)).map(Rank::widest);
            let Some((parent, content)) = widest.and_then(|widest| self.block(widest, inner(block_hash))) else {
                unknown.push(block_hash);
                continue;
            };
            let parent = parent.map(BlockHash);
            let stored =
                Chain::new(parent, &[block_hash], &[content]).and_then(|chain| self.store(worker, rank, tier, &chain));
            if stored.is_err() {
                unknown.push(block_hash);
            }
        }
        unknown
    }
}
