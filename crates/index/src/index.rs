//! [`BlockIndex`]: one writer at a time, any number of readers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::changes::Changes;
use crate::find::{Match, find};
use crate::hash::prefix_hashes;
use crate::loading::{LoadBook, Loadable, OffloadSettings, Outside, SavedPool, SharedPool};
use crate::raw::Readers;
use crate::runs::ReaderEntry;
use crate::stats::{RankStats, Stats};
use crate::types::{BlockHash, Error, Event, Tier, View};
use crate::writer::Writer;

/// Configuration of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Tokens in a block. At least 1.
    pub block_size: u32,
    /// True if a block announced n times is held until it is removed n times, as vLLM announces physical copies. False:
    /// engines that announce a block once however many copies they have.
    pub count_copies: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { block_size: 16, count_copies: true }
    }
}

/// Blocks changed before others have their turn: a fraction of a millisecond.
pub(crate) const TURN: usize = 1024;
/// Blocks freed before others have their turn: a fraction of a millisecond.
const SLICE_OF_SETTLING: usize = 2048;

/// The exact index of who holds which blocks. See the crate's text.
///
/// All methods take `&self`. Calls that change something wait for each other; [`find`](Self::find) never waits.
pub struct BlockIndex {
    config: Config,
    pub(crate) readers: Readers,
    writer: Mutex<Writer>,
    /// Number of blocks after which others have their turn to change something.
    pub(crate) turn: AtomicUsize,
    /// The writer's own is behind its lock; readers come in here.
    shown: Arc<ReaderEntry>,
    /// Book of the blocks that ranks can load, which the writer changes.
    loading: Arc<RwLock<LoadBook>>,
    outside_loading: Arc<Outside>,
}

impl BlockIndex {
    /// Steps for a slice of [`dump_in_slices`](Self::dump_in_slices) that takes less than a millisecond.
    pub const SLICE: usize = 3 << 10;

    /// An empty index.
    ///
    /// # Errors
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

