//! Blocks of a hybrid model, the cache groups that hold them, and the blocks that a group needs to serve a prompt. A
//! cache group is a set of layers whose blocks are kept together.
//!
//! Cache groups with blocks of the same length use the same block hash for a block. A group with longer blocks uses,
//! for each of them, the hash of the short block that ends at the same token. So one group whose events contain tokens
//! shows for all groups which prefix of a prompt ends with a given block; the prefix is stored as its hash.

use std::num::NonZeroU64;

use hashbrown::HashMap;
use kvatlas_index::{BlockHash, Tier, hash};

/// Set of pairs of a cache group and a tier that hold a block, one bit per pair.
pub(super) type Holders = u64;

/// Maximum number of cache groups that [`Holders`] can represent.
pub(super) const HOLDERS: usize = Holders::BITS as usize / Tier::ALL.len();

/// Returns the bit for a cache group (`holder`) and a tier.
pub(super) fn bit(holder: usize, tier: Tier) -> Holders {
    1 << (holder * Tier::ALL.len() + tier as usize)
}

#[derive(Debug, Default)]
struct Block {
    /// Hash of the prompt's prefix that ends with the block; `None` while unknown.
    prefix: Option<NonZeroU64>,
    holders: Holders,
}

/// Block whose prefix hash is unknown, because its parent's prefix hash is unknown.
#[derive(Debug, PartialEq)]
struct Orphan {
    parent: BlockHash,
    content: u64,
}

/// Blocks of one rank of a hybrid model, by block hash and by prefix hash, with the cache groups that hold them.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    names: HashMap<BlockHash, Block>,
    prefixes: HashMap<NonZeroU64, Holders>,
    /// Number of copies beyond the first, by block hash and by cache group with tier.
    copies: HashMap<(BlockHash, Holders), u32>,
    orphans: HashMap<BlockHash, Orphan>,
    /// Block hashes of orphans (blocks with an unknown prefix), by the block hash of their parent.
    waiting: HashMap<BlockHash, Vec<BlockHash>>,
    /// True if one block hash was used for two prefixes, or two block hashes for one prefix, so that a prefix hash no
    /// longer determines which groups hold the block.
    pub(super) ambiguous: bool,
}

impl Blocks {
    /// Returns the number of blocks that any cache group holds.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the cache groups that hold the last block of a prefix, given by its prefix hash.
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

    /// Removes one copy of a block from a cache group and tier. Does nothing if they do not hold the block.
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

    /// Sets the content hashes of consecutive held blocks, as announced for a tier. Announcements for tiers other than
    /// the device may lack salts, so they only affect blocks whose contents were not announced before.
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

    /// True if the contents of a block have been announced.
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

    /// Removes a block from the orphans (blocks with an unknown prefix), because its prefix is now known or the block
    /// was removed.
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

    /// Sets the prefix hash of a block, and then the prefix hashes of all blocks that continue its chain.
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

    /// Removes all blocks on a tier.
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

    /// Checks that the maps are consistent with each other, for tests.
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

/// Computes the prefix hash of the block with content hash `content` that follows the given prefix.
fn after(prefix: NonZeroU64, content: u64) -> NonZeroU64 {
    key(hash::next_prefix_hash(prefix.get(), content))
}

/// Blocks that a cache group must hold so that the engine can continue a prompt at a depth (a number of leading
/// blocks).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// All blocks up to the depth, as for full attention.
    Whole {
        /// Length of one block of the group, as a number of blocks of the index.
        step: usize,
    },
    /// The last `blocks` blocks up to the depth, or all if there are fewer, as for a sliding window.
    Last {
        /// Number of the group's blocks needed, at least 1.
        blocks: usize,
        /// Length of one block of the group, as a number of blocks of the index.
        step: usize,
    },
}

