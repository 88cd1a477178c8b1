//! Application of the events in a batch to the index: stores, removals and clears of the indexed cache group, and
//! events of a model's other cache groups.
//!
//! A clear concerns the engine's device memory, and may or may not have deleted the blocks that the engine has
//! offloaded; the index has the operator's setting for this ([`Changes::reset`]). A vLLM connector that keeps blocks in
//! host memory or on disk, and marks its events as local, announces clears of its own. The connector's clear comes
//! after the device's events in a batch. It is recognized by an event of another tier before it, or by being the last
//! event of a batch in which the device was cleared and has stored something since.

use std::num::NonZeroU32;
use std::sync::Arc;

use kvatlas_index::{self as index, BlockHash, Changes, Event, RankHandle, RankRef, Tier};

use super::chunks::names_of_chunks;
use super::salts::Salts;
use super::{Reader, Scratch, Tally};
use crate::error::Reason;
use crate::event::{BlockName, EventOf, RemovedOf, StoredOf};
use crate::hybrid::Hybrid;
use crate::identity::{Identity, Space};

impl Reader {
    pub(super) fn store<N: BlockName>(
        &mut self,
        it: &StoredOf<N>,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        if !self.groups.store(it.group, it.kind.as_deref()) {
            return self.store_other(it, index, rank, tally);
        }
        if it.block_hashes.is_empty() {
            return Ok(());
        }
        if it.block_size == 0 && it.tokens.is_empty() {
            return self.store_by_name(it, index, rank, tally);
        }
        if it.block_size != self.block_size {
            return match self.blocks_in_chunk(it) {
                Some(blocks) => self.store_chunks(it, blocks, index, rank, tally),
                None => Err(self.refuse_size(it)),
            };
        }
        let size = it.block_size as usize;
        let full = match it.block_hashes.len().checked_mul(size) {
            Some(tokens) if tokens == it.tokens.len() => it.block_hashes.len(),
            // The last block is not full, so no prompt can be found by it.
            Some(tokens) if tokens > it.tokens.len() && tokens - it.tokens.len() < size => it.block_hashes.len() - 1,
            _ => return Err(Reason::TokenCount),
        };
        if full == 0 {
            return Err(Reason::PartialBlock);
        }
        // Some engines add the place when there is something to be put there.
        self.shows_salts = Some(!it.bare || self.shows_salts == Some(true));
        self.looks_ahead |= it.bigrams.is_some() || it.lookahead.is_some();
        let tier = it.tier();
        self.note_connector(tier, it.locality.as_deref());
        self.learn_chunk(tier, it.block_hashes.len(), index, rank);
        let Scratch { names: room, contents } = &mut self.scratch;
        let names = &N::block_hashes(&it.block_hashes, room)[..full];
        let parent = it.parent.as_ref().map(N::block_hash);
        let salt = salt_of(&self.salts, self.adapters.salt_of(it, tally), parent, names);
        contents.resize(names.len(), 0);
        tally.collisions += contents_of(&self.identity, it, salt.as_deref(), contents);
        // What was hit has no more copies than before.
        let counts = self.count_copies && !it.reused;
        let stored = if counts {
            index.store(rank, tier, parent, names, contents)
        } else {
            index.store_once(rank, tier, parent, names, contents)
        };
        stored.map_err(|_| Reason::IndexFull)?;
        self.has_stored = true;
        let count_copies = counts && index.config().count_copies;
        if let Some(recorder) = &mut self.recorder {
            recorder.store(tier, parent, names, contents, !count_copies);
        }
        self.salts.store(names, salt.as_ref(), tier, count_copies);
        if let Some(hybrid) = &self.hybrid {
            hybrid.store(parent, names, contents, tier, it.group.is_none(), count_copies);
        }
        tally.store(tier, names.len());
        tally.reused_blocks += if it.reused { names.len() as u64 } else { 0 };
        if !self.undescribed.is_empty() {
            let described = names.to_vec();
            self.count_described(&described, it.group.is_none(), index, rank, tally);
        }
        if tier == Tier::Gpu && (salt.is_some() || it.lora.is_some() || it.lora_id.is_some()) {
            self.note_keys(it, salt.as_ref(), index, rank);
        }
        if full == it.block_hashes.len() { Ok(()) } else { Err(Reason::PartialBlock) }
    }

    /// Returns the reason to refuse a store event whose block size differs from the index's. The event has either a
    /// part of a block, which engines with hashes finer than their blocks store at the end of a prompt, or blocks of an
    /// unsupported size.
    fn refuse_size<N: BlockName>(&mut self, it: &StoredOf<N>) -> Reason {
        let may_be_part = (1..self.block_size).contains(&it.block_size) && it.block_hashes.len() == 1;
        if !may_be_part || !self.has_stored {
            self.other_sizes.add(it.block_size, it.block_hashes.len() as u64);
        }
        if may_be_part { Reason::PartialBlock } else { Reason::BlockSize }
    }

