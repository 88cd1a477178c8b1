//! Block hashes of one rank or pool, each with its block and the block's prefix hash.
//!
//! A block's prefix hash is computed from the preceding block's prefix hash. It is kept as long as the block is held on
//! any tier, even if the preceding block is removed. If the preceding block is held and its prefix hash changes, so
//! does the block's.

use smallvec::SmallVec;

use crate::hash::next_prefix_hash;
use crate::segmented::Map;
use crate::types::Tier;

/// Block's content: the block hash of its parent (None for the first block of a prompt) and its own content hash.
pub(super) type Block = (Option<u64>, u64);

/// Set of tiers as a bit mask: bit n stands for the n-th tier of [`Tier::ALL`].
pub(super) type Tiers = u8;

/// Set of tiers, as a bit mask, with one tier.
pub(crate) fn only(tier: Tier) -> Tiers {
    1 << tier as u8
}

/// Data of a block hash: its block, the block's prefix hash, and the tiers that have the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownName {
    pub(super) block: Block,
    /// Prefix hash of the block; None while a preceding block is unknown.
    pub(super) prefix: Option<u64>,
    /// Tiers that have the block. Empty if the block itself is not held, but blocks that continue it are: their prefix
    /// hashes depend on it.
    pub(super) on: Tiers,
}

/// Block hashes of one rank or pool, in maps by block hash and by prefix hash.
#[derive(Default)]
pub(super) struct Names {
    by_name: Map<u64, KnownName>,
    /// Block hashes of the blocks that continue each block, by the block hash of the preceding block, which need not be
    /// held itself.
    children: Map<u64, SmallVec<[u64; 2]>>,
    /// Block hashes by the prefix hash of their block: usually one each, but engines may use several block hashes for a
    /// block.
    by_prefix: Map<u64, SmallVec<[u64; 2]>>,
}

impl Names {
    pub(super) fn bytes(&self) -> usize {
        self.by_name.bytes() + self.children.bytes() + self.by_prefix.bytes()
    }

    #[cfg(feature = "testing")]
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn get(&self, name: u64) -> Option<KnownName> {
        self.by_name.get(&name).copied()
    }

    /// Block hashes of the blocks with this prefix hash.
    #[inline]
    pub(super) fn of_prefix(&self, prefix: u64) -> &[u64] {
        self.by_prefix.get(&prefix).map_or(&[], |names| names)
    }

    /// True if a block with this prefix hash is on the tier.
    #[inline]
    pub(super) fn holds(&self, prefix: u64, tier: Tier) -> bool {
        self.of_prefix(prefix).iter().any(|name| self.get(*name).is_some_and(|known| known.on & only(tier) != 0))
    }

    /// Block hashes of the blocks that are on any of these tiers.
    pub(super) fn names_on(&self, tiers: Tiers) -> Vec<u64> {
        self.by_name.iter().filter(|(_, known)| known.on & tiers != 0).map(|(&name, _)| name).collect()
    }

    /// Sets the block behind a block hash, and the tiers that have it. If the block differs from the former one, its
    /// prefix hash becomes unknown. Returns pairs of a block hash and its parent for all hashes that no longer wait for
    /// that parent: `name` if its parent changed, and hashes that were forgotten because of the change.
    pub(super) fn set(&mut self, name: u64, block: Block, on: Tiers) -> SmallVec<[(u64, Option<u64>); 4]> {
        let mut moved = SmallVec::new();
        let Some(before) = self.get(name) else {
            self.by_name.insert(name, KnownName { block, prefix: None, on });
            self.link(block.0, name);
            return moved;
        };
        if before.block != block {
            self.put(name, None, &mut Vec::new());
            self.unlink(before.block.0, name);
            self.link(block.0, name);
        }
        if let Some(known) = self.by_name.get_mut(&name) {
            (known.block, known.on) = (block, on);
        }
        if let Some(parent) = before.block.0.filter(|_| before.block.0 != block.0) {
            moved.push((name, Some(parent)));
            moved.extend(self.forget_unused(parent));
        }
        moved
    }

    /// All block hashes, each with the block's content, prefix hash and tiers.
    pub(super) fn known(&self) -> impl Iterator<Item = (u64, KnownName)> {
        self.by_name.iter().map(|(&name, known)| (name, *known))
    }

