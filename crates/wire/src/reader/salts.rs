//! Cache salts of held blocks, by block hash, and digests of LoRA adapters' weights, which engines publish in the same
//! field of an event.
//!
//! vLLM publishes a salt with the first block of a chain only, and the blocks that continue the chain inherit it. Only
//! salted blocks are kept, each with its number of copies on each tier, so that memory is freed when all copies are
//! removed. For an engine without salts the cost is one comparison per event. A single event may not show if a key is a
//! salt or a digest of an adapter; in that case the decision depends on earlier events, which show if the engine
//! publishes digests.

use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use kvatlas_index::{BlockHash, Tier};

use super::Tally;
use crate::event::StoredOf;

#[derive(Debug, Default)]
pub(crate) struct Salts {
    blocks: HashMap<BlockHash, SaltedBlock>,
}

#[derive(Debug)]
struct SaltedBlock {
    salt: Arc<str>,
    copies: [u32; Tier::ALL.len()],
}

impl Salts {
    /// Returns the cache salt of a held block; `None` if it has none.
    pub(crate) fn of(&self, block: BlockHash) -> Option<Arc<str>> {
        if self.blocks.is_empty() {
            return None;
        }
        self.blocks.get(&block).map(|salted| salted.salt.clone())
    }

    /// Records that blocks were stored on a tier with the given salt, or without one. A store on the device replaces
    /// the blocks' known salts; a store on another tier keeps them, because events of other tiers do not contain salts.
    pub(crate) fn store(&mut self, names: &[BlockHash], salt: Option<&Arc<str>>, tier: Tier, count_copies: bool) {
        if salt.is_none() && self.blocks.is_empty() {
            return;
        }
        for name in names {
            let salted = match (self.blocks.entry(*name), salt) {
                (Entry::Occupied(known), None) if tier == Tier::Gpu => {
                    known.remove();
                    continue;
                }
                (Entry::Vacant(_), None) => continue,
                (Entry::Occupied(known), _) => known.into_mut(),
                (Entry::Vacant(new), Some(salt)) => {
                    new.insert(SaltedBlock { salt: salt.clone(), copies: [0; Tier::ALL.len()] })
                }
            };
            if let Some(salt) = salt
                && tier == Tier::Gpu
                && salted.salt != *salt
            {
                salted.salt = salt.clone();
                // The copies on other tiers are of the same block.
                salted.copies[tier as usize] = 0;
            }
            let copies = &mut salted.copies[tier as usize];
            *copies = if count_copies { copies.saturating_add(1) } else { (*copies).max(1) };
        }
    }

    /// Records that one copy of each block was removed from a tier.
    pub(crate) fn remove(&mut self, names: &[BlockHash], tier: Tier) {
        if self.blocks.is_empty() {
            return;
        }
        for name in names {
            let Some(salted) = self.blocks.get_mut(name) else { continue };
            let copies = &mut salted.copies[tier as usize];
            *copies = copies.saturating_sub(1);
            if salted.copies == [0; Tier::ALL.len()] {
                self.blocks.remove(name);
            }
        }
        if self.blocks.capacity() > 64 && self.blocks.len() < self.blocks.capacity() / 8 {
            self.blocks.shrink_to(2 * self.blocks.len());
        }
    }

    /// Records that all copies on a tier were removed.
    pub(crate) fn clear(&mut self, tier: Tier) {
        self.blocks.retain(|_, salted| {
            salted.copies[tier as usize] = 0;
            salted.copies != [0; Tier::ALL.len()]
        });
    }

    /// Iterates over all salted blocks, each with its salt and its number of copies on each tier, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockHash, &Arc<str>, [u32; Tier::ALL.len()])> {
        self.blocks.iter().map(|(name, salted)| (*name, &salted.salt, salted.copies))
    }

    /// Adds a salted block with its number of copies on each tier.
    pub(crate) fn put(&mut self, name: BlockHash, salt: Arc<str>, copies: [u32; Tier::ALL.len()]) {
        self.blocks.insert(name, SaltedBlock { salt, copies });
    }
}

/// Maximum number of LoRA adapters for which a digest of the weights is remembered.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Adapters {
    /// True if the engine publishes digests of LoRA adapters' weights; `None` before an event with an adapter.
    shows_digests: Option<bool>,
    /// Digest of each LoRA adapter's weights, by the adapter's name.
    digests: HashMap<Box<str>, Box<str>>,
    /// True if the digest of any LoRA adapter has changed, because its weights were replaced under the same name.
    changed: bool,
}

impl Adapters {
    /// Returns the cache salt in a store event; `None` if it has none. Also records the digest of the weights of the
    /// event's LoRA adapter.
    pub(crate) fn salt_of<'a, N>(&mut self, it: &'a StoredOf<N>, tally: &mut Tally) -> Option<&'a str> {
        let salt = it.salt.as_deref();
        let Some(name) = it.lora.as_deref() else { return salt };
        let Some(digest) = &it.adapter_digest else {
            // A digest would be shown beside the name in each block.
            if it.parent.is_some() || it.block_hashes.len() > 1 {
                self.shows_digests.get_or_insert(false);
            }
            return salt;
        };
        if !digest.is_sure && self.shows_digests == Some(false) {
            return salt.or(Some(&digest.text));
        }
        tally.adapter_digests += 1;
        tally.unsure_keys += u64::from(!digest.is_sure && self.shows_digests.is_none());
        if digest.is_sure {
            self.shows_digests = Some(true);
        }
        match self.digests.get(name) {
            Some(known) if *known == digest.text => {}
            Some(_) => self.changed = true,
            None if self.digests.len() >= MOST => {}
            None => drop(self.digests.insert(name.into(), digest.text.clone())),
        }
        salt
    }

    /// True if any LoRA adapter was reloaded with other weights under the same name, so that blocks of the old weights
    /// cannot be distinguished from blocks of the new ones.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }
}
