//! The interface of a design: the events it takes, the questions it answers, and from how many threads.

use kvatlas_index::BlockHash;

/// A worker's number: dense, from 0, given by the caller. A rank that has a cache of its own is a worker here.
pub type WorkerId = u32;

/// The answer to a query: every worker that holds at least the first block, once, with its depth; in no order.
pub type Scores = Vec<(WorkerId, u32)>;

/// The reason why a rung refused an event. A refused event has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The two lists of a store do not go together.
    #[error(
        "{block_hashes} block hashes but {content_hashes} content hashes: a store needs one content hash for each block hash"
    )]
    LengthMismatch {
        /// Number of block hashes.
        block_hashes: usize,
        /// Number of content hashes.
        content_hashes: usize,
    },
    /// A store continues a block that the worker does not hold, and the design has no place for orphans.
    #[error("worker {worker} does not hold block {}, which the store continues: store the parent first", parent.0)]
    UnknownParent {
        /// The worker of the event.
        worker: WorkerId,
        /// The block hash that is not known.
        parent: BlockHash,
    },
    /// The design cannot number any more of something.
    #[error("the index is full: {what}")]
    Full {
        /// The thing that ran out.
        what: &'static str,
    },
}

impl Refusal {
    /// A name that stays the same in every release, for programs to test.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::LengthMismatch { .. } => "length_mismatch",
            Self::UnknownParent { .. } => "unknown_parent",
            Self::Full { .. } => "index_full",
        }
    }
}

/// Checks that a store has one content hash for each block hash, as every store must.
pub(crate) fn check_lengths(block_hashes: &[BlockHash], content_hashes: &[u64]) -> Result<(), Refusal> {
    if block_hashes.len() == content_hashes.len() {
        return Ok(());
    }
    Err(Refusal::LengthMismatch { block_hashes: block_hashes.len(), content_hashes: content_hashes.len() })
}

/// One change of what a worker holds, owned so that it can wait in a queue.
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
    /// A worker lost everything and stays known.
    Clear {
        /// The worker that lost everything.
        worker: WorkerId,
    },
    /// A worker is gone.
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

/// Sizes and counts of a rung.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LadderStats {
    /// Number of workers that are known.
    pub workers: u64,
    /// Number of pairs of a worker and a block that it holds.
    pub blocks: u64,
    /// Number of entries of the design's own kind: nodes, keys, positions. They are what its memory grows with besides
    /// `blocks`.
    pub entries: u64,
    /// Number of stores refused.
    pub refused: u64,
    /// Number of removals of blocks that were not held.
    pub unknown_removals: u64,
    /// Number of messages between the parts of a design that has several (actors, groups).
    pub messages: u64,
}

/// A design that belongs to one thread at a time.
pub trait LocalDesign: Send + 'static {
    /// Records that a worker cached consecutive blocks of one chain. See [`kvatlas_index::BlockIndex::store`].
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then, and it is counted.
    fn store(
        &mut self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal>;
    /// Records that a worker evicted blocks, in any order. Names that are not held change nothing, and are counted.
    fn remove(&mut self, worker: WorkerId, block_hashes: &[BlockHash]);
    /// Records that a worker lost everything and stays known.
    fn clear(&mut self, worker: WorkerId);
    /// Records that a worker is gone.
    fn drop_worker(&mut self, worker: WorkerId);
    /// Replaces `scores` by the number of leading blocks of the query that each worker holds.
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// Sizes and counts.
    fn stats(&self) -> LadderStats;
    /// Every pair of a worker and a block that it holds, sorted by worker and name.
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

/// A design that many threads may read and change at once. One worker's changes come from one thread at a time (an
/// [`crate::pool::EventPool`] sees to that).
pub trait ConcurrentDesign: Send + Sync + 'static {
    /// Does the same as [`LocalDesign::store`].
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then, and it is counted.
    fn store(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal>;
    /// Does the same as [`LocalDesign::remove`].
    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]);
    /// Does the same as [`LocalDesign::clear`].
    fn clear(&self, worker: WorkerId);
    /// Does the same as [`LocalDesign::drop_worker`].
    fn drop_worker(&self, worker: WorkerId);
    /// Does the same as [`LocalDesign::find`].
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// Answers in the design's own form, and returns the depth of the worker that holds most: a lookup's cost for
    /// callers that do not need every worker's depth spelled out. A design without another form gives its scores.
    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.find(content_hashes, scores);
        deepest(scores)
    }
    /// Does the same as [`LocalDesign::stats`].
    fn stats(&self) -> LadderStats;
    /// Does the same as [`LocalDesign::holdings`].
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

/// A design at work: it takes changes without making the sender wait, and answers from any thread.
pub trait Feed: Send + Sync {
    /// Hands over a change and returns at once. One worker's changes are applied in the order in which one thread
    /// sends them.
    fn send(&self, change: Change);
    /// Number of changes applied so far (refused ones included), of all that were sent.
    fn applied(&self) -> u64;
    /// Returns when everything sent before has been applied.
    fn flush(&self);
    /// Replaces `scores` by the number of leading blocks of the query that each worker holds, by the changes applied so
    /// far.
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// Does the same as [`find`](Self::find), in the design's own form: see [`ConcurrentDesign::answer`].
    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.find(content_hashes, scores);
        deepest(scores)
    }
    /// The message of a design that panicked in the middle of a change, if one did. The change is counted as applied
    /// and the feed goes on, but its answers are not to be trusted any more.
    fn broken(&self) -> Option<String> {
        None
    }
    /// Sizes and counts, after a flush.
    fn stats(&self) -> LadderStats;
    /// Every pair of a worker and a block that it holds, sorted by worker and name, after a flush.
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)>;
}

/// The depth of the worker that holds most.
fn deepest(scores: &Scores) -> u32 {
    scores.iter().map(|&(_, depth)| depth).max().unwrap_or(0)
}
