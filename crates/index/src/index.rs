//! [`BlockIndex`], the exact index of cached blocks, with one writer at a time and any number of readers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::changes::Changes;
use crate::find::{Match, find};
use crate::hash::prefix_hashes;
use crate::loading::{
    ListedChunk, LoadBook, Loadable, NamedBlocks, OffloadSettings, Outside, SavedPool, Segment, SharedPool,
};
use crate::raw::Readers;
use crate::runs::ReaderEntry;
use crate::stats::{RankStats, Stats};
use crate::types::{BlockHash, Error, Event, Tier, View};
use crate::writer::Writer;

/// Configuration of an index of cached blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Number of tokens in a block, at least 1.
    pub block_size: u32,
    /// True if a block announced n times is held until it is removed n times, as vLLM announces each physical copy.
    /// False for engines that announce a block only once, however many copies they have.
    pub count_copies: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { block_size: 16, count_copies: true }
    }
}

/// Number of blocks that one writer changes before other writers get the lock: a fraction of a millisecond.
pub(crate) const TURN: usize = 1024;
/// Number of blocks freed before other writers get the lock: a fraction of a millisecond.
const SLICE_OF_SETTLING: usize = 2048;

/// Exact index of the blocks that each rank holds, described in the crate's documentation.
///
/// All methods take `&self`. Calls that change something wait for each other; [`find`](Self::find) never waits.
pub struct BlockIndex {
    config: Config,
    pub(crate) readers: Readers,
    writer: Mutex<Writer>,
    /// Number of changed blocks after which other writers get the lock.
    pub(crate) turn: AtomicUsize,
    /// Pointers to the shared data structures at which lookups start; shared with the writer.
    shown: Arc<ReaderEntry>,
    /// Blocks that ranks can load from tiers beyond their devices and from pools; changed by the writer.
    loading: Arc<RwLock<LoadBook>>,
    outside_loading: Arc<Outside>,
}

impl BlockIndex {
    /// Number of steps (each about the work to copy one block) for a slice of [`dump_in_slices`](Self::dump_in_slices)
    /// that takes less than a millisecond.
    pub const SLICE: usize = 3 << 10;

    /// Creates an empty index.
    ///
    /// # Errors
    ///
    /// [`Error::BlockSize`] if the block size is 0.
    pub fn new(config: Config) -> Result<Self, Error> {
        if config.block_size == 0 {
            return Err(Error::BlockSize { got: 0 });
        }
        let readers = Readers::for_this_machine();
        let writer = Writer::new(config.count_copies, &readers);
        let (shown, loading) = (writer.runs.shown.clone(), writer.loading.clone());
        let outside_loading = loading.read().outside();
        let (writer, turn) = (Mutex::new(writer), TURN.into());
        Ok(Self { config, readers, shown, loading, outside_loading, writer, turn })
    }