    /// Applies a store event that announces blocks on a tier other than the device by block hash alone, as vLLM's
    /// offloading connectors do by default. The contents are taken from blocks that the rank already holds under these
    /// hashes. A block with an unknown hash waits, and counts once the engine has announced its contents.
    fn store_by_name<N: BlockName>(
        &mut self,
        it: &StoredOf<N>,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        if it.reused {
            // A hit of what is known, or of what cannot be known.
            tally.reused_blocks += it.block_hashes.len() as u64;
            return Ok(());
        }
        let tier = it.tier();
        self.take_chunk(tier, index, rank);
        let names = &mut self.scratch.names;
        names.clear();
        names.extend(it.block_hashes.iter().map(N::block_hash));
        let unknown = index.store_known(rank, tier, names);
        // They come in the order of the names.
        let mut left_out = unknown.iter().peekable();
        names.retain(|name| left_out.next_if_eq(&name).is_none());
        let known = std::mem::take(names);
        self.note_known(tier, &known, it.group.is_none(), index, tally);
        self.scratch.names = known;
        tally.named_blocks += it.block_hashes.len() as u64;
        let counts = index.config().count_copies;
        let wait = unknown.into_iter().filter(|name| !self.undescribed.add(*name, tier, counts)).count();
        if wait == 0 { Ok(()) } else { Err(Reason::NoContent) }
    }

    /// Adds copies on other tiers to the index that were announced by block hash alone, for blocks whose contents have
    /// now been announced.
    #[cold]
    fn count_described(
        &mut self,
        names: &[BlockHash],
        is_sole: bool,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) {
        for &name in names {
            let Some(copies) = self.undescribed.take(name) else { continue };
            for (&tier, copies) in Tier::ALL[1..].iter().zip(copies) {
                for _ in 0..copies {
                    if index.store_known(rank, tier, &[name]).is_empty() {
                        self.note_known(tier, &[name], is_sole, index, tally);
                    }
                }
            }
        }
    }

    /// Records that blocks with known contents were stored on a tier: in the salts, in the state of a hybrid model, in
    /// the recorder and in the tally. `is_sole` is true if the engine does not number its cache groups.
    fn note_known(&mut self, tier: Tier, names: &[BlockHash], is_sole: bool, index: &Changes<'_>, tally: &mut Tally) {
        let count_copies = self.count_copies && index.config().count_copies;
        if let Some(recorder) = &mut self.recorder {
            recorder.store_known(tier, names, !index.config().count_copies);
        }
        for &name in names {
            let salt = self.salts.of(name);
            self.salts.store(&[name], salt.as_ref(), tier, count_copies);
        }
        if let Some(hybrid) = &self.hybrid {
            // What they contain was said when they were stored first.
            hybrid.store(None, names, &[], tier, is_sole, count_copies);
        }
        tally.store(tier, names.len());
    }

    pub(super) fn remove<N: BlockName>(
        &mut self,
        it: &RemovedOf<N>,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        let tier = it.tier();
        let names = N::block_hashes(&it.block_hashes, &mut self.scratch.names);
        let blocks = self.own_chunks.on(tier);
        let of_chunks = if blocks > 0 { names_of_chunks(names, blocks) } else { Vec::new() };
        let names = if blocks > 0 { &of_chunks[..] } else { names };
        if !self.groups.remove(it.group) {
            let (Some(group), true) = (it.group, self.follow_groups) else {
                return Err(Reason::OtherGroup);
            };
            // Nothing is known of a group before its first store.
            if let Some(hybrid) = &self.hybrid {
                hybrid.remove_other(group, names, tier);
                if self.groups.only_others() {
                    self.salts.remove(names, tier);
                }
            }
            tally.group_events += 1;
            return Ok(());
        }
        let mut described = Vec::new();
        let names = if self.undescribed.is_empty() {
            names
        } else {
            described.extend(names.iter().filter(|name| !self.undescribed.remove(**name, tier)));
            &described[..]
        };
        index.remove(rank, tier, names);
        if let Some(recorder) = &mut self.recorder {
            recorder.remove(tier, names, !index.config().count_copies);
        }
        self.salts.remove(names, tier);
        if tier == Tier::Gpu {
            self.own_chunks.remove(names);
        }
        if let Some(hybrid) = &self.hybrid {
            hybrid.remove(names, tier, it.group.is_none());
        }
        tally.removed_blocks += names.len() as u64;
        Ok(())
    }

