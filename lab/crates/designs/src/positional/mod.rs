//! Rung 6 of the ladder of index designs: the positional map. A pair of position and content hash leads directly to the
//! holders, so a search may leap.
//!
//! ```text
//!  query   c0  c1  c2  c3  c4  c5  c6  c7  c8 ...
//!          │                               │
//!          (0,c0) → {a,b,c}                (8,c8) → {a,b,c}?  all there: blocks 1 to 7 are not looked at
//!                                                   b missing?  look at 1 to 7 for where it dropped
//! ```
//!
//! A tree must be walked block by block; a map by position can be entered anywhere. With leaps of J blocks, a query of
//! D blocks and W holders of its first block cost D/J probes, each a comparison of two sets (W/64 words or a short
//! list), and at most J more for each leap in which a worker drops: O(D/J + W) where W is small against a set's words.
//!
//! # Assumptions and known errors
//!
//! Each known error has a test of its name in `tests/designs/positional.rs`. *Lazy hashes* and *leaps over holes*
//! belong to the idea and are corrected by [`Options::strict`]; the others come from resolving names to places when a
//! block is announced.
//!
//! - **Lazy hashes.** The prefix of a query is hashed only where an entry has several prefixes. A single prefix is
//!   trusted: of a worker that stored `[B]` and `[A, X]`, the query `[B, X]` gets 2 blocks, since (1, X) is held, if
//!   only after `A`; the truth is 1. Strict: every probe compares prefix hashes, which costs a hash for each block of
//!   the query.
//! - **Leaps over holes.** A worker that stored ten blocks and lost the fifth has 4; a leap from 0 to 8 finds it at
//!   both ends and gives 10. Strict: holes are recorded as they arise, and answers are cut at them.
//! - **Orphans are refused**, strict or not: a store that continues a block which the worker does not hold is
//!   [`Refusal::UnknownParent`], since it has no position. The exact index keeps it until the parent comes.
//! - **Descendants do not move.** A name announced again with another content or parent leaves its old place for the
//!   new one. Blocks announced as continuing it stay where they are. Engines name blocks by their whole prefix, so this
//!   does not occur with them.
//! - **Two names at one place.** If a worker announces one prefix under two names, the place is held until both are
//!   removed (and so is every place that continues it, whichever of the two names it was announced to continue).
//!
//! A name announced again at its place changes nothing: names are counted once, as with
//! [`kvatlas_index::Config::count_copies`]` = false`.
//!
//! # Lookups during changes
//!
//! Lookups run on the caller's thread and lock one small table at a time, for reading. The answer is not of one moment,
//! but the depth of a worker without holes is never below its smallest and never above its largest true depth during
//! the call: it drops at a block that it did not hold when probed, after one that it held when probed.

mod member_set;
mod search;
mod table;
mod worker_blocks;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use kvatlas_index::BlockHash;
use parking_lot::{Mutex, MutexGuard, RwLock};

use self::search::next_prefix;
use self::table::Place;
use self::worker_blocks::{Ground, Holes, WorkerBlocks};
use crate::interface::{ConcurrentDesign, LadderStats, Refusal, Scores, WorkerId, check_lengths};
pub(crate) use search::{Query, Walk};
pub(crate) use table::Table;
pub use worker_blocks::SparsePositions;
pub(crate) use worker_blocks::{Coverage, Top};

/// A block of a store event, with its two hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredBlock {
    /// Block hash, the engine's identity of the block and its whole prefix.
    pub block_hash: BlockHash,
    /// Content hash of the block's tokens.
    pub content_hash: u64,
}

/// The positional index: a map from position and content hash to the workers that hold the block, searched in leaps.
#[derive(Debug)]
pub struct PositionalIndexer {
    options: Options,
    table: Table,
    holes: Holes,
    workers: RwLock<HashMap<WorkerId, Arc<Mutex<WorkerBlocks>>>>,
    coverage: Option<Coverage>,
    refused: AtomicU64,
    unknown_removals: AtomicU64,
}

/// Number of locks of a single map: more than threads ever contend for, few enough to need little memory when empty (16
/// KiB).
const SHARDS: usize = 256;

impl PositionalIndexer {
    /// Creates an empty index.
    ///
    /// # Errors
    /// If `jump_size` is 0.
    pub fn new(options: Options) -> Result<Self, InvalidOption> {
        if options.jump_size == 0 {
            return Err(InvalidOption::JumpSize);
        }
        Ok(Self::assemble(options, SHARDS, None))
    }

    /// Creates an empty index with options that were checked. `shards`: number of locks, a power of two; `coverage`:
    /// connection to the table over groups of workers to which the index reports its prefixes, if there is one.
    pub(crate) fn assemble(options: Options, shards: usize, coverage: Option<Coverage>) -> Self {
        Self {
            options,
            table: Table::new(options.layout, shards),
            holes: Holes::default(),
            workers: RwLock::default(),
            coverage,
            refused: AtomicU64::new(0),
            unknown_removals: AtomicU64::new(0),
        }
    }

