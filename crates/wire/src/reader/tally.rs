//! Counts of events and blocks, applied or left out.

use std::ops::AddAssign;

use kvatlas_index::Tier;

use crate::compact::Change;
use crate::error::Reason;

/// Counts of events and blocks, applied or left out. Tallies can be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Number of events applied.
    pub events: u64,
    /// Number of blocks in applied store events.
    pub stored_blocks: u64,
    /// Number of blocks in applied removal events, held or not.
    pub removed_blocks: u64,
    /// Number of clears applied.
    pub clears: u64,
    /// Number of applied events of a hybrid model's cache groups besides the indexed one, if these are followed.
    pub group_events: u64,
    /// Number of blocks in store events of cache groups besides the indexed one.
    pub group_blocks: u64,
    /// Number of blocks in applied store events that were hit, not written.
    pub reused_blocks: u64,
    /// Number of blocks in applied store events that were announced by their names alone.
    pub named_blocks: u64,
    /// Number of blocks in applied store events, in host memory, on local disks, and external.
    pub offloaded_blocks: [u64; 3],
    /// Number of applied store events that have a digest of their adapter.
    pub adapter_digests: u64,
    /// Number of digests of adapters that may be salts instead.
    pub unsure_keys: u64,
    /// Number of stored blocks whose hash another block with other contents has, as far as noticed.
    pub collisions: u64,
    /// Number of events left out, by reason in the order of [`Reason::ALL`].
    pub refused: [u64; Reason::COUNT],
}

impl Tally {
    /// Number of events left out for this reason.
    #[must_use]
    pub fn refused_for(&self, reason: Reason) -> u64 {
        self.refused[reason as usize]
    }

    /// Number of events left out, for any reason.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Counts blocks that were stored on a tier.
    pub(super) fn store(&mut self, tier: Tier, blocks: usize) {
        self.stored_blocks += blocks as u64;
        if let Some(slot) = (tier as usize).checked_sub(1) {
            self.offloaded_blocks[slot] += blocks as u64;
        }
    }

    /// Counts a change received from a relay.
    pub fn note(&mut self, change: &Change<'_>) {
        self.events += 1;
        match change {
            Change::Store { tier, names, .. } | Change::StoreKnown { tier, names, .. } => {
                self.store(*tier, names.len())
            }
            Change::Remove { names, .. } => self.removed_blocks += names.len() as u64,
            Change::Clear => self.clears += 1,
            Change::Chunk { .. } => {}
        }
    }

    /// Counts events that were left out for this reason.
    pub fn refuse(&mut self, reason: Reason, events: u64) {
        self.refused[reason as usize] += events;
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.stored_blocks += other.stored_blocks;
        self.removed_blocks += other.removed_blocks;
        self.clears += other.clears;
        self.group_events += other.group_events;
        self.group_blocks += other.group_blocks;
        self.reused_blocks += other.reused_blocks;
        self.named_blocks += other.named_blocks;
        for (sum, more) in self.offloaded_blocks.iter_mut().zip(other.offloaded_blocks) {
            *sum += more;
        }
        self.adapter_digests += other.adapter_digests;
        self.unsure_keys += other.unsure_keys;
        self.collisions += other.collisions;
        for (sum, more) in self.refused.iter_mut().zip(other.refused) {
            *sum += more;
        }
    }
}

/// Number of block sizes counted separately: an engine has one, or one for each of its cache groups.
const SIZES: usize = 4;

/// Counts of announced blocks by block size, for sizes other than the index's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OtherSizes {
    /// Pairs of a block size in tokens and the number of blocks of that size; 0 blocks in an unused pair.
    sizes: [(u32, u64); SIZES],
}

impl OtherSizes {
    /// Counts blocks of a size.
    pub(crate) fn add(&mut self, size: u32, blocks: u64) {
        let place = self.sizes.iter().position(|its| its.0 == size && its.1 > 0);
        // Where there is no room, the rarest makes it.
        let rarest = (0..SIZES).min_by_key(|at| self.sizes[*at].1).unwrap_or_default();
        match place {
            Some(at) => self.sizes[at].1 += blocks,
            None => self.sizes[rarest] = (size, blocks),
        }
    }

    /// Most frequent block size, and its number of blocks; of equally frequent ones the larger, as entries for parts of
    /// a block have smaller sizes. `None` if no block was counted.
    pub(crate) fn most(&self) -> Option<(u32, u64)> {
        self.sizes.iter().copied().filter(|its| its.1 > 0).max_by_key(|its| (its.1, its.0))
    }
}
