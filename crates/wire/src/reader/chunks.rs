//! Chunks of several blocks that a connector announces under block hashes of its own, one for each chunk, as LMCache's
//! connectors do in the streams of vLLM engines.
//!
//! # Under which salt and adapter a chunk is kept
//!
//! LMCache's stores have the tokens of a chunk, but neither the salt nor the adapter of its prompt, and its hash of a chunk
//! is the same with any of them. So the device decides: a chunk is read under the salt and adapter, or without both, under
//! which the same rank's device holds the chunk's last block after the same tokens. If the device holds it under several of
//! them, or not at all, the chunk is refused.
//!
//! Only as long as no event of the device has had a salt or an adapter, a chunk is read without both even if the device
//! does not hold it, as happens if another engine of the same LMCache server has stored it. At the first event with a salt
//! or an adapter, the chunks that the device does not hold are removed.
//!
//! To compare tokens, blocks on the device that have a salt or an adapter are remembered by the prefix hash that they would
//! have without. If the first few thousand of them come without a chunk, they are forgotten, and remembered again from the
//! first chunk on, so that other streams need none of this.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use kvatlas_index::hash::next_prefix_hash;
use kvatlas_index::{BlockHash, Changes, RankHandle, Tier};

use super::{Reader, Tally};
use crate::error::Reason;
use crate::event::{BlockName, StoredOf};
use crate::identity::Space;

/// Maximum number of chunks whose tokens are remembered, for the chunks that continue them: about 40 MB. Beyond it, the
/// chunk announced first is forgotten.
const MOST: usize = 1 << 20;

/// Number of blocks with a salt or an adapter that are remembered before the first chunk.
const BEFORE_CHUNKS: usize = 1 << 12;

/// LoRA adapter and cache salt of a block: one of them or both.
#[derive(Debug, PartialEq, Eq)]
struct BlockKeys {
    lora: Option<Box<str>>,
    salt: Option<Arc<str>>,
}

/// Block on the device that has a salt or an adapter.
#[derive(Debug)]
struct KeyedBlock {
    /// Prefix hash that the block would have without salt and adapter.
    prefix: u64,
    keys: Arc<BlockKeys>,
    copies: u32,
}

/// State of a stream that concerns chunks with block hashes of their own.
#[derive(Debug, Default)]
pub(super) struct OwnChunks {
    /// Number of blocks in a chunk that is stored under one block hash, for each tier beyond the device; 0 before the first
    /// store of a chunk on the tier.
    pub(super) blocks: [u32; 3],
    /// True if any event of the device has had an adapter or a salt.
    pub(super) has_keys: bool,
    /// True for each tier beyond the device whose chunk length the index has.
    told: [bool; 3],
    /// Number of blocks with a salt or an adapter that the device has stored before the first chunk, up to a limit.
    early: usize,
    /// Prefix hash, without salt and adapter, of the last block of each chunk.
    prefixes: HashMap<BlockHash, u64>,
    /// Chunks of `prefixes`, in the order in which they were first announced.
    order: VecDeque<BlockHash>,
    /// Blocks on the device that have a salt or an adapter.
    device: HashMap<BlockHash, KeyedBlock>,
    /// Block hashes of `device`, by the prefix hash that the blocks would have without salt and adapter.
    by_prefix: HashMap<u64, Vec<BlockHash>>,
}

impl OwnChunks {
    /// State as it was saved: the number of blocks in a chunk on each tier, and true if the device had any salts or
    /// adapters.
    pub(super) fn restored(blocks: [u32; 3], has_keys: bool) -> Self {
        Self { blocks, has_keys, ..Self::default() }
    }

    /// Number of blocks in a chunk that is stored under one block hash on a tier; 0 if there are none.
    #[inline]
    pub(super) fn on(&self, tier: Tier) -> u32 {
        (tier as usize).checked_sub(1).map_or(0, |slot| self.blocks[slot])
    }

    fn has_any(&self) -> bool {
        self.blocks != [0; 3]
    }

    fn note_chunk(&mut self, chunk: BlockHash, prefix: u64) {
        if self.prefixes.insert(chunk, prefix).is_none() {
            self.order.push_back(chunk);
        }
        if self.order.len() > MOST
            && let Some(first) = self.order.pop_front()
        {
            self.prefixes.remove(&first);
        }
    }

    /// Salts and adapters under which the device holds a block, given the prefix hash that the block would have without.
    fn keys_of(&self, prefix: u64) -> Vec<Arc<BlockKeys>> {
        let names = self.by_prefix.get(&prefix).into_iter().flatten();
        let mut found: Vec<Arc<BlockKeys>> = Vec::new();
        for block in names.filter_map(|name| self.device.get(name)) {
            if !found.contains(&block.keys) {
                found.push(block.keys.clone());
            }
        }
        found
    }

