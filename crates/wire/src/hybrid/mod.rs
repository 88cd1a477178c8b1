//! Depths (numbers of leading blocks of a prompt) that the engine of a hybrid model can serve from its cache.
//!
//! A hybrid model has several cache groups, sets of layers with blocks and events of their own. A prompt can be
//! continued at a depth that every group can serve: a group with full attention needs all blocks before that depth, one
//! with a sliding window the last few, one with a recurrent state the last. The index knows one group with full
//! attention. This module keeps the blocks of the other groups, and computes the greatest depth, up to the index's,
//! that they can serve too.
//!
//! ```text
//! need     how far one group reaches, given which blocks it holds
//! blocks   which groups hold the block that ends a given beginning of a prompt
//! ```

mod blocks;
#[cfg(test)]
mod tests;

use kvatlas_index::{BlockHash, Tier};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::blocks::{Blocks, HOLDERS, Need, bit};
use crate::event::StoredOf;

/// Number of the cache group whose blocks the index has, among the groups that hold blocks.
const INDEXED: usize = 0;
/// Number of a pseudo cache group for offloading connectors, which keep the blocks of all groups and announce them
/// without naming a group.
const ALL_GROUPS: usize = 1;
/// Number of the first cache group whose blocks the index does not have, among the groups that hold blocks.
const OTHERS: usize = 2;

/// Blocks that one rank of a hybrid model holds, by cache group (layers whose blocks are kept together). Written by a
/// [`Reader`](crate::Reader), and read by queries.
#[derive(Debug)]
pub struct Hybrid {
    inner: RwLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Number of tokens in a block of the index. Cache groups may have other block sizes.
    block_size: u32,
    groups: Vec<Group>,
    blocks: Blocks,
    /// True if any block was ever stored on a tier other than the device.
    offloaded: bool,
    /// True if some cache groups cannot be followed, because there are too many or they have no number.
    lost: bool,
    /// True if the index has the blocks of one of the cache groups. Models with only sliding windows have no such
    /// group.
    indexed: bool,
    /// True if no cache group is indexed, and some events lacked the contents of their blocks.
    sparse: bool,
}

#[derive(Debug)]
struct Group {
    number: u32,
    block_size: u32,
    /// Blocks that the cache group must hold to serve a depth; `None` while unknown, and for kinds of attention whose
    /// needs cannot be derived from events.
    need: Option<Need>,
}

impl Hybrid {
    pub(crate) fn new(block_size: u32) -> Self {
        let inner = Inner {
            block_size,
            groups: Vec::new(),
            blocks: Blocks::default(),
            offloaded: false,
            lost: false,
            indexed: false,
            sparse: false,
        };
        Self { inner: RwLock::new(inner) }
    }

