//! Counts of held blocks and of applied events.

use std::sync::Arc;

/// Statistics of what one rank of a worker holds.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RankStats {
    /// The worker's name.
    pub worker: Arc<str>,
    /// The data-parallel rank within the worker.
    pub rank: u32,
    /// Number of blocks held on the device.
    pub device_blocks: u64,
    /// Number of blocks held on other tiers; a block on several of them counts once.
    pub offloaded_blocks: u64,
    /// Blocks on the device whose chain to the start of the prompt is not complete.
    pub unlinked: u64,
    /// Copies of blocks on the device beyond the first of each.
    pub copies: u64,
    /// Sum of a mix of each pair of tier and block hash that is held: equal for ranks that hold the same blocks on the
    /// same tiers, in whatever order these came.
    pub fingerprint: u64,
}

/// Sizes now and counts since the index was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Workers that have stored a block since they were last dropped.
    pub workers: u64,
    /// Number of holders: one for each rank, and another for each rank that holds blocks beyond its device.
    pub holders: u64,
    /// Blocks held by all ranks: names on the device plus names offloaded.
    pub blocks: u64,
    /// Blocks on devices whose chain to the start of the prompt is not complete: below a hole, or without a known
    /// parent.
    pub unlinked: u64,
    /// Copies of blocks on devices beyond the first of each.
    pub copies: u64,
    /// Different blocks of all complete chains, and of chains with a hole that has many blocks below it.
    pub positions: u64,
    /// Runs: stretches of consecutive blocks of a chain, in which the index keeps `positions`.
    pub runs: u64,
    /// Different sets of holders that do not fit into a word.
    pub sets: u64,
    /// Memory that the index has allocated, in bytes.
    pub bytes: u64,
    /// Holders with a private table of names, because they gave blocks other names than the holders before them.
    pub private_holders: u64,
    /// Number of store calls.
    pub stores: u64,
    /// Number of remove calls.
    pub removes: u64,
    /// Number of clear calls.
    pub clears: u64,
    /// Number of drop calls.
    pub drops: u64,
    /// Blocks whose block hash was announced again for another block.
    pub replaced: u64,
    /// Removals of block hashes that were not held.
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
