//! The interface of a design: its events, its queries, and the threads that may use it; and a single-threaded design behind
//! one lock, the simplest way to share it.
//!
//! Lookups share the lock, each change takes it exclusively. With it a [`LocalDesign`] works in an
//! [`EventPool`](super::pool::EventPool); more than one event thread then only queue for the lock.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kvatlas_index::BlockHash;

/// A worker's number: dense, from 0, assigned by the caller. Each rank with a cache of its own is a worker here.
pub type WorkerId = u32;

/// The answer to a query: every worker that holds at least the first block, once, with its depth; in unspecified order.
pub type Scores = Vec<(WorkerId, u32)>;

/// The reason why a rung refused an event. A refused event has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The two lists of a store have different lengths.
    #[error(
        "{block_hashes} block hashes but {content_hashes} content hashes: a store needs one content hash for each block hash"
    )]
    LengthMismatch {
        /// Number of block hashes.
        block_hashes: usize,
        /// Number of content hashes.
        content_hashes: usize,
    },
    /// A store continues a block that the worker does not hold, and the design cannot store orphans.
    #[error("worker {worker} does not hold block {}, which the store continues: store the parent first", parent.0)]
    UnknownParent {
        /// The worker of the event.
        worker: WorkerId,
        /// The unknown block hash.
        parent: BlockHash,
    },
    /// The design has run out of numbers.
    #[error("the index is full: {what}")]
    Full {
        /// The numbered things.
        what: &'static str,
    },
}

impl Refusal {
    /// The error's code, the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::LengthMismatch { .. } => "length_mismatch",
            Self::UnknownParent { .. } => "unknown_parent",
            Self::Full { .. } => "index_full",
        }
    }
}

/// Checks that a store has one content hash for each block hash.
pub(crate) fn check_lengths(block_hashes: &[BlockHash], content_hashes: &[u64]) -> Result<(), Refusal> {
    if block_hashes.len() == content_hashes.len() {
        return Ok(());
    }
    Err(Refusal::LengthMismatch { block_hashes: block_hashes.len(), content_hashes: content_hashes.len() })
}

/// One change of a worker's holdings, owned so that it can be queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Consecutive blocks of one chain were cached; the first continues `parent`, each other the one before it.
    Store {
        /// The worker that cached them.
        worker: WorkerId,
        /// The block before the first, or `None` at the start of a prompt.
        parent: Option<BlockHash>,
        /// The engine's names, in chain order.
        block_hashes: Box<[BlockHash]>,
        /// The content hash of each block.
        content_hashes: Box<[u64]>,
    },
    /// Blocks were evicted.
    Remove {
        /// The worker that evicted them.
        worker: WorkerId,
        /// The engine's names, in any order.
        block_hashes: Box<[BlockHash]>,
    },
    /// A worker lost all blocks and stays known.
    Clear {
        /// The worker that lost everything.
        worker: WorkerId,
    },
    /// A worker left.
    Drop {
        /// The worker that is gone.
        worker: WorkerId,
    },
}

impl Change {
    /// The worker whose change it is.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        match self {
            Self::Store { worker, .. }
            | Self::Remove { worker, .. }
            | Self::Clear { worker }
            | Self::Drop { worker } => *worker,
        }
    }
}

/// Sizes and counts of a design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LadderStats {
    /// Number of workers that are known.
    pub workers: u64,
    /// Number of pairs of a worker and a held block.
    pub blocks: u64,
    /// Number of entries of the design's own kind (nodes, keys, positions), which determine its memory besides
    /// `blocks`.
    pub entries: u64,
    /// Number of stores refused.
    pub refused: u64,
    /// Number of removals of blocks that were not held.
    pub unknown_removals: u64,
    /// Number of messages between the parts of a design with several (actors, groups).
    pub messages: u64,
}