    /// True if the needs of all cache groups are known, so that [`depths`](Self::depths) returns exactly the depths
    /// that the engine can serve.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.read().is_exact()
    }

    /// True if nothing is known about the depths that the engine can serve, because no cache group publishes the
    /// contents of all its blocks.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.read().is_blind()
    }

    /// Returns the number of different blocks that any cache group holds, including the group in the index.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.read().blocks.len()
    }

    /// Computes the depths, up to `depths` from the index, that all cache groups can serve: from the device; from
    /// device or host memory; from these or local disks; from any tier. `prefixes` are the prefix hashes of the
    /// prompt's blocks.
    ///
    /// Returns `depths` unchanged if the needs of the groups are not known: see [`is_exact`](Self::is_exact).
    #[must_use]
    pub fn depths(&self, prefixes: &[u64], depths: [u32; 4]) -> [u32; 4] {
        let it = self.read();
        if !it.is_exact() {
            return depths;
        }
        let mut served = [0; 4];
        for view in 0..served.len() {
            served[view] = match view.checked_sub(1) {
                Some(before) if depths[view] == depths[before] && !it.offloaded => served[before],
                _ => it.serve(prefixes, depths[view], view),
            };
        }
        served
    }

    /// Computes the greatest depth up to `limit` that all cache groups can serve from the device; returns `limit` if
    /// the needs of the groups are not known.
    ///
    /// A slightly smaller limit may give a much smaller depth, because a sliding window needs the blocks right before
    /// the depth.
    #[must_use]
    pub fn reach(&self, prefixes: &[u64], limit: u32) -> u32 {
        let it = self.read();
        if it.is_exact() { it.serve(prefixes, limit, 0) } else { limit }
    }

    /// Computes the depths, in the form of [`depths`](Self::depths), for a model without an indexed cache group. `None`
    /// for other models, or if the depths are not certain.
    #[must_use]
    pub fn depths_alone(&self, prefixes: &[u64]) -> Option<[u32; 4]> {
        {
            let it = self.read();
            if it.indexed || !it.is_exact() {
                return None;
            }
        }
        Some(self.depths(prefixes, [u32::try_from(prefixes.len()).unwrap_or(u32::MAX); 4]))
    }

    /// Records that the cache group in the index has stored blocks. `all_groups` is true if an offloading connector
    /// announced the blocks for all cache groups at once.
    pub(crate) fn store(
        &self,
        parent: Option<BlockHash>,
        names: &[BlockHash],
        contents: &[u64],
        tier: Tier,
        all_groups: bool,
        count_copies: bool,
    ) {
        let mut it = self.write();
        it.indexed = true;
        it.hold(INDEXED, names, tier, count_copies);
        if all_groups {
            it.hold(ALL_GROUPS, names, tier, count_copies);
        }
        it.blocks.link(parent, names, contents, tier);
    }

    /// Records that a cache group whose blocks the index does not have has stored blocks.
    pub(crate) fn store_other<N>(&self, event: &StoredOf<N>, names: &[BlockHash], tier: Tier, count_copies: bool) {
        let mut it = self.write();
        let Some(group) = event.group.and_then(|number| it.group(number)) else {
            it.lost = true;
            return;
        };
        it.describe(group, event);
        it.hold(OTHERS + group, names, tier, count_copies);
    }

    /// Sets the content hashes of blocks held by a cache group whose blocks the index does not have. `contents` is
    /// `None` if the event lacks the blocks' tokens.
    pub(crate) fn link_other(
        &self,
        parent: Option<BlockHash>,
        names: &[BlockHash],
        contents: Option<&[u64]>,
        tier: Tier,
    ) {
        let mut it = self.write();
        match contents {
            Some(contents) => it.blocks.link(parent, names, contents, tier),
            None => it.sparse = true,
        }
    }

    pub(crate) fn remove(&self, names: &[BlockHash], tier: Tier, all_groups: bool) {
        let mut it = self.write();
        it.release(INDEXED, names, tier);
        if all_groups {
            it.release(ALL_GROUPS, names, tier);
        }
    }

    pub(crate) fn remove_other(&self, group: u32, names: &[BlockHash], tier: Tier) {
        let mut it = self.write();
        // One that has stored nothing may turn out to be the one that is indexed.
        if let Some(group) = it.find(group) {
            it.release(OTHERS + group, names, tier);
        }
    }

    /// Removes all blocks on a tier; `None` for all tiers.
    pub(crate) fn clear(&self, tier: Option<Tier>) {
        let mut it = self.write();
        match tier {
            Some(tier) => it.blocks.clear(tier),
            None => it.blocks = Blocks::default(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write()
    }
}

impl Inner {
    fn is_exact(&self) -> bool {
        !self.is_blind() && !self.lost && !self.blocks.ambiguous && self.groups.iter().all(|group| group.need.is_some())
    }

    fn is_blind(&self) -> bool {
        self.sparse && !self.indexed
    }

    fn find(&self, number: u32) -> Option<usize> {
        self.groups.iter().position(|group| group.number == number)
    }

    /// Finds the cache group with this number, or adds it if new, and returns its position in the list of groups;
    /// `None` if there are too many groups.
    fn group(&mut self, number: u32) -> Option<usize> {
        self.find(number).or_else(|| {
            let room = OTHERS + self.groups.len() < HOLDERS;
            room.then(|| {
                self.groups.push(Group { number, block_size: 0, need: None });
                self.groups.len() - 1
            })
        })
    }

    /// Determines from a store event which blocks a cache group needs. The largest block size seen is used, because
    /// placeholders of offloaded blocks have size 0, and entries for partial blocks a smaller size.
    fn describe<N>(&mut self, group: usize, event: &StoredOf<N>) {
        let of_index = self.block_size;
        let group = &mut self.groups[group];
        if event.block_size > group.block_size {
            group.block_size = event.block_size;
            group.need =
                event.kind.as_deref().and_then(|kind| Need::of(kind, event.window, event.block_size, of_index));
        }
    }

    fn hold(&mut self, holder: usize, names: &[BlockHash], tier: Tier, count_copies: bool) {
        self.offloaded |= tier != Tier::Gpu;
        for &name in names {
            self.blocks.store(name, bit(holder, tier), count_copies);
        }
    }

    fn release(&mut self, holder: usize, names: &[BlockHash], tier: Tier) {
        for &name in names {
            self.blocks.remove(name, bit(holder, tier));
        }
    }

    /// Computes the greatest depth up to `limit` that all cache groups can serve from the first `view` + 1 tiers.
    /// Repeats over the groups until none of them reduces the depth further.
    fn serve(&self, prefixes: &[u64], limit: u32, view: usize) -> u32 {
        let mut depth = prefixes.len().min(limit as usize);
        let tiers = |holder| Tier::ALL[..=view].iter().fold(0, |bits, &tier| bits | bit(holder, tier));
        let whole = tiers(ALL_GROUPS);
        loop {
            let before = depth;
            for (number, group) in self.groups.iter().enumerate() {
                let holders = tiers(OTHERS + number) | whole;
                let held = |block: usize| self.blocks.holders(prefixes[block - 1]) & holders != 0;
                depth = group.need.map_or(depth, |need| need.reach(depth, held));
            }
            if depth == before {
                return depth as u32;
            }
        }
    }
}