    /// Applies a store event of a cache group that is not indexed: passes it to the state of the hybrid model, or
    /// refuses it if other groups are not followed.
    fn store_other<N: BlockName>(
        &mut self,
        it: &StoredOf<N>,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        if !self.follow_groups {
            return Err(Reason::OtherGroup);
        }
        let names = N::block_hashes(&it.block_hashes, &mut self.scratch.names);
        let count_copies = self.count_copies && !it.reused && index.config().count_copies;
        let hybrid = self.hybrid.get_or_insert_with(|| seeded(index, rank));
        hybrid.store_other(it, names, it.tier(), count_copies);
        if self.groups.only_others() && it.block_size > 0 {
            let hybrid = hybrid.clone();
            self.link_other(it, &hybrid, count_copies, tally);
        }
        tally.group_events += 1;
        tally.group_blocks += it.block_hashes.len() as u64;
        tally.reused_blocks += if it.reused { it.block_hashes.len() as u64 } else { 0 };
        Ok(())
    }

    /// Passes the contents of blocks of a cache group that the index does not have to the state of the hybrid model.
    /// Needed only for models without full attention.
    fn link_other<N: BlockName>(&mut self, it: &StoredOf<N>, hybrid: &Hybrid, count_copies: bool, tally: &mut Tally) {
        let fills = it.block_hashes.len().checked_mul(it.block_size as usize) == Some(it.tokens.len());
        let parent = it.parent.as_ref().map(N::block_hash);
        if it.block_size != self.block_size || !fills {
            return hybrid.link_other(parent, &[], None, it.tier());
        }
        self.looks_ahead |= it.bigrams.is_some() || it.lookahead.is_some();
        let Scratch { names: room, contents } = &mut self.scratch;
        let names = N::block_hashes(&it.block_hashes, room);
        let salt = salt_of(&self.salts, self.adapters.salt_of(it, tally), parent, names);
        contents.resize(names.len(), 0);
        contents_of(&self.identity, it, salt.as_deref(), contents);
        hybrid.link_other(parent, names, Some(contents), it.tier());
        self.salts.store(names, salt.as_ref(), it.tier(), count_copies);
    }
}

/// Returns the cache salt of an event's blocks: the salt in the event, or the one inherited from the parent block.
fn salt_of(salts: &Salts, shown: Option<&str>, parent: Option<BlockHash>, names: &[BlockHash]) -> Option<Arc<str>> {
    match (shown, parent) {
        (Some(shown), _) => Some(shown.into()),
        // A name means one content, salt included, so what is held under it already tells as well.
        (None, Some(parent)) => salts.of(parent).or_else(|| names.first().and_then(|&name| salts.of(name))),
        (None, None) => None,
    }
}

/// Creates the state of a hybrid model for a rank, and fills it with the rank's blocks that the index already has.
/// Called at the first store event of a cache group whose blocks the index does not have.
fn seeded(index: &mut Changes<'_>, rank: &RankHandle) -> Arc<Hybrid> {
    let hybrid = Hybrid::new(index.config().block_size);
    for event in index.dump_rank(rank.worker(), rank.rank()) {
        if let index::Event::Store { tier, parent, block_hashes, content_hashes, .. } = event {
            hybrid.store(parent, &block_hashes, &content_hashes, tier, false, true);
        }
    }
    Arc::new(hybrid)
}

/// Computes the hashes by which the index identifies an event's blocks. The event's tokens must fill the blocks
/// exactly. Returns the number of blocks whose hash was seen before for other contents.
fn contents_of<N>(identity: &Identity, it: &StoredOf<N>, salt: Option<&str>, contents: &mut [u64]) -> u64 {
    let lora = it.adapter();
    let space = Space { lora: lora.as_deref(), salt };
    let size = it.block_size as usize;
    identity.words_of(&it.tokens[..contents.len() * size], size, space, &it.extra_keys, contents)
}

/// Tiers on which vLLM's offloading connectors that announce clears of their own keep blocks.
const CONNECTORS: [Tier; 2] = [Tier::Cpu, Tier::Disk];

impl Reader {
    /// Applies the clear event at position `at` of a batch.
    pub(super) fn clear<N>(&mut self, events: &[EventOf<N>], at: usize, index: &mut Changes<'_>, rank: &RankHandle) {
        if self.clears_host && is_connectors(events, at) {
            for tier in CONNECTORS {
                self.record_tier(index, rank, tier);
                index.clear(rank.worker(), Some(rank.rank()), Some(tier));
                self.note_cleared(tier);
            }
            return self.forget_undescribed(&CONNECTORS, index, rank);
        }
        if index.resets_keep(rank.worker()) {
            self.record_tier(index, rank, Tier::Gpu);
            index.reset(rank.worker(), Some(rank.rank()));
            return self.note_cleared(Tier::Gpu);
        }
        index.reset(rank.worker(), Some(rank.rank()));
        if let Some(recorder) = &mut self.recorder {
            recorder.clear();
        }
        self.forget_undescribed(&Tier::ALL[1..], index, rank);
        self.salts = Salts::default();
        self.own_chunks.clear_device();
        if let Some(hybrid) = &self.hybrid {
            hybrid.clear(None);
        }
    }