    /// Configuration that the index was made with.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config
    }

    /// Finds who holds how much of a prompt, given the content hash of each of its blocks.
    ///
    /// The answer borrows the index and keeps what it refers to from being freed: use it soon, or turn it into an
    /// [`OwnedMatch`](crate::OwnedMatch). While others write, each depth lies between the smallest and the largest
    /// that was true of that holder during the call. One exception: if a holder announces a block hash for another
    /// block than before, the old block may go before the new one counts.
    ///
    /// Waits for no writer. It looks again at what a writer has finished changing while it looked: at one run's levels,
    /// or at all if a worker came, went, or first offloaded.
    #[must_use]
    pub fn find(&self, content_hashes: &[u64]) -> Match<'_> {
        find(&self.readers, &self.shown.roster, &self.shown.children, content_hashes)
    }

    /// Finds what each rank can use of a prompt without computing it, given the content hash of each of its blocks: what
    /// is on its device, continued chunk by chunk from its other tiers and from the pools that it may load from. By
    /// worker and rank; of ranks that offload, or are members of a pool, alone: others have what [`find`](Self::find)
    /// says.
    ///
    /// Waits for the change that a writer makes just then. Depths on the device may be those of a moment before.
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

    /// Sets how a worker's engine offloads, for all its ranks, also after restarts.
    pub fn set_offloading(&self, worker: &str, settings: OffloadSettings) {
        self.write(|writer| writer.set_offloading(worker, settings));
    }

    pub(crate) fn resets_keep(&self, worker: &str) -> bool {
        self.loading.read().settings_of(worker).resets_keep == Some(true)
    }

    /// Sets how the engines of all workers offload for which nothing else is set.
    pub fn set_usual_offloading(&self, settings: OffloadSettings) {
        self.write(|writer| writer.set_usual_offloading(settings));
    }

    /// A worker's rank seems to keep that many blocks as one on a tier: its chunks are so long as long as no other length is
    /// set ([`set_offloading`](Self::set_offloading)). Without a word on it they are of one block.
    pub fn learn_chunk(&self, worker: &str, rank: u32, tier: Tier, blocks: u32) {
        self.loading.write().learn_chunk(worker, rank, tier, blocks);
    }

    /// True if there are pools, or ranks that have stored anything beyond their device: others have nothing to load.
    #[must_use]
    pub fn has_loadable(&self) -> bool {
        self.outside_loading.is_in_use()
    }

    /// True if a tier of a worker's is a pool, whose blocks stay when the worker's are cleared.
    pub(crate) fn is_in_pool(&self, worker: &str, tier: Tier) -> bool {
        self.loading.read().is_in_pool(worker, tier)
    }

    /// Adds a pool, or gives the one of its name other settings. From now on what its members store on its tier is in the
    /// pool, and what they remove there is removed from it.
    pub fn add_pool(&self, pool: SharedPool) {
        self.write(|writer| writer.add_pool(pool));
    }

    /// Sets the time, in seconds from any moment on: of what is stored in pools from now on, and until when their blocks
    /// have aged.
    pub fn set_time(&self, seconds: f64) {
        self.outside_loading.set_time(seconds);
    }

    /// An engine could not load from a pool what was expected of it: the chunk that ends after all these blocks is gone,
    /// and what continues it. Returns the number of blocks that are gone.
    pub fn lose_from_pool(&self, pool: &str, content_hashes: &[u64]) -> usize {
        let Some(&prefix) = prefix_hashes(content_hashes).last() else { return 0 };
        self.loading.write().lose_from_pool(pool, prefix)
    }

    /// A look at the store of a pool has found the blocks of these hashes: all others that were announced until that time
    /// are gone. Of chunks, the store need show the last blocks only. Returns the number of blocks that are gone.
    pub fn keep_in_pool(&self, pool: &str, found: &HashSet<u64>, until: f64) -> usize {
        let missing = self.loading.read().missing_in_pool(pool, found, until);
        missing.chunks(TURN).map(|some| self.loading.write().take_missing(pool, some, until)).sum()
    }

    /// The pools, with the number of blocks that each one has.
    #[must_use]
    pub fn pool_sizes(&self) -> Vec<(Box<str>, usize)> {
        self.loading.read().pool_sizes()
    }

    /// The time that was set last, in seconds.
    #[must_use]
    pub fn time(&self) -> f64 {
        self.outside_loading.time()
    }

    /// Copies the blocks of all pools, for [`restore_pool`](Self::restore_pool) of another index. While it runs, 0.1 µs a
    /// block, nothing is added to pools.
    #[must_use]
    pub fn saved_pools(&self) -> Vec<SavedPool> {
        self.loading.read().saved_pools()
    }

    /// Puts blocks back into a pool of the same name that has been added, as they were `elapsed` seconds ago. Blocks that were
    /// announced since then stay as they are. Returns the number of blocks that were put back, 0 if there is no such pool.
    pub fn restore_pool(&self, saved: &SavedPool, elapsed: f64) -> usize {
        self.loading.write().restore_pool(saved, elapsed)
    }

    /// Frees what was held until it was cleared or dropped. That happens a little at a time in the changes that follow,
    /// as it may be much; this does all there is to do, and lets others change the index meanwhile.
    pub fn settle(&self) {
        loop {
            // What is freed at the end of a change may be tables that go in steps.
            self.write_after(true, |writer| writer.do_some(SLICE_OF_SETTLING));
            if !self.write(|writer| writer.has_more_to_do()) {
                return;
            }
        }
    }

    /// Sizes and counts, after [`settle`](Self::settle). Writers wait for a time that depends on the number of ranks alone.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.settle();
        let mut stats = self.write(|writer| writer.stats());
        stats.bytes += (self.readers.bytes() + size_of::<Self>()) as u64;
        stats
    }

    /// Every rank of every worker, by name and number, with what it holds. Writers wait for a time that depends on the
    /// number of ranks alone.
    #[must_use]
    pub fn ranks(&self) -> Vec<RankStats> {
        let mut ranks = self.write(|writer| writer.ranks());
        ranks.sort_unstable_by(|a, b| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)));
        ranks
    }

    /// The same of one worker, in any order; nothing if it is not known.
    #[must_use]
    pub fn ranks_of(&self, worker: &str) -> Vec<RankStats> {
        self.write(|writer| writer.ranks_of(worker))
    }

    /// Every worker, by name, with the number of blocks it holds.
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

