//! Interface of an index design: events, queries, and the threads that may use an index; and a single-threaded index
//! behind one lock, the simplest way to share it.
//!
//! Lookups share the lock, and each change holds it exclusively. With the lock a [`LocalDesign`] works in an
//! [`EventPool`](super::pool::EventPool); more than one event thread then only queue for the lock.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kvatlas_index::BlockHash;

/// Number of a worker: dense, from 0, assigned by the caller. Each data-parallel rank with a separate cache is one
/// worker.
pub type WorkerId = u32;

/// Answer to a query: every worker that holds at least the first block, once, with its depth in blocks; in unspecified
/// order.
pub type Scores = Vec<(WorkerId, u32)>;

/// Reason why an index design refused an event. A refused event has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A store has different numbers of block hashes and content hashes.
    #[error(
        "{block_hashes} block hashes but {content_hashes} content hashes: a store needs one content hash for each block hash"
    )]
    LengthMismatch {
        /// Number of block hashes in the store.
        block_hashes: usize,
        /// Number of content hashes in the store.
        content_hashes: usize,
    },
    /// A store continues a block that the worker does not hold, and the design cannot keep blocks without their parent.
    #[error("worker {worker} does not hold block {}, which the store continues: store the parent first", parent.0)]
    UnknownParent {
        /// Worker whose event was refused.
        worker: WorkerId,
        /// Block hash of the parent that the worker does not hold.
        parent: BlockHash,
    },
    /// The design cannot number any more workers, blocks or other items.
    #[error("the index is full: {what}")]
    Full {
        /// Kind of the items that cannot be numbered.
        what: &'static str,
    },
}

impl Refusal {
    /// Stable code of the error, a word that is the same in every release.
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

/// A change of the blocks that a worker holds, with its own data so that it can be queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A worker has cached consecutive blocks of one chain, the first of them after `parent`.
    Store {
        /// Worker that cached the blocks.
        worker: WorkerId,
        /// Block hash of the block before the first, or `None` at the start of a prompt.
        parent: Option<BlockHash>,
        /// Block hashes of the blocks, in chain order.
        block_hashes: Box<[BlockHash]>,
        /// Content hashes of the blocks, one for each block hash.
        content_hashes: Box<[u64]>,
    },
    /// A worker has evicted blocks.
    Remove {
        /// Worker that evicted the blocks.
        worker: WorkerId,
        /// Block hashes of the evicted blocks, in any order.
        block_hashes: Box<[BlockHash]>,
    },
    /// A worker has lost all its blocks and remains known.
    Clear {
        /// Worker that lost its blocks.
        worker: WorkerId,
    },
    /// A worker has left the fleet.
    Drop {
        /// Worker that left.
        worker: WorkerId,
    },
}

impl Change {
    /// Worker whose blocks the change concerns.
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

/// Sizes and counts of an index design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LadderStats {
    /// Number of workers that the index knows.
    pub workers: u64,
    /// Number of pairs of a worker and a block that it holds.
    pub blocks: u64,
    /// Number of entries of the design's own kind (nodes, keys or positions), which determine its memory together with
    /// `blocks`.
    pub entries: u64,
    /// Number of store events that the index refused.
    pub refused: u64,
    /// Number of removals of blocks that the worker did not hold.
    pub unknown_removals: u64,
    /// Number of messages between the parts (actors, groups) of a design with several parts.
    pub messages: u64,
}

/// An index design that one thread uses at a time.
pub trait LocalDesign: Send + 'static {
    /// Records that a worker cached consecutive blocks of one chain. See [`kvatlas_index::BlockIndex::store`].
    ///
    /// # Errors [`Refusal`]; nothing was changed then, and the refusal is counted.
    fn store(
        &mut self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal>;
    /// Records that a worker evicted blocks, in any order. Block hashes of blocks that the worker does not hold change
    /// nothing, and are counted.
    fn remove(&mut self, worker: WorkerId, block_hashes: &[BlockHash]);
    /// Records that a worker lost all its blocks and remains known.
    fn clear(&mut self, worker: WorkerId);
    /// Records that a worker left the fleet.
    fn drop_worker(&mut self, worker: WorkerId);
    /// Replaces `scores` by the number of leading blocks of the query that each worker holds.
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// Sizes and counts of the index.
    fn stats(&self) -> LadderStats;
    /// All pairs of a worker and a held block, sorted by worker and block hash.
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)>;

    /// Applies a change of the blocks that a worker holds.
    ///
    /// # Errors Those of [`store`](Self::store).
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

/// An index design that many threads may read and change at once. One worker's changes come from one thread at a time
/// (as in a [`crate::pool::EventPool`]).
pub trait ConcurrentDesign: Send + Sync + 'static {
    /// Records that a worker cached consecutive blocks of one chain, like [`LocalDesign::store`].
    ///
    /// # Errors [`Refusal`]; nothing was changed then, and the refusal is counted.
    fn store(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal>;
    /// Records that a worker evicted blocks, in any order, like [`LocalDesign::remove`].
    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]);
    /// Records that a worker lost all its blocks and remains known, like [`LocalDesign::clear`].
    fn clear(&self, worker: WorkerId);
    /// Records that a worker left the fleet, like [`LocalDesign::drop_worker`].
    fn drop_worker(&self, worker: WorkerId);
    /// Replaces `scores` by the number of leading blocks of the query that each worker holds, like
    /// [`LocalDesign::find`].
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// Answers a query in the design's own form, and returns the greatest depth of a worker. Timing this call shows the
    /// cost of a lookup for callers that do not need a list of all depths. A design without another form fills
    /// `scores`.
    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.find(content_hashes, scores);
        deepest(scores)
    }
    /// Sizes and counts of the index.
    fn stats(&self) -> LadderStats;
    /// All pairs of a worker and a held block, sorted by worker and block hash.
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)>;

    /// Applies a change of the blocks that a worker holds.
    ///
    /// # Errors Those of [`store`](Self::store).
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

/// A running index of any design: it accepts changes without blocking the sender, and answers queries from any thread.
pub trait Feed: Send + Sync {
    /// Sends a change and returns at once. Changes of one worker sent by one thread are applied in the order of
    /// sending.
    fn send(&self, change: Change);
    /// Number of changes that the index has applied so far, including refused ones.
    fn applied(&self) -> u64;
    /// Waits until all changes sent before have been applied.
    fn flush(&self);
    /// Replaces `scores` by the number of leading blocks of the query that each worker holds, according to the changes
    /// applied so far.
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// Answers a query from the changes applied so far, in the design's own form: see [`ConcurrentDesign::answer`].
    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.find(content_hashes, scores);
        deepest(scores)
    }
    /// Message of the first panic during a change, `None` if there was none. After a panic the change counts as applied
    /// and the index continues, but its answers are no longer reliable.
    fn broken(&self) -> Option<String> {
        None
    }
    /// Sizes and counts of the index, after all earlier changes have been applied.
    fn stats(&self) -> LadderStats;
    /// All pairs of a worker and a held block, sorted by worker and block hash, after all earlier changes have been
    /// applied.
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)>;
}

/// Greatest depth (number of leading blocks held) of any worker in an answer; 0 without workers.
fn deepest(scores: &Scores) -> u32 {
    scores.iter().map(|&(_, depth)| depth).max().unwrap_or(0)
}

/// A single-threaded index ([`LocalDesign`]) behind a reader–writer lock, so that many threads can use it.
#[derive(Debug, Default)]
pub struct RwLocked<T>(RwLock<T>);

impl<T: LocalDesign> RwLocked<T> {
    /// Puts a reader–writer lock around a single-threaded index.
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
