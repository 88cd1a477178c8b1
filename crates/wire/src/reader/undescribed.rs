//! Blocks on tiers beyond the device that were announced by block hash alone, and whose contents the engine has not
//! announced yet.
//!
//! Blocks that an engine copies from another engine or loads from a pool reach its host memory before its device, and
//! connectors that announce block hashes alone do so before the device's events contain the blocks' tokens. A block
//! waits in this module until its contents are known, and is then added to the index with all its copies; or until a
//! removal of the block or a clear of its tier.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use kvatlas_index::{BlockHash, Tier};

/// Maximum number of waiting block hashes, more than engines load at once. Beyond it, the block that has waited longest
/// is dropped.
const MOST: usize = 1 << 16;

/// Number of copies of a block on each tier beyond the device.
pub(super) type Copies = [u32; Tier::ALL.len() - 1];

#[derive(Debug)]
struct NameOnlyBlock {
    copies: Copies,
    /// Position of the block in the order of first announcements, counted from 0.
    place: u64,
}

/// Blocks held on tiers beyond the device whose contents are not known, by block hash.
#[derive(Debug, Default)]
pub(super) struct NameOnlyBlocks {
    names: HashMap<BlockHash, NameOnlyBlock>,
    order: BTreeMap<u64, BlockHash>,
    next: u64,
}

fn slot(tier: Tier) -> Option<usize> {
    (tier as usize).checked_sub(1)
}

impl NameOnlyBlocks {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Records that a block was announced on a tier by block hash alone. Returns false if the oldest waiting block was
    /// dropped because there were too many, or if the tier is the device.
    pub(super) fn add(&mut self, name: BlockHash, tier: Tier, count_copies: bool) -> bool {
        let Some(slot) = slot(tier) else { return false };
        let mut copies = Copies::default();
        copies[slot] = 1;
        match self.names.get_mut(&name) {
            Some(known) if known.copies[slot] > 0 && !count_copies => {}
            Some(known) => known.copies[slot] = known.copies[slot].saturating_add(1),
            None => self.put(name, copies),
        }
        self.names.len() <= MOST || self.order.pop_first().is_none_or(|(_, first)| self.names.remove(&first).is_none())
    }

    /// Adds a block with its number of copies on each tier, as the most recently announced one.
    pub(super) fn put(&mut self, name: BlockHash, copies: Copies) {
        self.order.insert(self.next, name);
        self.names.insert(name, NameOnlyBlock { copies, place: self.next });
        self.next += 1;
    }

    /// Removes a block whose contents are now known, and returns its number of copies on each tier; `None` if it was
    /// not waiting.
    pub(super) fn take(&mut self, name: BlockHash) -> Option<Copies> {
        let NameOnlyBlock { copies, place } = self.names.remove(&name)?;
        self.order.remove(&place);
        Some(copies)
    }

    /// Records that one copy of a waiting block was removed from a tier. Returns false if the block is not waiting on
    /// that tier.
    pub(super) fn remove(&mut self, name: BlockHash, tier: Tier) -> bool {
        let Some((known, slot)) = self.names.get_mut(&name).zip(slot(tier)) else { return false };
        if known.copies[slot] == 0 {
            return false;
        }
        known.copies[slot] -= 1;
        if known.copies == Copies::default() {
            self.take(name);
        }
        true
    }

    /// Drops all copies of waiting blocks on a tier.
    pub(super) fn clear(&mut self, tier: Tier) {
        let Some(slot) = slot(tier) else { return };
        let Self { names, order, .. } = self;
        names.retain(|_, known| {
            known.copies[slot] = 0;
            let stays = known.copies != Copies::default();
            if !stays {
                order.remove(&known.place);
            }
            stays
        });
        names.shrink_to(2 * names.len());
    }

    /// Iterates over all waiting blocks with their number of copies on each tier, in the order of their first
    /// announcements.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockHash, Copies)> {
        self.order.values().filter_map(|name| Some((*name, self.names.get(name)?.copies)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_have_waited_longest_are_dropped() {
        let mut waiting = NameOnlyBlocks::default();
        let most = MOST as u64;
        assert!((0..most).all(|name| waiting.add(BlockHash(name), Tier::Cpu, true)));
        assert!(waiting.add(BlockHash(0), Tier::Disk, true), "it waits already");
        assert!(!waiting.add(BlockHash(most), Tier::Cpu, true));
        assert_eq!((waiting.take(BlockHash(0)), waiting.take(BlockHash(most))), (None, Some([1, 0, 0])));
        waiting.clear(Tier::Cpu);
        assert!(waiting.is_empty() && waiting.order.is_empty());
    }

    #[test]
    fn copies_are_counted_if_the_engine_counts_them() {
        for (counts, copies) in [(true, 2), (false, 1)] {
            let mut waiting = NameOnlyBlocks::default();
            assert!(!waiting.add(BlockHash(7), Tier::Gpu, counts), "the device describes what it stores");
            assert!(waiting.add(BlockHash(7), Tier::Cpu, counts) && waiting.add(BlockHash(7), Tier::Cpu, counts));
            assert_eq!(waiting.iter().collect::<Vec<_>>(), [(BlockHash(7), [copies, 0, 0])]);
            assert!(!waiting.remove(BlockHash(7), Tier::Disk));
            assert!((0..copies).all(|_| waiting.remove(BlockHash(7), Tier::Cpu)) && waiting.is_empty());
        }
    }
}
