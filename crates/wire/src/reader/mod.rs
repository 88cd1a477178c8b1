//! Applying batches to the index.

mod groups;
mod salts;
mod tally;

use std::sync::Arc;

use kvatlas_index::{BlockHash, BlockIndex, Tier, hash};

use self::groups::Groups;
use self::salts::Salts;
pub use self::tally::Tally;
use crate::error::Reason;
use crate::event::{Batch, Event, Removed, Stored};
use crate::keys;
use crate::name::Name;

/// What one stream (one rank of a worker) has to remember between its batches: the salts of the blocks held, which
/// events do not repeat, and the kinds of its cache groups, which removals do not name.
#[derive(Debug)]
pub struct Reader {
    block_size: u32,
    salts: Salts,
    groups: Groups,
    /// Whether names of blocks depend on the tokens after them.
    looks_ahead: bool,
    /// Kept for its memory.
    scratch: Scratch,
}

/// Blocks of an event for which memory is kept.
const KEPT: usize = 1 << 14;

#[derive(Debug, Default)]
struct Scratch {
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

impl Scratch {
    /// One large event must not cost its memory for ever.
    fn shrink(&mut self) {
        self.names.shrink_to(KEPT.max(self.names.len()));
        self.contents.shrink_to(KEPT.max(self.contents.len()));
    }
}

impl Reader {
    /// For an index of blocks of this many tokens.
    #[must_use]
    pub fn new(block_size: u32) -> Self {
        Self {
            block_size,
            salts: Salts::default(),
            groups: Groups::default(),
            looks_ahead: false,
            scratch: Scratch::default(),
        }
    }

    /// Applies a batch, event by event in its order, to what `rank` of `worker` holds. Events that cannot be applied,
    /// and those that could not be decoded, are counted by reason; nothing fails as a whole.
    ///
    /// The batch's own rank is not looked at: which stream it came by is for the caller to say.
    pub fn apply(&mut self, batch: &Batch, index: &BlockIndex, worker: &str, rank: u32, tally: &mut Tally) {
        for refused in &batch.refused {
            tally.refuse(refused.reason, refused.events);
        }
        self.scratch.shrink();
        for event in &batch.events {
            let applied = match event {
                Event::Stored(stored) => self.store(stored, index, worker, rank, &mut tally.stored_blocks),
                Event::Removed(removed) => self
                    .remove(removed, index, worker, rank)
                    .map(|()| tally.removed_blocks += removed.block_hashes.len() as u64),
                Event::Cleared(_) => {
                    // The event names no tier. One engine means all of them; the other's offloaded blocks may or may
                    // not be gone, and to hold less than there is is the harmless side of that.
                    index.clear(worker, Some(rank), None);
                    self.salts = Salts::default();
                    tally.clears += 1;
                    Ok(())
                }
            };
            match applied {
                Ok(()) => tally.events += 1,
                Err(reason) => tally.refuse(reason, 1),
            }
        }
    }

    /// Forgets everything: what the stream held was cleared, and it begins anew.
    pub fn reset(&mut self) {
        *self = Self::new(self.block_size);
    }

    /// Forgets what was on one tier, because that was cleared.
    pub fn reset_tier(&mut self, tier: Tier) {
        self.salts.clear(tier);
    }

    /// Whether answers about this stream are an upper bound only.
    ///
    /// So it is for hybrid models, where a cache group that is not indexed may cut a prefix shorter (sliding window,
    /// Mamba, a second group with full attention), and for speculative decoding with lookahead, where the engine
    /// tells apart blocks of equal tokens by the tokens after them: there the last block of an answer may be one that
    /// the engine has only before other tokens.
    #[must_use]
    pub fn upper_bound(&self) -> bool {
        self.groups.several || self.looks_ahead
    }

    /// Blocks held under a salt, which are the ones that take memory here.
    #[must_use]
    pub fn salted_blocks(&self) -> usize {
        self.salts.len()
    }