    /// Records that a worker cached consecutive blocks of one chain, the first of them after `parent`. An empty list
    /// changes nothing, for any parent.
    ///
    /// # Errors [`Refusal::UnknownParent`] if the worker does not hold the parent, [`Refusal::Full`] if the chain would
    /// exceed 32-bit positions. Nothing was changed then.
    pub fn apply_stored(
        &self,
        worker: WorkerId,
        blocks: &[StoredBlock],
        parent: Option<BlockHash>,
    ) -> Result<(), Refusal> {
        self.store_blocks(worker, parent, blocks.iter().map(|block| (block.block_hash, block.content_hash)))
    }

    /// Records that a worker evicted blocks, in any order. Block hashes of blocks that the worker does not hold change
    /// nothing, and are counted.
    pub fn apply_removed(&self, worker: WorkerId, block_hashes: &[BlockHash]) {
        let held = self.held(worker);
        let Some(mut held) = held.as_deref().map(Mutex::lock) else {
            self.unknown_removals.fetch_add(block_hashes.len() as u64, Ordering::Relaxed);
            return;
        };
        let ground = self.ground(worker);
        let unknown = block_hashes.iter().filter(|&&name| !held.remove(&ground, name)).count();
        if unknown > 0 {
            self.unknown_removals.fetch_add(unknown as u64, Ordering::Relaxed);
        }
        self.report(&ground);
    }

    /// Records that a worker lost all its blocks; the worker stays in the index.
    pub fn apply_cleared(&self, worker: WorkerId) {
        if let Some(held) = self.held(worker) {
            self.clear_held(worker, &mut held.lock());
        }
    }

    /// Records that a worker left the fleet. Its next store adds the worker again.
    pub fn remove_worker(&self, worker: WorkerId) {
        let held = self.workers.write().remove(&worker);
        if let Some(held) = held {
            let mut held = held.lock();
            held.gone = true;
            self.clear_held(worker, &mut held);
        }
    }

    /// Finds the depth, in blocks, of every worker that holds the first block of a query.
    #[must_use]
    pub fn find_matches(&self, content_hashes: &[u64]) -> Scores {
        let mut scores = Scores::new();
        self.find(content_hashes, &mut scores);
        scores
    }

