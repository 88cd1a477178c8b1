//! Salts of the blocks held, by block name, and digests of adapters' weights, which engines publish in the same place.
//!
//! vLLM publishes a salt on a chain's first block only, and the blocks that continue the chain inherit it. Only salted
//! blocks are kept here, each with the copies held on each tier, so that the memory is freed when the blocks are
//! removed. For an engine without salts this costs one comparison per event. Whether an engine publishes digests of
//! adapters at all is remembered: that distinguishes a digest from a salt where one event cannot.

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
    /// Salt of a held block; `None` without one.
    pub(crate) fn of(&self, block: BlockHash) -> Option<Arc<str>> {
        if self.blocks.is_empty() {
            return None;
        }
        self.blocks.get(&block).map(|salted| salted.salt.clone())
    }

    /// Records that blocks were stored, with this salt or without one. On the device this replaces the known salts of
    /// these names. Copies on other tiers are announced without their salts, so there known salts stay.
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

    /// Records that a copy of each block was removed.
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

    /// Drops the copies on a tier.
    pub(crate) fn clear(&mut self, tier: Tier) {
        self.blocks.retain(|_, salted| {
            salted.copies[tier as usize] = 0;
            salted.copies != [0; Tier::ALL.len()]
        });
    }

    /// All salted blocks, each with its salt and its copies on each tier, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockHash, &Arc<str>, [u32; Tier::ALL.len()])> {
        self.blocks.iter().map(|(name, salted)| (*name, &salted.salt, salted.copies))
    }

    /// Adds a block in the form in which [`iter`](Self::iter) returns it.
    pub(crate) fn put(&mut self, name: BlockHash, salt: Arc<str>, copies: [u32; Tier::ALL.len()]) {
        self.blocks.insert(name, SaltedBlock { salt, copies });
    }
}

/// Maximum number of adapters whose digests are remembered.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Adapters {
    /// True if the engine publishes digests of adapters; `None` until an event with an adapter has shown it.
    shows_digests: Option<bool>,
    /// Digest of each adapter's weights, by the adapter's name.
    digests: HashMap<Box<str>, Box<str>>,
    /// True if the digest of any adapter has changed.
    changed: bool,
}

impl Adapters {
    /// Salt in a store event. Also records the digest of the event's adapter.
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

    /// True if an adapter was loaded anew under its name, so that blocks of the old one look like blocks of the new
    /// one.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }
}