    /// Configuration that the index was created with.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config
    }

    /// Finds the number of leading blocks of a prompt that each rank holds, given the content hashes of the prompt's
    /// blocks.
    ///
    /// The answer borrows the index and keeps memory that it refers to from being freed: use it soon, or turn it into
    /// an [`OwnedMatch`](crate::OwnedMatch). While other threads change the index, each depth lies between the smallest
    /// and the largest depth that the holder had during the call. One exception: if a holder announces a known block
    /// hash for another block, the old block may disappear before the new one counts.
    ///
    /// This method does not wait for writers. It reads a run's levels (depths with their holders) again if a writer
    /// changed them meanwhile, and starts again if a worker was added, was removed, or offloaded for the first time.
    #[must_use]
    pub fn find(&self, content_hashes: &[u64]) -> Match<'_> {
        find(&self.readers, &self.shown.roster, &self.shown.children, content_hashes)
    }

    /// Finds the leading blocks of a prompt that each rank can use without computing them, given the content hashes of
    /// the prompt's blocks: the blocks on the rank's device, continued chunk by chunk from its other tiers and from the
    /// pools from which it may load. Sorted by worker and rank. Only ranks that offload or are members of a pool are
    /// listed; for others use [`find`](Self::find).
    ///
    /// This method waits for a change in progress. Depths on the device may be slightly outdated.
    #[must_use]
    pub fn find_loadable(&self, content_hashes: &[u64]) -> Vec<Loadable> {
        if !self.has_loadable() {
            return Vec::new();
        }
        let found = self.find(content_hashes);
        let mut depths = HashMap::new();
        found.for_each(View::Device, |worker, rank, depth| {
            depths.insert((&**worker, rank), depth);
        });
        let prefixes = prefix_hashes(content_hashes);
        let loading = self.loading.read();
        loading.look_up(&prefixes, |worker, rank| depths.get(&(worker, rank)).copied().unwrap_or(0))
    }

    /// Finds the blocks of a prompt that a rank would load from pools whose members may not announce removals, given the
    /// content hashes of the prompt's blocks. In the order of the prompt.
    #[must_use]
    pub fn find_unsure(&self, content_hashes: &[u64], worker: &str, rank: u32) -> Vec<Segment> {
        if !self.has_loadable() {
            return Vec::new();
        }
        let mut device = 0;
        self.find(content_hashes).for_each(View::Device, |its, its_rank, depth| {
            if (&**its, its_rank) == (worker, rank) {
                device = depth;
            }
        });
        self.loading.read().unsure(&prefix_hashes(content_hashes), worker, rank, device)
    }

    /// Sets how a worker's engine offloads blocks, for all ranks of the worker, also after restarts.
    pub fn set_offloading(&self, worker: &str, settings: OffloadSettings) {
        self.write(|writer| writer.set_offloading(worker, settings));
    }

    pub(crate) fn resets_keep(&self, worker: &str) -> bool {
        self.loading.read().settings_of(worker).resets_keep == Some(true)
    }

    /// Sets how engines offload blocks, for all workers without settings of their own.
    pub fn set_usual_offloading(&self, settings: OffloadSettings) {
        self.write(|writer| writer.set_usual_offloading(settings));
    }

    /// Records a chunk length (number of blocks stored and loaded together) that a rank's stores on a tier suggest. The
    /// length applies unless [`set_offloading`](Self::set_offloading) has set one; without either, a chunk is one
    /// block. `is_gapless`: true if the engine loads a chunk from this tier only if all chunks before it, from the
    /// prompt's beginning on, are on its tiers beyond the device too.
    pub fn learn_chunk(&self, worker: &str, rank: u32, tier: Tier, blocks: u32, is_gapless: bool) {
        self.loading.write().learn_chunk(worker, rank, tier, blocks, is_gapless);
    }

    /// True if there are pools, or ranks that have stored blocks beyond their device. If false,
    /// [`find_loadable`](Self::find_loadable) finds nothing.
    #[must_use]
    pub fn has_loadable(&self) -> bool {
        self.outside_loading.is_in_use()
    }

    /// True if the blocks that a worker announces on this tier are in a pool shared with other workers. These blocks
    /// stay when the worker's blocks are cleared.
    pub(crate) fn is_in_pool(&self, worker: &str, tier: Tier) -> bool {
        self.loading.read().is_in_pool(worker, tier)
    }

    /// Adds a pool, a store of blocks that several engines load from, or changes the settings of the pool of the same
    /// name. From now on, blocks that its members store on its tier are in the pool, and blocks that they remove there
    /// leave the pool.
    pub fn add_pool(&self, pool: SharedPool) {
        self.write(|writer| writer.add_pool(pool));
    }

    /// Sets the current time, in seconds since any fixed moment. Blocks stored in pools from now on get this time, and
    /// the age of pools' blocks is computed from it.
    pub fn set_time(&self, seconds: f64) {
        self.outside_loading.set_time(seconds);
    }

    /// Removes from a pool a chunk that an engine failed to load, and the blocks that continue it. `content_hashes`:
    /// the prompt's blocks up to the chunk's end. Returns the number of blocks removed.
    pub fn lose_from_pool(&self, pool: &str, content_hashes: &[u64]) -> usize {
        let Some(&prefix) = prefix_hashes(content_hashes).last() else { return 0 };
        self.loading.write().lose_from_pool(pool, prefix)
    }

    /// Records that an engine reused only the `reused` leading blocks of a prompt, although a pool seemed to have the next
    /// ones: the chunk with the next block is removed from the pool, and so are the blocks that continue it. Nothing is
    /// removed if the chunk was announced after the time `until`. `content_hashes`: the prompt's blocks. Returns the
    /// number of blocks removed.
    pub fn miss_in_pool(&self, pool: &str, content_hashes: &[u64], reused: u32, until: f64) -> usize {
        self.loading.write().miss_in_pool(pool, &prefix_hashes(content_hashes), reused, until)
    }

    /// Removes the blocks of a pool that a listing of its store lacks, if they were announced at the time `until` or
    /// before. `found`: block hashes in the listing; only the last block of each chunk must be there. Returns the
    /// number of blocks removed.
    pub fn keep_in_pool(&self, pool: &str, found: &HashSet<u64>, until: f64) -> usize {
        let missing = self.loading.read().missing_in_pool(pool, found, until);
        missing.chunks(TURN).map(|some| self.loading.write().take_missing(pool, some, until)).sum()
    }

    /// Records that the store of a pool has named blocks that it holds, as a listing or an event of the store does. Blocks
    /// whose contents no member has told yet count from when one does.
    pub fn name_in_pool(&self, pool: &str, names: &[BlockHash]) -> NamedBlocks {
        let mut counts = NamedBlocks::default();
        for some in names.chunks(TURN) {
            let some: Vec<u64> = some.iter().map(|name| name.0).collect();
            counts += self.loading.write().name_in_pool(pool, &some);
        }
        counts
    }

    /// Records that the store of a pool no longer holds blocks. Returns the number of blocks that were in the pool.
    pub fn unname_in_pool(&self, pool: &str, names: &[BlockHash]) -> usize {
        let names: Vec<u64> = names.iter().map(|name| name.0).collect();
        names.chunks(TURN).map(|some| self.loading.write().unname_in_pool(pool, some)).sum()
    }

    /// Sets whether all removals that the store of a pool announced have been seen: answers about the pool are certain
    /// only then.
    pub fn set_pool_whole(&self, pool: &str, is_whole: bool) {
        self.loading.write().set_pool_whole(pool, is_whole);
    }

    /// Records that an engine has loaded blocks of a prompt from a pool, so that a pool that evicts the least recently
    /// used blocks keeps these longer. `content_hashes`: the prompt's blocks; `start`: number of blocks before the first
    /// one loaded. Returns the number of blocks whose age begins anew.
    pub fn use_from_pool(&self, pool: &str, content_hashes: &[u64], start: usize) -> usize {
        let prefixes = prefix_hashes(content_hashes);
        let loaded = prefixes.get(start..).unwrap_or_default();
        loaded.chunks(TURN).map(|some| self.loading.write().use_from_pool(pool, some)).sum()
    }

    /// Name of each pool, and the number of blocks that its store has named and whose contents no member has told yet.
    #[must_use]
    pub fn unmeant_in_pools(&self) -> Vec<(Box<str>, usize)> {
        let loading = self.loading.read();
        let sizes = loading.pool_sizes().into_iter().zip(loading.unmeant_sizes());
        sizes.map(|((pool, _), unmeant)| (pool, unmeant)).collect()
    }

    /// Adds chunks of a prompt, which a listing of a pool's store has, to the pool, unless they are there.
    pub fn add_to_pool(&self, pool: &str, chunks: &[ListedChunk]) {
        let missing = self.loading.read().missing_chunks(pool, chunks);
        if !missing.is_empty() {
            self.loading.write().add_chunks(pool, &missing);
        }
    }

    /// Name of each pool, and the number of its blocks.
    #[must_use]
    pub fn pool_sizes(&self) -> Vec<(Box<str>, usize)> {
        self.loading.read().pool_sizes()
    }

    /// Current time in seconds, as set by [`set_time`](Self::set_time).
    #[must_use]
    pub fn time(&self) -> f64 {
        self.outside_loading.time()
    }

    /// Copies the blocks of all pools, for [`restore_pool`](Self::restore_pool) of another index. No blocks can be
    /// added to pools during the copy, which takes 0.1 µs per block.
    #[must_use]
    pub fn saved_pools(&self) -> Vec<SavedPool> {
        self.loading.read().saved_pools()
    }

    /// Restores the saved blocks of a pool to the pool of the same name. `elapsed`: seconds since they were saved.
    /// Blocks announced since then stay as they are. Returns the number of blocks restored, 0 if there is no pool of
    /// this name.
    pub fn restore_pool(&self, saved: &SavedPool, elapsed: f64) -> usize {
        self.loading.write().restore_pool(saved, elapsed)
    }

    /// Frees all memory of blocks that were cleared or dropped. Otherwise each later change frees a small part of this
    /// memory. Other writers may change the index meanwhile.
    pub fn settle(&self) {
        loop {
            // What is freed at the end of a change may be tables that go in steps.
            self.write_after(true, |writer| writer.do_some(SLICE_OF_SETTLING));
            if !self.write(|writer| writer.has_more_to_do()) {
                return;
            }
        }
    }

    /// Sizes and event counts of the index, after freeing memory like [`settle`](Self::settle). During this call,
    /// writers wait for a time that depends only on the number of ranks.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.settle();
        let mut stats = self.write(|writer| writer.stats());
        stats.bytes += (self.readers.bytes() + size_of::<Self>()) as u64;
        stats
    }

    /// Statistics of every rank, sorted by worker and rank. Writers wait for a time that depends only on the number of
    /// ranks.
    #[must_use]
    pub fn ranks(&self) -> Vec<RankStats> {
        let mut ranks = self.write(|writer| writer.ranks());
        ranks.sort_unstable_by(|a, b| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)));
        ranks
    }

    /// Statistics of one worker's ranks, in any order; empty if the worker is unknown.
    #[must_use]
    pub fn ranks_of(&self, worker: &str) -> Vec<RankStats> {
        self.write(|writer| writer.ranks_of(worker))
    }

    /// Names of all workers, each with the number of blocks that it holds.
    #[must_use]
    pub fn workers(&self) -> Vec<(Box<str>, u64)> {
        self.write(|writer| writer.workers())
    }

    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Writer) -> T) -> T {
        self.write_after(false, change)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Writer> {
        // If a bug has panicked inside a change, readers are as safe as before, and refusing all further events would
        // make every answer wrong instead of perhaps one. So it is well that this lock is not poisoned.
        self.writer.lock()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_locked(&self) -> bool {
        self.writer.is_locked()
    }

    pub(crate) fn write_after<T>(&self, tidy_now: bool, change: impl FnOnce(&mut Writer) -> T) -> T {
        let mut writer = self.lock();
        let result = change(&mut writer);
        writer.do_share();
        writer.tidy(&self.readers, tidy_now);
        result
    }
}

/// Limits that tests lower, because their event streams are short.
#[cfg(feature = "testing")]
impl BlockIndex {
    /// Sets how many blocks after a missing block are kept together as a branch of the trie; at least 1.
    pub fn branch_from(&self, blocks: u64) {
        self.write(|writer| writer.least_branch = blocks);
    }

    /// Sets the largest number of blocks for which a rank's private table of block hashes is built in one step.
    pub fn own_names_at_once(&self, blocks: u64) {
        self.write(|writer| writer.most_own_at_once = blocks);
    }

    /// True if the data about loadable blocks (on other tiers and in pools) is consistent, for tests.
    pub fn is_loading_consistent(&self) -> bool {
        self.loading.read().is_consistent()
    }

    /// Sets the number of changed blocks after which other writers get the lock; at least 1.
    pub fn turn_after(&self, blocks: usize) {
        self.turn.store(blocks.max(1), std::sync::atomic::Ordering::Relaxed);
    }
}

impl fmt::Debug for BlockIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockIndex").field("config", &self.config).finish_non_exhaustive()
    }
}