    fn store(
        &mut self,
        it: &Stored,
        index: &BlockIndex,
        worker: &str,
        rank: u32,
        stored_blocks: &mut u64,
    ) -> Result<(), Reason> {
        if !self.groups.store(it.group, it.kind.as_deref()) {
            return Err(Reason::OtherGroup);
        }
        if it.block_hashes.is_empty() {
            return Ok(());
        }
        if it.block_size == 0 && it.tokens.is_empty() {
            return self.store_by_name(it, index, worker, rank, stored_blocks);
        }
        if it.block_size != self.block_size {
            return Err(Reason::BlockSize);
        }
        if it.block_hashes.len().checked_mul(it.block_size as usize) != Some(it.tokens.len()) {
            return Err(Reason::TokenCount);
        }
        self.looks_ahead |= it.bigrams.is_some() || it.lookahead.is_some();
        let Scratch { names, contents } = &mut self.scratch;
        names.clear();
        names.extend(it.block_hashes.iter().map(Name::canonical));
        let parent = it.parent.as_ref().map(Name::canonical);
        let salt: Option<Arc<str>> = match (&it.salt, parent) {
            (Some(shown), _) => Some((&**shown).into()),
            // A name means one content, salt included, so what is held under it already tells as well.
            (None, Some(parent)) => self.salts.of(parent).or_else(|| self.salts.of(names[0])),
            (None, None) => None,
        };
        contents.resize(names.len(), 0);
        contents_of(it, salt.as_deref(), contents);
        let tier = it.tier();
        index.store(worker, rank, tier, parent, names, contents).map_err(|_| Reason::IndexFull)?;
        self.salts.store(names, salt.as_ref(), tier, index.config().count_copies);
        *stored_blocks += names.len() as u64;
        Ok(())
    }

    /// Blocks that were copied to another tier and are announced by name alone, as vLLM's offloading connectors do
    /// unless told otherwise: they contain what the rank holds under these names.
    fn store_by_name(
        &mut self,
        it: &Stored,
        index: &BlockIndex,
        worker: &str,
        rank: u32,
        stored_blocks: &mut u64,
    ) -> Result<(), Reason> {
        let tier = it.tier();
        let names = &mut self.scratch.names;
        names.clear();
        names.extend(it.block_hashes.iter().map(Name::canonical));
        let unknown = index.store_known(worker, rank, tier, names);
        // They come in the order of the names.
        let mut left_out = unknown.iter().peekable();
        names.retain(|name| left_out.next_if_eq(&name).is_none());
        for &name in &*names {
            let salt = self.salts.of(name);
            self.salts.store(&[name], salt.as_ref(), tier, index.config().count_copies);
        }
        *stored_blocks += names.len() as u64;
        if unknown.is_empty() { Ok(()) } else { Err(Reason::NoContent) }
    }

    fn remove(&mut self, it: &Removed, index: &BlockIndex, worker: &str, rank: u32) -> Result<(), Reason> {
        if !self.groups.remove(it.group) {
            return Err(Reason::OtherGroup);
        }
        let names = &mut self.scratch.names;
        names.clear();
        names.extend(it.block_hashes.iter().map(Name::canonical));
        let tier = it.tier();
        index.remove(worker, rank, tier, names);
        self.salts.remove(names, tier);
        Ok(())
    }
}

/// The content hashes of the event's blocks, whose tokens fill them.
fn contents_of(it: &Stored, salt: Option<&str>, contents: &mut [u64]) {
    let block_size = it.block_size as usize;
    let lora = it.adapter();
    hash::content_hashes_into(&it.tokens, block_size, lora.as_deref(), salt, contents);
    for with_keys in it.extra_keys.chunk_by(|a, b| a.0 == b.0) {
        let block = with_keys[0].0 as usize;
        let tokens = it.tokens.chunks_exact(block_size).nth(block);
        if let (Some(tokens), Some(content)) = (tokens, contents.get_mut(block)) {
            *content = keys::content_hash(tokens, with_keys.iter().map(|(_, key)| key), lora.as_deref(), salt);
        }
    }
}