    /// Options with which the index was created.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options
    }

    /// Appends to `scores` the depth of every worker that holds the first block, without removing earlier scores.
    pub(crate) fn find_more(&self, query: &mut Query<'_>, scores: &mut Scores) {
        let before = scores.len();
        Walk { table: &self.table, options: self.options, query }.run(scores);
        if self.options.strict && self.holes.any() {
            let mut cut = scores.split_off(before);
            self.holes.cut(query, &mut cut);
            scores.append(&mut cut);
        }
    }

    fn store_blocks(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        blocks: impl ExactSizeIterator<Item = (BlockHash, u64)>,
    ) -> Result<(), Refusal> {
        if blocks.len() == 0 {
            return Ok(());
        }
        if blocks.len() > u32::MAX as usize {
            return Err(self.full());
        }
        let Some(parent) = parent else {
            self.with_registered(worker, |held| self.enter(worker, held, None, blocks));
            return Ok(());
        };
        // Only a known worker can hold a parent, and a refusal makes no worker known.
        let held = self.held(worker);
        let mut held = held.as_deref().map(Mutex::lock);
        let known = held.as_deref_mut().and_then(|held| held.place(parent).map(|place| (held, place)));
        let Some((held, place)) = known else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::UnknownParent { worker, parent });
        };
        if blocks.len() as u64 > u64::from(u32::MAX - place.position) {
            return Err(self.full());
        }
        self.enter(worker, held, Some(place), blocks);
        Ok(())
    }

    fn full(&self) -> Refusal {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Refusal::Full { what: "positions are numbered in 32 bits" }
    }

    fn enter(
        &self,
        worker: WorkerId,
        held: &mut WorkerBlocks,
        parent: Option<Place>,
        blocks: impl ExactSizeIterator<Item = (BlockHash, u64)>,
    ) {
        let ground = self.ground(worker);
        held.reserve(blocks.len());
        let mut before = parent;
        for (name, content) in blocks {
            let place = match before {
                None => Place { position: 0, content, prefix: content },
                Some(Place { position, prefix, .. }) => {
                    Place { position: position + 1, content, prefix: next_prefix(prefix, content) }
                }
            };
            held.store(&ground, name, place, before.map_or(0, |before| before.prefix));
            before = Some(place);
        }
        self.report(&ground);
    }

    fn clear_held(&self, worker: WorkerId, held: &mut WorkerBlocks) {
        let ground = self.ground(worker);
        held.clear(&ground);
        self.report(&ground);
    }

    fn ground(&self, worker: WorkerId) -> Ground<'_> {
        let coverage = self.coverage.as_ref();
        Ground { worker, table: &self.table, holes: &self.holes, coverage, told: Cell::new(false) }
    }

    /// Counts one message to the top level (the table over groups of workers) for all reports of an event together.
    fn report(&self, ground: &Ground<'_>) {
        if let (Some(coverage), true) = (&self.coverage, ground.told.get()) {
            coverage.top.updates.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn held(&self, worker: WorkerId) -> Option<Arc<Mutex<WorkerBlocks>>> {
        self.workers.read().get(&worker).cloned()
    }

    /// Calls `with` with the data about a worker's blocks; the worker is added to the index if it is unknown.
    fn with_registered(&self, worker: WorkerId, with: impl FnOnce(&mut WorkerBlocks)) {
        loop {
            let held = self.held(worker).unwrap_or_else(|| {
                let new = || Arc::new(Mutex::new(WorkerBlocks::new(self.options.strict)));
                self.workers.write().entry(worker).or_insert_with(new).clone()
            });
            let mut held: MutexGuard<'_, WorkerBlocks> = held.lock();
            if !held.gone {
                return with(&mut held);
            }
        }
    }
}

impl ConcurrentDesign for PositionalIndexer {
    fn store(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal> {
        check_lengths(block_hashes, content_hashes)
            .inspect_err(|_| _ = self.refused.fetch_add(1, Ordering::Relaxed))?;
        self.store_blocks(worker, parent, block_hashes.iter().copied().zip(content_hashes.iter().copied()))
    }

    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]) {
        self.apply_removed(worker, block_hashes);
    }

    fn clear(&self, worker: WorkerId) {
        self.apply_cleared(worker);
    }

    fn drop_worker(&self, worker: WorkerId) {
        self.remove_worker(worker);
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        scores.clear();
        self.find_more(&mut Query::new(content_hashes), scores);
    }

    fn stats(&self) -> LadderStats {
        let workers: Vec<_> = self.workers.read().values().cloned().collect();
        LadderStats {
            workers: workers.len() as u64,
            blocks: workers.iter().map(|held| held.lock().len() as u64).sum(),
            entries: self.table.len() as u64,
            refused: self.refused.load(Ordering::Relaxed),
            unknown_removals: self.unknown_removals.load(Ordering::Relaxed),
            messages: 0,
        }
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let workers: Vec<_> = self.workers.read().iter().map(|(&worker, held)| (worker, Arc::clone(held))).collect();
        let mut holdings = Vec::new();
        for (worker, held) in workers {
            holdings.extend(held.lock().names().map(|name| (worker, name)));
        }
        holdings.sort_unstable();
        holdings
    }
}

/// Method to find, within a leap (a jump over several blocks), the first block that a worker does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Search {
    /// Looks up every position of the leap (a jump over several blocks), from its beginning.
    #[default]
    Jump,
    /// Bisects the leap (a jump over several blocks), once for each position from which on any worker holds no more
    /// blocks.
    Bisect,
}

/// Structure in which the holders of blocks are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// One map from position and content hash to holders.
    #[default]
    Map,
    /// An array that has, for each position, a map from content hash to holders. Needs 64 bytes for each position, up
    /// to twice the length of the deepest chain.
    Arrays,
}

/// Options of a positional index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Number of blocks per leap (jump) of a search, at least 1. A larger number is faster as long as few workers stop
    /// holding the query within a leap.
    pub jump_size: usize,
    /// Method to search within a leap (a jump over several blocks) at whose end a worker is missing.
    pub search: Search,
    /// Structure in which the holders of blocks are stored.
    pub layout: Layout,
    /// True to always compare prefix hashes, and to end depths at missing blocks, which makes the answers exact.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { jump_size: 32, search: Search::Jump, layout: Layout::Map, strict: false }
    }
}

/// Reason why an option of an index is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOption {
    /// The number of blocks per leap (jump of a search) is 0.
    #[error("jump_size must be at least 1, got 0")]
    JumpSize,
    /// The number of workers per group is 0.
    #[error("workers_per_group must be at least 1, got 0")]
    GroupSize,
    /// The distance of the positions at which groups report to the top level (the table over groups of workers) is 0.
    #[error("the step between sparse positions must be at least 1, got 0")]
    SparseStep,
}

impl InvalidOption {
    /// Code of the error, the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::JumpSize => "invalid_jump_size",
            Self::GroupSize => "invalid_group_size",
            Self::SparseStep => "invalid_sparse_step",
        }
    }
}