impl BlockIndex {
    /// Begins a series of changes under one lock, for instance for the events of one batch, so that the caller waits
    /// only once for other writers.
    #[must_use]
    pub fn changes(&self) -> Changes<'_> {
        Changes::new(self)
    }

    /// Stores consecutive blocks of one chain that a worker's rank has cached. The first block continues `parent` (a
    /// block hash of the same worker and rank, which need not be known), or starts a prompt; each further block
    /// continues the block before it.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`] if the numbers of content hashes and block hashes differ; [`Error::Full`] if
    /// the index can number no more blocks. In both cases nothing has changed.
    pub fn store(
        &self,
        worker: &str,
        rank: u32,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        self.changes().store(&(worker, rank), tier, parent, block_hashes, content_hashes)
    }

    /// Stores blocks like [`store`](Self::store), for engines that announce a block again without caching another copy:
    /// blocks that the rank already holds on this tier stay as they are.
    ///
    /// # Errors
    ///
    /// The errors of [`store`](Self::store).
    pub fn store_once(
        &self,
        worker: &str,
        rank: u32,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        self.changes().store_once(&(worker, rank), tier, parent, block_hashes, content_hashes)
    }

    /// Stores copies, on another tier, of blocks that a rank holds already, given by their block hashes alone. Parents
    /// and contents are those that the rank holds under these hashes. Returns the block hashes that the rank holds on
    /// no tier, which are not stored.
    pub fn store_known(&self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) -> Vec<BlockHash> {
        self.changes().store_known(&(worker, rank), tier, block_hashes)
    }

    /// Removes blocks that a worker's rank has evicted from a tier, in any order. Block hashes that the rank does not
    /// hold there are only counted.
    pub fn remove(&self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) {
        self.changes().remove(&(worker, rank), tier, block_hashes);
    }

    /// Removes blocks of a worker: all of them, or those of one rank, or those on one tier. The worker stays known.
    /// Readers see all blocks disappear at once; large memory is freed by the following changes, or by
    /// [`settle`](Self::settle). Only if one tier is cleared while other tiers have blocks, readers see the blocks
    /// disappear one after the other, and other writers may change the index meanwhile.
    pub fn clear(&self, worker: &str, rank: Option<u32>, tier: Option<Tier>) {
        self.changes().clear(worker, rank, tier);
    }

    /// Applies a reset of the prefix cache of a worker's engine, or of one rank, when the engine did not say if
    /// offloaded blocks survive. If the engine's [settings](OffloadSettings::resets_keep) say that they do, removes
    /// only the blocks on the device; otherwise removes all, like [`clear`](Self::clear). If the settings leave this
    /// open, host memory may contain more blocks than the index counts from then on.
    pub fn reset(&self, worker: &str, rank: Option<u32>) {
        self.changes().reset(worker, rank);
    }

    /// Removes a worker with all its blocks. Their memory is freed as in [`clear`](Self::clear).
    pub fn drop_worker(&self, worker: &str) {
        self.write_after(true, |writer| writer.drop_worker(worker));
    }

    /// Applies a KV event: a store, removal, clear or drop.
    ///
    /// # Errors
    ///
    /// The errors of [`store`](Self::store).
    pub fn apply(&self, event: &Event) -> Result<(), Error> {
        match event {
            Event::Store { worker, rank, tier, parent, block_hashes, content_hashes } => {
                self.store(worker, *rank, *tier, *parent, block_hashes, content_hashes)?;
            }
            Event::Remove { worker, rank, tier, block_hashes } => self.remove(worker, *rank, *tier, block_hashes),
            Event::Clear { worker, rank, tier } => self.clear(worker, *rank, *tier),
            Event::Drop { worker } => self.drop_worker(worker),
        }
        Ok(())
    }

    /// Events that store all blocks of one rank; applied to an empty index, they restore the blocks, like the events of
    /// [`dump`](Self::dump).
    #[must_use]
    pub fn dump_rank(&self, worker: &str, rank: u32) -> Vec<Event> {
        self.changes().dump_rank(worker, rank)
    }
}
