//! Counts: of what is held and of what events did; and of the steps of walks, for tests.

use std::sync::Arc;

/// Statistics of what one rank of a worker holds.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RankStats {
    /// The worker's name.
    pub worker: Arc<str>,
    /// The data-parallel rank within the worker.
    pub rank: u32,
    /// Names held on the device.
    pub device_blocks: u64,
    /// Names held on other tiers.
    pub offloaded_blocks: u64,
    /// Of the blocks on the device, those whose chain to the root is not complete.
    pub unlinked: u64,
    /// Copies on the device beyond the first.
    pub copies: u64,
    /// One word for all that is held: the sum of a mix of each pair of tier and block hash. Equal in two indexes whose
    /// ranks hold the same blocks on the same tiers, in whatever order these came.
    pub fingerprint: u64,
}

/// Sizes now and counts since the index was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Workers that have stored anything since they were last dropped.
    pub workers: u64,
    /// Ranks, and ranks again that hold blocks beyond their device memory.
    pub holders: u64,
    /// Blocks held: for each rank, names on the device and names offloaded.
    pub blocks: u64,
    /// Blocks on devices whose chain to the root is not complete: below a hole, or without a known parent.
    pub unlinked: u64,
    /// Copies on devices beyond the first.
    pub copies: u64,
    /// Different blocks of all reachable chains, and of chains with a hole that much is below.
    pub positions: u64,
    /// Stretches of consecutive positions that these are kept in.
    pub runs: u64,
    /// Different sets of holders that do not fit into a word.
    pub sets: u64,
    /// Memory of all this, as allocated.
    pub bytes: u64,
    /// Holders that name blocks otherwise than those before them did.
    pub private_holders: u64,
    /// Calls of store.
    pub stores: u64,
    /// Calls of remove.
    pub removes: u64,
    /// Calls of clear.
    pub clears: u64,
    /// Calls of drop.
    pub drops: u64,
    /// Blocks whose name was announced again for another block.
    pub replaced: u64,
    /// Names removed that were not held.
    pub unknown_removals: u64,
}

/// Counts since the index was made.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) stores: u64,
    pub(crate) removes: u64,
    pub(crate) clears: u64,
    pub(crate) drops: u64,
    pub(crate) replaced: u64,
    pub(crate) unknown_removals: u64,
    pub(crate) private_holders: u64,
}

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts a step of a walk over ranks, holders, runs, irregular blocks or copies.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// The steps of this thread in `work`.
#[cfg(all(test, not(loom)))]
pub(crate) fn steps_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = STEPS.with(std::cell::Cell::get);
    let result = work();
    (STEPS.with(std::cell::Cell::get) - before, result)
}
