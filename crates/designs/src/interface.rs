//! What a design does: the events it takes, the questions it answers, and from how many threads.

use kvatlas_index::BlockHash;

/// A worker's number: dense, from 0, given by the caller. A rank that has a cache of its own is a worker here.
pub type WorkerId = u32;

/// The answer to a query: every worker that holds at least the first block, once, with its depth; in no order.
pub type Scores = Vec<(WorkerId, u32)>;

/// Why a rung refused an event. A refused event has changed nothing.
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
        /// Whose event it was.
        worker: WorkerId,
        /// The block hash that is not known.
        parent: BlockHash,
    },
    /// The design cannot number any more of something.
    #[error("the index is full: {what}")]
    Full {
        /// What ran out.
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

/// Checks what every store must satisfy.
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
        /// Who.
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
        /// Who.
        worker: WorkerId,
        /// The engine's names, in any order.
        block_hashes: Box<[BlockHash]>,
    },
    /// A worker lost everything and stays known.
    Clear {
        /// Who.
        worker: WorkerId,
    },
    /// A worker is gone.
    Drop {
        /// Who.
        worker: WorkerId,
    },
}

impl Change {
    /// Whose change it is.
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
    /// Workers that are known.
    pub workers: u64,
    /// Pairs of a worker and a block that it holds.
    pub blocks: u64,
    /// Entries of the design's own kind: nodes, keys, positions. What its memory grows with besides `blocks`.
    pub entries: u64,
    /// Stores refused.
    pub refused: u64,
    /// Removals of blocks that were not held.
    pub unknown_removals: u64,
    /// Messages between the parts of a design that has several (actors, groups).
    pub messages: u64,
}

/// A design that belongs to one thread at a time.
pub trait Local: Send + 'static {
    /// Consecutive blocks of one chain were cached. See [`kvatlas_index::BlockIndex::store`].
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
    /// Blocks were evicted, in any order. Names that are not held change nothing, and are counted.
    fn remove(&mut self, worker: WorkerId, block_hashes: &[BlockHash]);
    /// A worker lost everything and stays known.
    fn clear(&mut self, worker: WorkerId);
    /// A worker is gone.
    fn drop_worker(&mut self, worker: WorkerId);
    /// Replaces `scores` by how many leading blocks of the query each worker holds.
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// Sizes and counts.
    fn stats(&self) -> LadderStats;
    /// Everything held, sorted by worker and name.
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
pub trait Concurrent: Send + Sync + 'static {
    /// As [`Local::store`].
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
    /// As [`Local::remove`].
    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]);
    /// As [`Local::clear`].
    fn clear(&self, worker: WorkerId);
    /// As [`Local::drop_worker`].
    fn drop_worker(&self, worker: WorkerId);
    /// As [`Local::find`].
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// The answer in the design's own form, and the depth of the worker that holds most: what a lookup costs whoever
    /// does not need every worker's depth spelled out. A design without another form gives its scores.
    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.find(content_hashes, scores);
        deepest(scores)
    }
    /// As [`Local::stats`].
    fn stats(&self) -> LadderStats;
    /// As [`Local::holdings`].
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
    /// Changes applied so far (refused ones included), of all that were sent.
    fn applied(&self) -> u64;
    /// Returns when everything sent before has been applied.
    fn flush(&self);
    /// Replaces `scores` by how many leading blocks of the query each worker holds, by the changes applied so far.
    fn find(&self, content_hashes: &[u64], scores: &mut Scores);
    /// As [`find`](Self::find), in the design's own form: see [`Concurrent::answer`].
    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.find(content_hashes, scores);
        deepest(scores)
    }
    /// What a design said when it panicked in the middle of a change, if one did. The change is counted as applied and
    /// the feed goes on, but what it answers is not to be trusted any more.
    fn broken(&self) -> Option<String> {
        None
    }
    /// Sizes and counts. Flushes.
    fn stats(&self) -> LadderStats;
    /// Everything held, sorted by worker and name. Flushes.
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)>;
}

/// The depth of the worker that holds most.
fn deepest(scores: &Scores) -> u32 {
    scores.iter().map(|&(_, depth)| depth).max().unwrap_or(0)
}