    /// Records that copies of blocks were removed from the device.
    pub(super) fn remove(&mut self, names: &[BlockHash]) {
        if self.device.is_empty() {
            return;
        }
        for name in names {
            let Some(block) = self.device.get_mut(name) else { continue };
            block.copies -= 1;
            if block.copies > 0 {
                continue;
            }
            let prefix = block.prefix;
            self.device.remove(name);
            if let Some(names) = self.by_prefix.get_mut(&prefix) {
                names.retain(|other| other != name);
                if names.is_empty() {
                    self.by_prefix.remove(&prefix);
                }
            }
        }
    }

    /// Records that all blocks were removed from the device.
    pub(super) fn clear_device(&mut self) {
        (self.device, self.by_prefix) = Default::default();
    }
}

/// Appends the block hashes of a chunk's blocks, which follow from the chunk's own.
fn put_names(chunk: BlockHash, blocks: u32, names: &mut Vec<BlockHash>) {
    names.extend((0..blocks).map(|at| chunk.of_chunk(at, blocks)));
}

/// Block hashes of the blocks of several chunks.
pub(super) fn names_of_chunks(chunks: &[BlockHash], blocks: u32) -> Vec<BlockHash> {
    let mut names = Vec::with_capacity(chunks.len() * blocks as usize);
    chunks.iter().for_each(|chunk| put_names(*chunk, blocks, &mut names));
    names
}

fn after(prefix: Option<u64>, content: u64) -> u64 {
    prefix.map_or(content, |prefix| next_prefix_hash(prefix, content))
}

impl Reader {
    /// Number of blocks of the index's size in each chunk of a store event; `None` if the event does not store chunks: its tier is
    /// the device, or its block size is not a multiple of the index's, or the engine's own blocks have another size.
    pub(super) fn blocks_in_chunk<N>(&self, it: &StoredOf<N>) -> Option<u32> {
        let blocks = it.block_size / self.block_size;
        let is_multiple = blocks > 1 && it.block_size.is_multiple_of(self.block_size);
        let is_of_engine = self.has_stored || self.other_sizes.most().is_none();
        (is_multiple && is_of_engine && it.tier() != Tier::Gpu).then_some(blocks)
    }