/// Limits that tests lower, because their streams are short.
#[cfg(feature = "testing")]
impl BlockIndex {
    /// Sets the least number of blocks below a hole that are kept together as a branch, at least 1.
    pub fn branch_from(&self, blocks: u64) {
        self.write(|writer| writer.least_branch = blocks);
    }

    /// Sets the greatest number of blocks of a rank that gets names of its own at once.
    pub fn own_names_at_once(&self, blocks: u64) {
        self.write(|writer| writer.most_own_at_once = blocks);
    }

    /// True if what is kept of what can be loaded agrees with itself.
    pub fn is_loading_consistent(&self) -> bool {
        self.loading.read().is_consistent()
    }

    /// Sets the number of blocks of an event after which other writers have their turn, at least 1.
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
    /// Several changes that wait for others' once: for the events of one batch, for instance.
    #[must_use]
    pub fn changes(&self) -> Changes<'_> {
        Changes::new(self)
    }

    /// A worker's rank has cached consecutive blocks of one chain. The first continues `parent` (a block hash of the
    /// same worker and rank, known or not), or starts a prompt; each other continues the one before it.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] unless there is one content hash for each block hash; nothing has changed then.
    /// [`Error::Full`] if the index can number no more blocks; nothing has changed then, either.
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

    /// As [`store`](Self::store), by an engine that announces blocks again without another copy of them: what the rank
    /// holds already on this tier is held as before.
    ///
    /// # Errors
    /// As [`store`](Self::store).
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

    /// A worker's rank has copies on a tier of blocks that it holds already, by name alone: what they continue and
    /// contain is what the rank holds under their names. Returns the names that it does not hold on
    /// any tier; those are left out.
    pub fn store_known(&self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) -> Vec<BlockHash> {
        self.changes().store_known(&(worker, rank), tier, block_hashes)
    }

    /// A worker's rank has evicted blocks from a tier, in any order. Names that it does not hold there change
    /// nothing, and are counted.
    pub fn remove(&self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) {
        self.changes().remove(&(worker, rank), tier, block_hashes);
    }

    /// A worker has lost all its blocks, or those of one rank, of one tier, or both. It stays known. Readers see it at
    /// once; the memory of what was much goes back in the changes that follow, or by [`settle`](Self::settle). Only if one
    /// tier is cleared and others have blocks, they see block after block go, and other ranks may change meanwhile.
    pub fn clear(&self, worker: &str, rank: Option<u32>, tier: Option<Tier>) {
        self.changes().clear(worker, rank, tier);
    }

    /// A worker's engine, or a rank of it, has reset its prefix cache, and did not say what becomes of blocks that it
    /// offloaded. As [`clear`](Self::clear), and what there is in host memory may be more from then on; unless it is
    /// [known](OffloadSettings::resets_keep) what its resets do. If they keep what is offloaded, it has lost what was on the
    /// device alone.
    pub fn reset(&self, worker: &str, rank: Option<u32>) {
        self.changes().reset(worker, rank);
    }

    /// A worker is gone, with all its blocks; their memory as in [`clear`](Self::clear).
    pub fn drop_worker(&self, worker: &str) {
        self.write_after(true, |writer| writer.drop_worker(worker));
    }

    /// Applies an event.
    ///
    /// # Errors
    /// As [`store`](Self::store).
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

    /// Returns what one rank holds, as [`dump`](Self::dump) has it.
    #[must_use]
    pub fn dump_rank(&self, worker: &str, rank: u32) -> Vec<Event> {
        self.changes().dump_rank(worker, rank)
    }
}