impl Need {
    /// Returns the need of a cache group of this kind of attention. `block_size` is the number of tokens in a block of
    /// the group, `of_index` in a block of the index. `None` if the need is unknown, or cannot be expressed in blocks
    /// of the index.
    pub(super) fn of(kind: &str, window: Option<u64>, block_size: u32, of_index: u32) -> Option<Self> {
        // One state, where the prompt is continued. It has a name there or nowhere, however long the group's blocks are.
        if kind == "mamba" {
            return Some(Self::Last { blocks: 1, step: 1 });
        }
        if block_size == 0 || !block_size.is_multiple_of(of_index) {
            return None;
        }
        let step = (block_size / of_index) as usize;
        match kind {
            "full_attention" | "mla_attention" | "sink_full_attention" => Some(Self::Whole { step }),
            // The token that comes next sees itself and those before it.
            "sliding_window" | "sliding_window_mla" => {
                let before = window?.saturating_sub(1).div_ceil(u64::from(block_size)).max(1);
                Some(Self::Last { blocks: usize::try_from(before).unwrap_or(usize::MAX), step })
            }
            _ => None,
        }
    }

    /// Computes the greatest depth up to `limit` that the cache group can serve, in blocks of the index. `held` returns
    /// true if the group holds the block that ends at a depth.
    pub(super) fn reach(self, limit: usize, held: impl Fn(usize) -> bool) -> usize {
        match self {
            Self::Whole { step } => {
                let whole = (1..=limit / step).take_while(|&block| held(block * step)).count();
                whole * step
            }
            Self::Last { blocks, step } => {
                let mut reach = limit - limit % step;
                // All blocks from here to `reach` are held.
                let mut known = reach + step;
                while reach > 0 {
                    let first = reach.saturating_sub((blocks - 1).saturating_mul(step)).max(step);
                    // The first that is missing rules out most: every depth from it to `reach` needs it.
                    let missing = (first..known).step_by(step).find(|&block| !held(block));
                    known = first;
                    match missing {
                        Some(missing) => reach = missing - step,
                        None => break,
                    }
                }
                reach
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(need: Need, limit: usize, held: &[usize]) -> usize {
        need.reach(limit, |block| held.contains(&block))
    }

    #[test]
    fn kinds() {
        let last = |blocks, step| Some(Need::Last { blocks, step });
        for (kind, window, block_size, need) in [
            ("full_attention", None, 16, Some(Need::Whole { step: 1 })),
            ("mla_attention", None, 48, Some(Need::Whole { step: 3 })),
            ("sliding_window", Some(33), 16, last(2, 1)),
            ("sliding_window", Some(34), 16, last(3, 1)),
            ("sliding_window_mla", Some(34), 32, last(2, 2)),
            ("sliding_window", Some(1), 16, last(1, 1)),
            ("sliding_window", Some(0), 16, last(1, 1)),
            ("sliding_window", None, 16, None),
            ("sliding_window", Some(33), 8, None),
            ("sliding_window", Some(33), 24, None),
            ("sliding_window", Some(33), 0, None),
            ("mamba", None, 528, last(1, 1)),
            ("chunked_local_attention", None, 16, None),
            ("unknown", None, 16, None),
        ] {
            assert_eq!(Need::of(kind, window, block_size, 16), need, "{kind} {window:?} {block_size}");
        }
    }

    #[test]
    fn windows_are_looked_for_from_the_end() {
        let two = Need::Last { blocks: 2, step: 1 };
        assert_eq!(reach(two, 6, &[2, 3, 5]), 3);
        assert_eq!(reach(two, 6, &[1, 3, 5]), 1);
        assert_eq!(reach(two, 6, &[3, 5]), 0);
        assert_eq!(reach(two, 6, &[5, 6]), 6);
        assert_eq!(reach(two, 5, &[5, 6]), 0);
        let coarse = Need::Last { blocks: 2, step: 2 };
        assert_eq!(reach(coarse, 7, &[2, 4, 6]), 6);
        assert_eq!(reach(coarse, 7, &[2, 6]), 2);
        assert_eq!(reach(Need::Last { blocks: usize::MAX, step: 1 }, 4, &[1, 2, 3, 4]), 4);
        assert_eq!(reach(Need::Whole { step: 2 }, 7, &[2, 4, 7]), 4);
    }
}
