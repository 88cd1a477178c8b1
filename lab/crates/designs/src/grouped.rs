//! Rung 6 of the ladder of index designs, extended: a sparse top level over groups of workers, each group with a
//! positional index of its own.
//!
//! ```text
//!            top      (0,c0) → {g0,g1,g2}   (1,c1) → {g0,g1}   (3,c3) → {g1}   (7,c7) → {}      groups, a few positions
//!             │
//!     ┌───────┼───────┐
//!     g0      g1      g2     PositionalIndexer each: workers, every position
//! ```
//!
//! The design is for fleets too large for one index: groups run on separate machines and report to the top, at a few
//! positions only, which prefixes any of their workers holds. These reports bound a group's depth: if no worker of the
//! group holds block 7 of a query, none is deeper than 7. A search for the deepest workers asks the most promising
//! group first and stops when no other can be deeper. In this implementation everything is in one process, and the
//! messages that would travel are counted: an update for each event that changed the top's data, a probe and an answer
//! for each group asked.
//!
//! There are two kinds of queries. [`GroupedIndex::find_best`] is the intended one: the deepest workers, asking as few
//! groups as possible. [`find`](crate::ConcurrentDesign::find) returns every worker's depth, and so must ask every
//! group that has the first block.
//!
//! The known errors of the groups' indexes ([`crate::positional`]) apply as well. The top is updated while the changed
//! entry is locked, so it is never behind. It trusts lazy hashes as they do, which can only make a group look more
//! promising than it is.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::RwLock;

pub use super::positional::SparsePositions;
use super::positional::{Coverage, InvalidOption, Layout, Options, PositionalIndexer, Query, Table, Top, Walk};
use crate::interface::{ConcurrentDesign, LadderStats, Refusal, Scores, WorkerId, check_lengths};
use kvatlas_index::BlockHash;

/// Options of an index over groups of workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupOptions {
    /// Number of workers in a group, at least 1: the first group has the workers `0..n`, the second the next `n`, and
    /// so on.
    pub workers_per_group: u32,
    /// Positions of blocks at which groups report their prefixes to the top level, the table over all groups.
    pub sparse: SparsePositions,
    /// Options of each group's positional index.
    pub inner: Options,
    /// Number of deepest workers (those that hold most leading blocks of the query) that
    /// [`answer`](crate::ConcurrentDesign::answer) finds.
    pub best: usize,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { workers_per_group: 32, sparse: SparsePositions::Doubling, inner: Options::default(), best: 1 }
    }
}

/// Workers that hold most leading blocks of a query, with the number of groups of workers that were searched.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BestWorkers {
    /// Workers with their depths in blocks, deepest first. If several workers share the smallest depth in the list,
    /// others of this depth may be left out.
    pub scores: Scores,
    /// Number of groups of workers in which a worker holds the query's first block.
    pub candidates: usize,
    /// Number of groups of workers whose indexes were searched for the query.
    pub probed: usize,
}

/// Index of several groups of workers: a positional index for each group, and above them a top-level table that
/// contains, at some positions only, the prefixes that each group holds.
#[derive(Debug)]
pub struct GroupedIndex {
    options: GroupOptions,
    top: Arc<Top>,
    groups: RwLock<HashMap<u32, Arc<PositionalIndexer>>>,
    /// Number of messages for queries: searches sent to groups of workers, and their answers.
    asked: AtomicU64,
    /// Number of stores that were refused before they reached the index of a group of workers.
    refused: AtomicU64,
    /// Number of blocks removed by workers whose group has no index, so that the removal changed nothing.
    unknown_removals: AtomicU64,
}

/// Number of locks of the map in the top level (the table over groups), which records the prefixes that each group of
/// workers holds.
const TOP_SHARDS: usize = 256;
/// Number of locks of the map of a group of workers: few, since there are many groups.
const GROUP_SHARDS: usize = 32;

impl GroupedIndex {
    /// Creates an empty index.
    ///
    /// # Errors If an option that must be at least 1 is 0.
    pub fn new(options: GroupOptions) -> Result<Self, InvalidOption> {
        if options.workers_per_group == 0 {
            return Err(InvalidOption::GroupSize);
        }
        if options.sparse == SparsePositions::Every(0) {
            return Err(InvalidOption::SparseStep);
        }
        if options.inner.jump_size == 0 {
            return Err(InvalidOption::JumpSize);
        }
        let table = Table::new(Layout::Map, TOP_SHARDS);
        Ok(Self {
            options,
            top: Arc::new(Top { table, sparse: options.sparse, updates: AtomicU64::new(0) }),
            groups: RwLock::default(),
            asked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unknown_removals: AtomicU64::new(0),
        })
    }

    /// Finds the `k` deepest workers (those that hold most leading blocks) of a query. Searches the groups of workers
    /// in the order of their upper bounds, until no other group can have a worker deeper than the `k`-th found.
    #[must_use]
    pub fn find_best(&self, content_hashes: &[u64], k: usize) -> BestWorkers {
        let mut scores = Scores::new();
        let (candidates, probed) = self.find_deepest(content_hashes, k, &mut scores);
        BestWorkers { scores, candidates, probed }
    }

