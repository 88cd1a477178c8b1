//! Blocks of a hybrid model, and the groups that hold them.
//!
//! Groups with blocks of the same length give a block the same name, and one with longer blocks names them as the
//! others name the block that ends there. So the group whose events say which tokens its blocks contain says for all
//! of them how a prompt begins that ends with a block: its *prefix*, a hash.

use std::num::NonZeroU64;

use hashbrown::HashMap;
use kvatlas_index::{BlockHash, Tier, hash};

/// Set of the groups that hold a block and the tiers where they do: a bit for each.
pub(super) type Holders = u64;

/// Number of holders of blocks that can be told apart.
pub(super) const HOLDERS: usize = Holders::BITS as usize / Tier::ALL.len();

/// The bit of a holder and a tier.
pub(super) fn bit(holder: usize, tier: Tier) -> Holders {
    1 << (holder * Tier::ALL.len() + tier as usize)
}

#[derive(Debug, Default)]
struct Block {
    /// Prefix that ends with the block; none until that is known.
    prefix: Option<NonZeroU64>,
    holders: Holders,
}

/// A block whose beginning is not known.
#[derive(Debug, PartialEq)]
struct Orphan {
    parent: BlockHash,
    content: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    names: HashMap<BlockHash, Block>,
    prefixes: HashMap<NonZeroU64, Holders>,
    /// Copies beyond the first.
    copies: HashMap<(BlockHash, Holders), u32>,
    orphans: HashMap<BlockHash, Orphan>,
    /// Orphans by their parents.
    waiting: HashMap<BlockHash, Vec<BlockHash>>,
    /// True if two names have meant the same or one two things, so that a prefix does not tell who holds it.
    pub(super) ambiguous: bool,
}

impl Blocks {
    /// Blocks that anybody holds.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the holders of the block that ends a prompt's beginning.
    pub(super) fn holders(&self, prefix: u64) -> Holders {
        self.prefixes.get(&key(prefix)).copied().unwrap_or(0)
    }

    pub(super) fn store(&mut self, name: BlockHash, holder: Holders, count_copies: bool) {
        let block = self.names.entry(name).or_default();
        if block.holders & holder != 0 {
            if count_copies {
                *self.copies.entry((name, holder)).or_default() += 1;
            }
            return;
        }
        block.holders |= holder;
        if let Some(prefix) = block.prefix {
            self.prefixes.insert(prefix, block.holders);
        }
    }

    /// Copies that are not held change nothing.
    pub(super) fn remove(&mut self, name: BlockHash, holder: Holders) {
        let Some(block) = self.names.get_mut(&name).filter(|block| block.holders & holder != 0) else { return };
        if !self.copies.is_empty()
            && let Some(more) = self.copies.get_mut(&(name, holder))
        {
            *more -= 1;
            if *more == 0 {
                self.copies.remove(&(name, holder));
            }
            return;
        }
        block.holders &= !holder;
        let (prefix, holders) = (block.prefix, block.holders);
        match prefix {
            Some(prefix) if holders == 0 => _ = self.prefixes.remove(&prefix),
            Some(prefix) => _ = self.prefixes.insert(prefix, holders),
            None => {}
        }
        if holders == 0 {
            self.names.remove(&name);
            self.adopt(name);
            self.shrink();
        }
    }

    /// Consecutive blocks, all of them held, contain this, as was said of copies on a tier. What is said of copies
    /// elsewhere than on the device may leave out salts, so it counts only for names that nothing was said about before.
    pub(super) fn link(&mut self, parent: Option<BlockHash>, names: &[BlockHash], contents: &[u64], tier: Tier) {
        let mut parent = parent;
        for (&name, &content) in names.iter().zip(contents) {
            if tier != Tier::Gpu && self.is_said(name) {
                parent = Some(name);
                continue;
            }
            let before = parent.map(|parent| (parent, self.names.get(&parent).and_then(|parent| parent.prefix)));
            match before {
                None => self.resolve(name, key(content)),
                Some((_, Some(prefix))) => self.resolve(name, after(prefix, content)),
                // What was known of it before is still so.
                Some((parent, None)) if self.names.get(&name).is_some_and(|block| block.prefix.is_none()) => {
                    self.wait(name, Orphan { parent, content });
                }
                Some(_) => {}
            }
            parent = Some(name);
        }
    }

