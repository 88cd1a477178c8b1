//! The salts of blocks held, by block name: vLLM shows a salt on a chain's first block only, and whatever continues
//! the chain inherits it.
//!
//! Only salted blocks are here, each with the copies held on each tier, so that the memory goes when the blocks go. An
//! engine without salts pays for one comparison an event.

use std::sync::Arc;

use hashbrown::HashMap;
use kvatlas_index::{BlockHash, Tier};

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
    /// The salt of a block held.
    pub(crate) fn of(&self, block: BlockHash) -> Option<Arc<str>> {
        if self.blocks.is_empty() {
            return None;
        }
        self.blocks.get(&block).map(|salted| salted.salt.clone())
    }

    /// Blocks were stored, under this salt or under none. What was known of the names before is replaced.
    pub(crate) fn store(&mut self, names: &[BlockHash], salt: Option<&Arc<str>>, tier: Tier, count_copies: bool) {
        let Some(salt) = salt else {
            if !self.blocks.is_empty() {
                for name in names {
                    self.blocks.remove(name);
                }
            }
            return;
        };
        for name in names {
            let new = || SaltedBlock { salt: salt.clone(), copies: [0; Tier::ALL.len()] };
            let salted = self.blocks.entry(*name).or_insert_with(new);
            if salted.salt != *salt {
                *salted = new();
            }
            let copies = &mut salted.copies[tier as usize];
            *copies = if count_copies { copies.saturating_add(1) } else { (*copies).max(1) };
        }
    }

    /// A copy of each block was removed.
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

    /// Forgets what was on a tier.
    pub(crate) fn clear(&mut self, tier: Tier) {
        self.blocks.retain(|_, salted| {
            salted.copies[tier as usize] = 0;
            salted.copies != [0; Tier::ALL.len()]
        });
    }

    /// Every block with its salt and its copies on each tier, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockHash, &Arc<str>, [u32; Tier::ALL.len()])> {
        self.blocks.iter().map(|(name, salted)| (*name, &salted.salt, salted.copies))
    }

    /// A block as [`iter`](Self::iter) had it.
    pub(crate) fn put(&mut self, name: BlockHash, salt: Arc<str>, copies: [u32; Tier::ALL.len()]) {
        self.blocks.insert(name, SaltedBlock { salt, copies });
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }
}
