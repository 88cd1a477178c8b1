//! Rung 7 of the ladder of index designs: the project's [`BlockIndex`].
//!
//! A worker's number serves as its name and as its rank, so that an answer has the number without reading a name.
//! Copies are not counted, as in all designs of the ladder.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use kvatlas_index::{BlockHash, BlockIndex, Config, Error, Event, RankHandle, Tier, View};

use crate::interface::{ConcurrentDesign, LadderStats, Refusal, Scores, WorkerId};

/// The project's [`BlockIndex`], with workers identified by number.
pub struct BlockIndexRung {
    index: BlockIndex,
    handles: Handles,
    refused: AtomicU64,
    /// True if [`ConcurrentDesign::answer`] returns levels (depths with sets of workers), false if it lists every
    /// worker's depth.
    levels: bool,
}

impl BlockIndexRung {
    /// Creates an empty index whose [`answer`](ConcurrentDesign::answer) lists every worker's depth.
    #[must_use]
    pub fn new() -> Self {
        Self { index: empty(), handles: Handles::default(), refused: AtomicU64::new(0), levels: false }
    }

    /// Creates an empty index whose [`answer`](ConcurrentDesign::answer) is a [`Match`](kvatlas_index::Match): levels,
    /// that is, depths with their sets of workers.
    #[must_use]
    pub fn levels() -> Self {
        Self { levels: true, ..Self::new() }
    }

    /// The [`BlockIndex`] that this design consists of.
    #[must_use]
    pub fn index(&self) -> &BlockIndex {
        &self.index
    }
}

/// Number of workers with handles, which save finding a worker by name; workers of higher numbers are found by name.
const HANDLES: usize = 1 << 16;
const CHUNK: usize = 256;

/// A handle for each worker that was changed, by the worker's number. A handle saves finding the worker by name.
struct Handles(Box<[OnceLock<Chunk>]>);

type Chunk = Box<[OnceLock<RankHandle>]>;

impl Default for Handles {
    fn default() -> Self {
        Self((0..HANDLES / CHUNK).map(|_| OnceLock::new()).collect())
    }
}

impl Handles {
    /// Calls `change` with the handle of a worker, which is created on first use.
    #[inline]
    fn with<T>(&self, worker: WorkerId, change: impl FnOnce(&RankHandle) -> T) -> T {
        let make = || RankHandle::new(itoa::Buffer::new().format(worker), worker);
        let Some(chunk) = self.0.get(worker as usize / CHUNK) else { return change(&make()) };
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        change(chunk[worker as usize % CHUNK].get_or_init(make))
    }
}

fn empty() -> BlockIndex {
    // One token: contents are given as hashes, so the block size is never used.
    BlockIndex::new(Config { block_size: 1, count_copies: false }).expect("a block of one token is allowed")
}

impl Default for BlockIndexRung {
    fn default() -> Self {
        Self::new()
    }
}

fn refusal(error: &Error) -> Refusal {
    match *error {
        Error::LengthMismatch { block_hashes, content_hashes } => {
            Refusal::LengthMismatch { block_hashes, content_hashes }
        }
        Error::Full { what } => Refusal::Full { what },
        // Other errors concern arguments that are not given here.
        _ => Refusal::Full { what: "it refused the store" },
    }
}

impl ConcurrentDesign for BlockIndexRung {
    fn store(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal> {
        let mut changes = self.index.changes();
        self.handles.with(worker, |rank| changes.store(rank, Tier::Gpu, parent, block_hashes, content_hashes)).map_err(
            |error| {
                self.refused.fetch_add(1, Ordering::Relaxed);
                refusal(&error)
            },
        )
    }

    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]) {
        self.handles.with(worker, |rank| self.index.changes().remove(rank, Tier::Gpu, block_hashes));
    }

    fn clear(&self, worker: WorkerId) {
        self.index.clear(itoa::Buffer::new().format(worker), None, None);
    }

    fn drop_worker(&self, worker: WorkerId) {
        self.index.drop_worker(itoa::Buffer::new().format(worker));
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        scores.clear();
        self.index.find(content_hashes).for_each(View::Device, |_, worker, depth| scores.push((worker, depth)));
    }

    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        if self.levels {
            return self.index.find(content_hashes).depth(View::Device);
        }
        self.find(content_hashes, scores);
        // Deepest first.
        scores.first().map_or(0, |&(_, depth)| depth)
    }

    fn stats(&self) -> LadderStats {
        let stats = self.index.stats();
        LadderStats {
            workers: stats.workers,
            blocks: stats.blocks,
            entries: stats.runs,
            refused: self.refused.load(Ordering::Relaxed),
            unknown_removals: stats.unknown_removals,
            messages: 0,
        }
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let mut holdings = Vec::new();
        for event in self.index.dump() {
            if let Event::Store { rank, block_hashes, .. } = event {
                holdings.extend(block_hashes.into_iter().map(|name| (rank, name)));
            }
        }
        holdings.sort_unstable();
        holdings
    }
}