/// A design that belongs to one thread at a time.
pub trait LocalDesign: Send + 'static {
    /// Records that a worker cached consecutive blocks of one chain. See [`kvatlas_index::BlockIndex::store`].
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then, and the refusal is counted.
    fn store(
        &mut self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal>;
    /// Records that a worker evicted blocks, in any order. Names that are not held change nothing, and are counted.
    fn remove(&mut self, worker: WorkerId, block_hashes: &[BlockHash]);
    /// Records that a worker lost all blocks and stays known.
    fn clear(&mut self, worker: WorkerId);
    /// Records that a worker left.
    fn drop_worker(&mut self, worker: WorkerId);
    /// Replaces `scores` by the number of leading blocks of the query that each worker holds.
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// Sizes and counts.
    fn stats(&self) -> LadderStats;
    /// Every pair of a worker and a held block, sorted by worker and name.
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)>;

    /// Applies a change.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    fn apply(&mut self, change: &Change) -> Result<(), Refusal> {
        match change {
            Change::Store { worker, parent, block_hashes, content_hashes } => {
                return self.store(*worker, *parent, block_hashes, content_hashes);
            }
            Change::Remove { worker, block_hashes } => self.remove(*worker, block_hashes),
            Change::Clear { worker } => self.clear(*worker),
            Change::Drop { worker } => self.drop_worker(*worker),
        }
        Ok(())
    }
}

/// A design that may be read and changed by many threads. One worker's changes come from one thread at a time (as in a
/// [`crate::pool::EventPool`]).
pub trait ConcurrentDesign: Send + Sync + 'static {
    /// The same as [`LocalDesign::store`].
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then, and the refusal is counted.
    fn store(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal>;
    /// The same as [`LocalDesign::remove`].
    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]);
    /// The same as [`LocalDesign::clear`].
    fn clear(&self, worker: WorkerId);
    /// The same as [`LocalDesign::drop_worker`].
    fn drop_worker(&self, worker: WorkerId);
    /// The same as [`LocalDesign::find`].
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// Answers in the design's own form, and returns the depth of the deepest worker: the cost of a lookup for callers
    /// that do not need a list of all depths. A design without another form returns its scores.
    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.find(content_hashes, scores);
        deepest(scores)
    }
    /// The same as [`LocalDesign::stats`].
    fn stats(&self) -> LadderStats;
    /// The same as [`LocalDesign::holdings`].
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)>;

    /// Applies a change.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    fn apply(&self, change: &Change) -> Result<(), Refusal> {
        match change {
            Change::Store { worker, parent, block_hashes, content_hashes } => {
                return self.store(*worker, *parent, block_hashes, content_hashes);
            }
            Change::Remove { worker, block_hashes } => self.remove(*worker, block_hashes),
            Change::Clear { worker } => self.clear(*worker),
            Change::Drop { worker } => self.drop_worker(*worker),
        }
        Ok(())
    }
}

/// A running design: it accepts changes without blocking the sender, and answers from any thread.
pub trait Feed: Send + Sync {
    /// Sends a change and returns at once. One worker's changes are applied in the order in which one thread sends
    /// them.
    fn send(&self, change: Change);
    /// Number of changes applied so far, including refused ones.
    fn applied(&self) -> u64;
    /// Returns once all earlier changes have been applied.
    fn flush(&self);
    /// Replaces `scores` by the number of leading blocks of the query that each worker holds, according to the changes
    /// applied so far.
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// The same as [`find`](Self::find), in the design's own form: see [`ConcurrentDesign::answer`].
    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.find(content_hashes, scores);
        deepest(scores)
    }
    /// The message of the first panic during a change, if there was one. The change counts as applied and the feed
    /// continues, but its answers are no longer reliable.
    fn broken(&self) -> Option<String> {
        None
    }
    /// Sizes and counts, after a flush.
    fn stats(&self) -> LadderStats;
    /// Every pair of a worker and a held block, sorted by worker and name, after a flush.
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)>;
}

/// The depth of the deepest worker.
fn deepest(scores: &Scores) -> u32 {
    scores.iter().map(|&(_, depth)| depth).max().unwrap_or(0)
}

/// Any [`LocalDesign`] behind a reader–writer lock.
#[derive(Debug, Default)]
pub struct RwLocked<T>(RwLock<T>);

impl<T: LocalDesign> RwLocked<T> {
    /// Puts a lock around a design.
    #[must_use]
    pub fn new(design: T) -> Self {
        Self(RwLock::new(design))
    }

    // A poisoned lock means that a change panicked, which the pool reports.
    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: LocalDesign + Sync> ConcurrentDesign for RwLocked<T> {
    fn store(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal> {
        self.write().store(worker, parent, block_hashes, content_hashes)
    }

    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]) {
        self.write().remove(worker, block_hashes);
    }

    fn clear(&self, worker: WorkerId) {
        self.write().clear(worker);
    }

    fn drop_worker(&self, worker: WorkerId) {
        self.write().drop_worker(worker);
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        self.read().find(content_hashes, scores);
    }

    fn stats(&self) -> LadderStats {
        self.read().stats()
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        self.read().holdings()
    }
}
