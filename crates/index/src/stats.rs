//! Statistics of the index: counts of held blocks and of applied events.

use std::sync::Arc;

/// Statistics of the blocks that one rank of a worker holds.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RankStats {
    /// Name of the worker.
    pub worker: Arc<str>,
    /// Data-parallel rank within the worker.
    pub rank: u32,
    /// Number of blocks held on the device.
    pub device_blocks: u64,
    /// Number of blocks held on other tiers; a block on several of them counts once.
    pub offloaded_blocks: u64,
    /// Number of blocks on the device whose chain to the start of the prompt is incomplete.
    pub unlinked: u64,
    /// Number of copies of blocks on the device, without the first copy of each block.
    pub copies: u64,
    /// Fingerprint of the held blocks: sum of a mixed value of each held pair of tier and block hash. Ranks that hold
    /// the same blocks on the same tiers have equal fingerprints, in whatever order the blocks were stored.
    pub fingerprint: u64,
}

/// Present sizes of the index, and counts since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Number of workers that have stored a block since they were last dropped.
    pub workers: u64,
    /// Number of holders (ranks' caches): one for each rank, and another one for each rank that holds blocks beyond its
    /// device.
    pub holders: u64,
    /// Number of blocks held by all ranks; a block both on a device and on other tiers counts twice.
    pub blocks: u64,
    /// Number of blocks on devices whose chain to the start of the prompt is incomplete, as a block is missing or a
    /// parent is unknown.
    pub unlinked: u64,
    /// Number of copies of blocks on devices, without the first copy of each block.
    pub copies: u64,
    /// Number of different blocks of all complete chains, and of chains with a missing block and many blocks after it.
    pub positions: u64,
    /// Number of runs, the lists of consecutive blocks in which the index stores chains.
    pub runs: u64,
    /// Number of different sets of holders (ranks' caches) that do not fit into a 64-bit word.
    pub sets: u64,
    /// Memory that the index has allocated, in bytes.
    pub bytes: u64,
    /// Number of holders (ranks' caches) with a private table of block hashes, because they use other block hashes than
    /// the ranks before them.
    pub private_holders: u64,
    /// Number of store calls since the index was created.
    pub stores: u64,
    /// Number of remove calls since the index was created.
    pub removes: u64,
    /// Number of clear calls since the index was created.
    pub clears: u64,
    /// Number of dropped workers since the index was created.
    pub drops: u64,
    /// Number of blocks whose block hash was announced again for another block.
    pub replaced: u64,
    /// Number of removals of block hashes that were not held.
    pub unknown_removals: u64,
}

/// Counts of calls and events since the index was created.
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

/// Counts one step of a walk over ranks, holders (ranks' caches), runs, irregular blocks (kept outside runs of blocks)
/// or copies; only in tests.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Number of steps of walks that this thread counts during `work`, and the result of `work`.
#[cfg(all(test, not(loom)))]
pub(crate) fn steps_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = STEPS.with(std::cell::Cell::get);
    let result = work();
    (STEPS.with(std::cell::Cell::get) - before, result)
}