    /// True if it was said of a block what it contains.
    fn is_said(&self, name: BlockHash) -> bool {
        self.names.get(&name).is_some_and(|block| block.prefix.is_some()) || self.orphans.contains_key(&name)
    }

    fn wait(&mut self, name: BlockHash, orphan: Orphan) {
        if self.orphans.get(&name) != Some(&orphan) {
            self.adopt(name);
            self.waiting.entry(orphan.parent).or_default().push(name);
            self.orphans.insert(name, orphan);
        }
    }

    /// The block is no orphan any more, or is gone.
    fn adopt(&mut self, name: BlockHash) -> Option<Orphan> {
        let orphan = self.orphans.remove(&name)?;
        if let Some(children) = self.waiting.get_mut(&orphan.parent) {
            children.retain(|child| *child != name);
            if children.is_empty() {
                self.waiting.remove(&orphan.parent);
            }
        }
        Some(orphan)
    }

    /// A block's prefix is known, and with it those of the blocks that wait for it.
    fn resolve(&mut self, name: BlockHash, prefix: NonZeroU64) {
        self.adopt(name);
        let mut known = vec![(name, prefix)];
        while let Some((name, prefix)) = known.pop() {
            let Some(block) = self.names.get_mut(&name) else { continue };
            match block.prefix.replace(prefix) {
                Some(before) if before == prefix => continue,
                Some(before) => {
                    self.ambiguous = true;
                    self.prefixes.remove(&before);
                }
                None => {}
            }
            self.ambiguous |= self.prefixes.insert(prefix, block.holders).is_some();
            for child in self.waiting.remove(&name).unwrap_or_default() {
                if let Some(orphan) = self.orphans.remove(&child) {
                    known.push((child, after(prefix, orphan.content)));
                }
            }
        }
    }

    /// Takes all blocks off a tier.
    pub(super) fn clear(&mut self, tier: Tier) {
        let of_tier = (0..HOLDERS).fold(0, |bits, holder| bits | bit(holder, tier));
        self.copies.retain(|(_, holder), _| holder & of_tier == 0);
        let held: Vec<(BlockHash, Holders)> =
            self.names.iter().map(|(&name, block)| (name, block.holders & of_tier)).collect();
        for (name, holders) in held {
            for holder in (0..Holders::BITS).map(|bit| holders & (1 << bit)).filter(|holder| *holder != 0) {
                self.remove(name, holder);
            }
        }
    }

    fn shrink(&mut self) {
        fn shrink<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
            if map.capacity() > 64 && map.len() < map.capacity() / 8 {
                map.shrink_to(2 * map.len());
            }
        }
        shrink(&mut self.names);
        shrink(&mut self.prefixes);
        shrink(&mut self.copies);
        shrink(&mut self.orphans);
        shrink(&mut self.waiting);
    }

    /// Checks that what is kept agrees with itself.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert!(!self.ambiguous);
        for (name, block) in &self.names {
            assert_ne!(block.holders, 0);
            assert!(block.prefix.is_none() || !self.orphans.contains_key(name));
            assert!(block.prefix.is_none_or(|prefix| self.prefixes[&prefix] == block.holders));
        }
        assert_eq!(self.names.values().filter(|block| block.prefix.is_some()).count(), self.prefixes.len());
        assert!(self.copies.iter().all(|((name, holder), more)| *more > 0 && self.names[name].holders & holder != 0));
        assert!(self.orphans.iter().all(|(name, orphan)| self.waiting[&orphan.parent].contains(name)));
        assert_eq!(self.waiting.values().map(Vec::len).sum::<usize>(), self.orphans.len());
        assert!(self.orphans.keys().all(|name| self.names.contains_key(name)));
    }
}

fn key(prefix: u64) -> NonZeroU64 {
    NonZeroU64::new(prefix).unwrap_or(NonZeroU64::MIN)
}

/// The prefix of a block's child.
fn after(prefix: NonZeroU64, content: u64) -> NonZeroU64 {
    key(hash::next_prefix_hash(prefix.get(), content))
}