    /// Applies a store event of chunks that have one block hash each, with the number of blocks in a chunk.
    pub(super) fn store_chunks<N: BlockName>(
        &mut self,
        it: &StoredOf<N>,
        blocks: u32,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        if it.block_hashes.len().checked_mul(it.block_size as usize) != Some(it.tokens.len()) {
            return Err(Reason::TokenCount);
        }
        let tier = it.tier();
        let Some(slot) = (tier as usize).checked_sub(1) else { return Err(Reason::BlockSize) };
        self.own_chunks.blocks[slot] = blocks.max(self.own_chunks.blocks[slot]);
        let parent = it.parent.as_ref().map(N::block_hash);
        let mut contents = std::mem::take(&mut self.scratch.contents);
        contents.resize(it.block_hashes.len() * blocks as usize, 0);
        let is_clear = self.hash_chunks(it, blocks, index, rank, &mut contents);
        self.scratch.contents = contents;
        if !is_clear {
            return Err(Reason::HiddenSalt);
        }
        self.learn_chunk(tier, blocks as usize, index, rank);
        if !std::mem::replace(&mut self.own_chunks.told[slot], true) {
            self.tell_chunk(slot, index, rank);
        }
        let names = &mut self.scratch.names;
        names.clear();
        it.block_hashes.iter().for_each(|chunk| put_names(chunk.block_hash(), blocks, names));
        let (names, contents) = (&self.scratch.names[..], &self.scratch.contents[..]);
        // LMCache has one copy of a chunk, however often it announces the chunk.
        index.store_once(rank, tier, parent, names, contents).map_err(|_| Reason::IndexFull)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.store(tier, parent, names, contents, true);
        }
        if let Some(hybrid) = &self.hybrid {
            hybrid.store(parent, names, contents, tier, it.group.is_none(), false);
        }
        tally.store(tier, names.len());
        Ok(())
    }

    /// Computes the content hashes of the blocks of chunks, under the adapter and salt that the event has, or under which
    /// the device holds the last block. Returns false if the device does not show them.
    fn hash_chunks<N: BlockName>(
        &mut self,
        it: &StoredOf<N>,
        blocks: u32,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        contents: &mut [u64],
    ) -> bool {
        self.hash_in(Space::default(), it, contents);
        let parent = it.parent.as_ref().map(N::block_hash);
        let before = parent.map(|parent| self.own_chunks.prefixes.get(&parent).copied());
        let mut prefix = before.flatten();
        let is_known = before.is_none() || prefix.is_some();
        for (chunk, contents) in it.block_hashes.iter().zip(contents.chunks(blocks as usize)).filter(|_| is_known) {
            prefix = contents.iter().fold(prefix, |prefix, content| Some(after(prefix, *content)));
            prefix.into_iter().for_each(|prefix| self.own_chunks.note_chunk(chunk.block_hash(), prefix));
        }
        let lora = it.adapter();
        let told = Space { lora: lora.as_deref(), salt: it.salt.as_deref() };
        if told.lora.is_some() || told.salt.is_some() {
            self.hash_in(told, it, contents);
            return true;
        }
        if !self.own_chunks.has_keys {
            return true;
        }
        let Some(prefix) = prefix.filter(|_| is_known) else { return false };
        match (index.is_on_device(rank, prefix), &self.own_chunks.keys_of(prefix)[..]) {
            (true, []) => true,
            (false, [keys]) => {
                self.hash_in(Space { lora: keys.lora.as_deref(), salt: keys.salt.as_deref() }, it, contents);
                true
            }
            _ => false,
        }
    }

    fn hash_in<N>(&self, space: Space<'_>, it: &StoredOf<N>, contents: &mut [u64]) {
        let size = self.block_size as usize;
        self.identity.words_into(&it.tokens[..contents.len() * size], size, space.lora, space.salt, contents);
    }

    /// Records blocks stored on the device that have an adapter or a salt. At the first of them, chunks are removed that
    /// were read without both and that the device does not hold.
    pub(super) fn note_keys<N: BlockName>(
        &mut self,
        it: &StoredOf<N>,
        salt: Option<&Arc<str>>,
        index: &mut Changes<'_>,
        rank: &RankHandle,
    ) {
        let is_first = !std::mem::replace(&mut self.own_chunks.has_keys, true);
        if is_first {
            self.remove_unlike_device(index, rank);
        }
        if !self.own_chunks.has_any() {
            if self.own_chunks.early >= BEFORE_CHUNKS {
                return;
            }
            self.own_chunks.early += it.block_hashes.len();
            if self.own_chunks.early >= BEFORE_CHUNKS {
                return self.own_chunks.clear_device();
            }
        }
        let full = it.tokens.len() / self.block_size as usize;
        let mut words = vec![0; full.min(it.block_hashes.len())];
        self.hash_in(Space::default(), it, &mut words);
        let chunks = &mut self.own_chunks;
        let mut prefix = match it.parent.as_ref().map(N::block_hash) {
            None => None,
            Some(parent) => match chunks.device.get(&parent) {
                Some(before) => Some(before.prefix),
                None => return,
            },
        };
        let keys = Arc::new(BlockKeys { lora: it.adapter().map(Into::into), salt: salt.cloned() });
        let counts = self.count_copies && !it.reused && index.config().count_copies;
        for (name, word) in it.block_hashes.iter().map(BlockName::block_hash).zip(words) {
            let its = after(prefix, word);
            prefix = Some(its);
            let block = chunks.device.entry(name).or_insert_with(|| {
                chunks.by_prefix.entry(its).or_default().push(name);
                KeyedBlock { prefix: its, keys: keys.clone(), copies: 0 }
            });
            block.copies = if counts { block.copies + 1 } else { 1 };
        }
    }

    /// Removes the chunks that the device does not hold with the same salt and adapter.
    fn remove_unlike_device(&mut self, index: &mut Changes<'_>, rank: &RankHandle) {
        for (&tier, blocks) in Tier::ALL[1..].iter().zip(self.own_chunks.blocks).filter(|(_, blocks)| *blocks > 0) {
            let held = index.names_on(rank, tier);
            let names: HashSet<_> = held.iter().map(|(name, _)| *name).collect();
            let unlike = held.iter().filter(|(name, is_on_device)| {
                let is_chunk = names.contains(&name.of_chunk(0, blocks));
                is_chunk && !is_on_device
            });
            let gone = names_of_chunks(&unlike.map(|(name, _)| *name).collect::<Vec<_>>(), blocks);
            index.remove(rank, tier, &gone);
            if let Some(recorder) = &mut self.recorder {
                recorder.remove(tier, &gone, !index.config().count_copies);
            }
            if let Some(hybrid) = &self.hybrid {
                hybrid.remove(&gone, tier, true);
            }
        }
    }
}
