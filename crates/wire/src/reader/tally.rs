//! Counts of events and blocks that were applied to the index or refused.

use std::ops::AddAssign;

use kvatlas_index::Tier;

use crate::compact::Change;
use crate::error::Reason;

/// Counts of events and blocks that were applied to the index or refused. Two tallies can be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Number of events applied.
    pub events: u64,
    /// Number of blocks in applied store events, on all tiers.
    pub stored_blocks: u64,
    /// Number of blocks in applied removal events, including blocks that were not held.
    pub removed_blocks: u64,
    /// Number of clear events applied.
    pub clears: u64,
    /// Number of applied events of a hybrid model's cache groups whose blocks the index does not have.
    pub group_events: u64,
    /// Number of blocks in applied store events of a hybrid model's cache groups whose blocks the index does not have.
    pub group_blocks: u64,
    /// Number of blocks in applied store events that report a reuse of a cached block instead of a new one.
    pub reused_blocks: u64,
    /// Number of blocks in applied store events that contain block hashes without tokens.
    pub named_blocks: u64,
    /// Number of blocks in applied store events for host memory, local disks and external stores, in this order.
    pub offloaded_blocks: [u64; 3],
    /// Number of applied store events that contain a digest of their LoRA adapter's weights.
    pub adapter_digests: u64,
    /// Number of keys in store events that were taken for digests of adapters' weights, but may be cache salts.
    pub unsure_keys: u64,
    /// Number of detected collisions: stored blocks with the hash of another block that has other contents.
    pub collisions: u64,
    /// Number of refused events for each reason, in the order of [`Reason::ALL`].
    pub refused: [u64; Reason::COUNT],
}

impl Tally {
    /// Returns the number of events refused for the given reason.
    #[must_use]
    pub fn refused_for(&self, reason: Reason) -> u64 {
        self.refused[reason as usize]
    }

    /// Returns the number of events refused for any reason.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Counts `blocks` blocks stored on a tier.
    pub(super) fn store(&mut self, tier: Tier, blocks: usize) {
        self.stored_blocks += blocks as u64;
        if let Some(slot) = (tier as usize).checked_sub(1) {
            self.offloaded_blocks[slot] += blocks as u64;
        }
    }

    /// Counts a change that was received from a relay (a service that publishes engines' streams) instead of from an
    /// engine.
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

    /// Counts `events` events as refused for the given reason.
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

/// Maximum number of block sizes that are counted separately. An engine has one block size, or one per cache group.
const SIZES: usize = 4;

/// Counts of announced blocks whose size differs from the index's block size, by size.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OtherSizes {
    /// Pairs of a block size in tokens and the number of blocks of that size. The number is 0 in an unused pair.
    sizes: [(u32, u64); SIZES],
}

impl OtherSizes {
    /// Counts `blocks` blocks of a size given in tokens.
    pub(crate) fn add(&mut self, size: u32, blocks: u64) {
        let place = self.sizes.iter().position(|its| its.0 == size && its.1 > 0);
        // Where there is no room, the rarest makes it.
        let rarest = (0..SIZES).min_by_key(|at| self.sizes[*at].1).unwrap_or_default();
        match place {
            Some(at) => self.sizes[at].1 += blocks,
            None => self.sizes[rarest] = (size, blocks),
        }
    }

    /// Returns the most frequent block size, in tokens, and its number of blocks; `None` if no block was counted. Of
    /// equally frequent sizes the larger one is returned, because partial blocks are reported with smaller sizes.
    pub(crate) fn most(&self) -> Option<(u32, u64)> {
        self.sizes.iter().copied().filter(|its| its.1 > 0).max_by_key(|its| (its.1, its.0))
    }
}