    /// Replaces `scores` by the `k` workers that hold most leading blocks of a query. Returns the number of groups that
    /// hold the first block, and the number of groups searched.
    fn find_deepest(&self, content_hashes: &[u64], k: usize, scores: &mut Scores) -> (usize, usize) {
        scores.clear();
        let mut query = Query::new(content_hashes);
        let mut bounds = self.bounds(&mut query);
        bounds.sort_unstable_by_key(|&(_, bound)| Reverse(bound));
        let groups = self.groups.read();
        let mut probed = 0;
        for &(group, bound) in &bounds {
            let won = k == 0 || scores.get(k - 1).is_some_and(|&(_, depth)| depth >= bound);
            if won {
                break;
            }
            if let Some(group) = groups.get(&group) {
                group.find_more(&mut query, scores);
                probed += 1;
            }
            if scores.len() > k {
                scores.select_nth_unstable_by_key(k - 1, |&(_, depth)| Reverse(depth));
                scores.truncate(k);
            }
            scores.sort_unstable_by_key(|&(_, depth)| Reverse(depth));
        }
        self.asked.fetch_add(2 * probed as u64, Ordering::Relaxed);
        (bounds.len(), probed)
    }

    /// Options with which the index was created.
    #[must_use]
    pub fn options(&self) -> GroupOptions {
        self.options
    }

    /// Groups that hold a query's first block, each with an upper bound of its workers' depths, in blocks.
    fn bounds(&self, query: &mut Query<'_>) -> Scores {
        let mut bounds = Scores::new();
        self.walk(query).run_sparse(self.top.sparse, &mut bounds);
        bounds
    }

    fn walk<'t, 'q, 'a>(&'t self, query: &'q mut Query<'a>) -> Walk<'t, 'q, 'a> {
        Walk { table: &self.top.table, options: self.options.inner, query }
    }

    fn group_of(&self, worker: WorkerId) -> u32 {
        worker / self.options.workers_per_group
    }

    fn group(&self, group: u32) -> Option<Arc<PositionalIndexer>> {
        self.groups.read().get(&group).cloned()
    }

    fn group_or_new(&self, group: u32) -> Arc<PositionalIndexer> {
        self.group(group).unwrap_or_else(|| {
            let coverage = Coverage { top: Arc::clone(&self.top), group };
            let new = || Arc::new(PositionalIndexer::assemble(self.options.inner, GROUP_SHARDS, Some(coverage)));
            Arc::clone(self.groups.write().entry(group).or_insert_with(new))
        })
    }
}

impl ConcurrentDesign for GroupedIndex {
    fn store(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal> {
        let refused = |_: &Refusal| _ = self.refused.fetch_add(1, Ordering::Relaxed);
        check_lengths(block_hashes, content_hashes).inspect_err(refused)?;
        if block_hashes.is_empty() {
            return Ok(());
        }
        let group = self.group_of(worker);
        let group = match parent {
            None => self.group_or_new(group),
            // Only an existing group can hold a parent, and a refusal creates no group.
            Some(parent) => self.group(group).ok_or(Refusal::UnknownParent { worker, parent }).inspect_err(refused)?,
        };
        group.store(worker, parent, block_hashes, content_hashes)
    }

    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]) {
        match self.group(self.group_of(worker)) {
            Some(group) => group.apply_removed(worker, block_hashes),
            None => _ = self.unknown_removals.fetch_add(block_hashes.len() as u64, Ordering::Relaxed),
        }
    }

    fn clear(&self, worker: WorkerId) {
        if let Some(group) = self.group(self.group_of(worker)) {
            group.apply_cleared(worker);
        }
    }

    fn drop_worker(&self, worker: WorkerId) {
        if let Some(group) = self.group(self.group_of(worker)) {
            group.remove_worker(worker);
        }
    }

    /// Replaces `scores` by the depth (number of leading blocks held) of every worker, searching all groups that hold
    /// the query's first block.
    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        scores.clear();
        let mut query = Query::new(content_hashes);
        let holders = self.walk(&mut query).holders();
        let groups = self.groups.read();
        holders.for_each(|group| {
            if let Some(group) = groups.get(&group) {
                group.find_more(&mut query, scores);
            }
        });
        self.asked.fetch_add(2 * holders.len() as u64, Ordering::Relaxed);
    }

    /// Replaces `scores` by the deepest workers only, like [`GroupedIndex::find_best`], which is the intended query.
    /// Returns the greatest depth.
    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.find_deepest(content_hashes, self.options.best.max(1), scores);
        scores.first().map_or(0, |&(_, depth)| depth)
    }

    fn stats(&self) -> LadderStats {
        let groups: Vec<_> = self.groups.read().values().cloned().collect();
        let mut stats = LadderStats {
            entries: self.top.table.len() as u64,
            refused: self.refused.load(Ordering::Relaxed),
            unknown_removals: self.unknown_removals.load(Ordering::Relaxed),
            messages: self.top.updates.load(Ordering::Relaxed) + self.asked.load(Ordering::Relaxed),
            ..LadderStats::default()
        };
        for group in groups {
            let inner = group.stats();
            stats.workers += inner.workers;
            stats.blocks += inner.blocks;
            stats.entries += inner.entries;
            stats.refused += inner.refused;
            stats.unknown_removals += inner.unknown_removals;
        }
        stats
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let groups: Vec<_> = self.groups.read().values().cloned().collect();
        let mut holdings: Vec<_> = groups.iter().flat_map(|group| group.holdings()).collect();
        holdings.sort_unstable();
        holdings
    }
}