    /// Drops the blocks that were announced by block hash alone on tiers that have been cleared. Blocks on a tier that
    /// is a shared pool are kept.
    fn forget_undescribed(&mut self, cleared: &[Tier], index: &Changes<'_>, rank: &RankHandle) {
        if !self.undescribed.is_empty() {
            let own = cleared.iter().filter(|tier| !index.is_in_pool(rank.worker(), **tier));
            own.for_each(|tier| self.undescribed.clear(*tier));
        }
    }

    /// Records that the engine has a connector that announces clears of its own, if an event shows this: an event
    /// marked as local, for host memory or disk.
    pub(super) fn note_connector(&mut self, tier: Tier, locality: Option<&str>) {
        let is_local = locality.is_some_and(|locality| locality.eq_ignore_ascii_case("local"));
        self.clears_host |= is_local && CONNECTORS.contains(&tier);
    }

    /// Updates the number of blocks in a chunk (the unit of storage of a tier) after a store of `blocks` blocks. A
    /// store has whole chunks, so the number is the greatest common divisor of all stores' numbers of blocks, unless it
    /// was registered.
    #[inline]
    pub(super) fn learn_chunk(&mut self, tier: Tier, blocks: usize, index: &Changes<'_>, rank: &RankHandle) {
        let Some(slot) = (tier as usize).checked_sub(1) else { return };
        let told = self.host_chunk.filter(|_| tier == Tier::Cpu);
        let chunk = told.map_or_else(|| gcd(self.chunks[slot], u32::try_from(blocks).unwrap_or(1)), NonZeroU32::get);
        self.set_chunk(slot, chunk, index, rank);
    }

    /// Sets the number of blocks in a chunk of a tier to the number registered for host memory, unless store events
    /// have shown the tier's own. Used for chunks that are announced by the hash of their last block only.
    pub(super) fn take_chunk(&mut self, tier: Tier, index: &Changes<'_>, rank: &RankHandle) {
        if let Some(slot) = (tier as usize).checked_sub(1)
            && self.chunks[slot] == 0
            && let Some(told) = self.host_chunk
        {
            self.set_chunk(slot, told.get(), index, rank);
        }
    }

    #[inline]
    fn set_chunk(&mut self, slot: usize, chunk: u32, index: &Changes<'_>, rank: &RankHandle) {
        if chunk != self.chunks[slot] {
            self.chunks[slot] = chunk;
            self.tell_chunk(slot, index, rank);
        }
    }

    /// Records the chunks of a tier in the index and in the recorder.
    pub(super) fn tell_chunk(&mut self, slot: usize, index: &Changes<'_>, rank: &RankHandle) {
        let (tier, chunk) = (Tier::ALL[slot + 1], self.chunks[slot]);
        let is_gapless = self.has_own_chunks(tier);
        index.learn_chunk(rank.worker(), rank.rank(), tier, chunk, is_gapless);
        if let Some(recorder) = &mut self.recorder {
            recorder.chunk(tier, chunk, is_gapless);
        }
    }

    /// Records the removal of each block of a rank on a tier, as the recorder has no change that clears one tier.
    fn record_tier(&mut self, index: &mut Changes<'_>, rank: &RankHandle, cleared: Tier) {
        let Some(recorder) = &mut self.recorder else { return };
        for event in index.dump_rank(rank.worker(), rank.rank()) {
            if let Event::Store { tier, block_hashes, .. } = event
                && tier == cleared
            {
                recorder.remove(tier, &block_hashes, !index.config().count_copies);
            }
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// True if the clear event at position `at` of a batch comes from the engine's offloading connector rather than from
/// the device. To be called only for engines with a connector that announces clears.
fn is_connectors<N>(events: &[EventOf<N>], at: usize) -> bool {
    let tier = |event: &EventOf<N>| match event {
        EventOf::Stored(stored) => Some(stored.tier()),
        EventOf::Removed(removed) => Some(removed.tier()),
        EventOf::Cleared(_) => None,
    };
    let before = &events[..at];
    if before.iter().any(|event| tier(event).is_some_and(|tier| tier != Tier::Gpu)) {
        return true;
    }
    let last_clear = before.iter().rposition(|event| matches!(event, EventOf::Cleared(_)));
    let stores_since = |clear: usize| before[clear..].iter().any(|event| matches!(event, EventOf::Stored(_)));
    at + 1 == events.len() && last_clear.is_some_and(stores_since)
}