    /// All block hashes, each with the block hash of its parent.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, Option<u64>)> {
        self.known().map(|(name, known)| (name, known.block.0))
    }

    /// Forgets a block hash whose block is no longer on any tier, and returns its data.
    pub(super) fn forget(&mut self, name: u64) -> Option<KnownName> {
        let known = self.by_name.remove(&name)?;
        if let Some(prefix) = known.prefix {
            self.unname(prefix, name);
        }
        self.unlink(known.block.0, name);
        Some(known)
    }

    /// Sets the prefix hash of a block and updates those of all blocks that continue it. Appends to `fresh` the block
    /// hashes whose prefix hash has become known or has changed.
    pub(super) fn put(&mut self, name: u64, prefix: Option<u64>, fresh: &mut Vec<u64>) {
        let mut next: SmallVec<[(u64, Option<u64>); 8]> = SmallVec::new();
        next.push((name, prefix));
        let mut is_first = true;
        while let Some((at, prefix)) = next.pop() {
            // Names may be in a circle, if an engine wants it so: each has one parent, so it comes back to the first.
            if at == name && !std::mem::take(&mut is_first) {
                continue;
            }
            let Some(known) = self.by_name.get_mut(&at).filter(|known| known.prefix != prefix) else { continue };
            if let Some(before) = std::mem::replace(&mut known.prefix, prefix) {
                self.unname(before, at);
            }
            if let Some(prefix) = prefix {
                self.by_prefix.get_or_insert_with(prefix, SmallVec::new).push(at);
                fresh.push(at);
            }
            for child in self.children.get(&at).into_iter().flatten() {
                let content = self.by_name.get(child).map(|known| known.block.1);
                next.extend(content.map(|content| (*child, prefix.map(|prefix| next_prefix_hash(prefix, content)))));
            }
        }
    }

    /// Records that a block is no longer on any tier. Its data stay as long as a block that continues it is held.
    /// Returns the block hashes that were forgotten, each with its parent.
    pub(super) fn release(&mut self, name: u64) -> SmallVec<[(u64, Option<u64>); 4]> {
        if let Some(known) = self.by_name.get_mut(&name) {
            known.on = 0;
        }
        self.forget_unused(name)
    }

    /// Forgets a block hash if neither its block nor a block that continues it is held, and then its parents by the
    /// same rule. Returns the block hashes that were forgotten, each with its parent.
    pub(super) fn forget_unused(&mut self, name: u64) -> SmallVec<[(u64, Option<u64>); 4]> {
        let mut gone = SmallVec::new();
        let mut next = Some(name);
        while let Some(at) = next.take()
            && self.get(at).is_some_and(|known| known.on == 0)
            && !self.children.contains_key(&at)
        {
            if let Some(known) = self.forget(at) {
                gone.push((at, known.block.0));
                next = known.block.0;
            }
        }
        gone
    }

    /// Forgets a block hash and the hashes of all blocks that continue its block. Returns them, each with its parent.
    pub(super) fn forget_from(&mut self, name: u64) -> Vec<(u64, Option<u64>)> {
        let mut gone = Vec::new();
        let mut next = vec![name];
        while let Some(at) = next.pop() {
            next.extend(self.children.get(&at).into_iter().flatten().copied());
            gone.extend(self.forget(at).map(|known| (at, known.block.0)));
        }
        gone
    }

    fn unname(&mut self, prefix: u64, name: u64) {
        remove_from(&mut self.by_prefix, prefix, name);
    }

    fn link(&mut self, parent: Option<u64>, name: u64) {
        if let Some(parent) = parent {
            self.children.get_or_insert_with(parent, SmallVec::new).push(name);
        }
    }

    fn unlink(&mut self, parent: Option<u64>, name: u64) {
        if let Some(parent) = parent {
            remove_from(&mut self.children, parent, name);
        }
    }

    /// True if the maps from block hashes and from prefix hashes agree with each other; for tests.
    #[cfg(feature = "testing")]
    pub(super) fn is_consistent(&self) -> bool {
        let count = |lists: &Map<u64, SmallVec<[u64; 2]>>| lists.iter().map(|(_, names)| names.len()).sum::<usize>();
        let known = || self.by_name.iter().map(|(name, known)| (*name, *known));
        let listed = || known().filter_map(|(name, known)| Some((name, known.prefix?)));
        count(&self.children) == known().filter(|(_, known)| known.block.0.is_some()).count()
            && count(&self.by_prefix) == listed().count()
            && listed().all(|(name, prefix)| self.of_prefix(prefix).contains(&name))
            && known().all(|(name, known)| known.on != 0 || self.children.contains_key(&name))
    }
}

/// Removes a block hash from the list of a key in a map of lists, and the list if it becomes empty.
fn remove_from(lists: &mut Map<u64, SmallVec<[u64; 2]>>, key: u64, name: u64) {
    let Some(names) = lists.get_mut(&key) else { return };
    if let Some(at) = names.iter().position(|it| *it == name) {
        names.swap_remove(at);
    }
    if names.is_empty() {
        lists.remove(&key);
    }
}
