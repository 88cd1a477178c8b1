//! One rank's blocks, copied while others change the index.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::index::BlockIndex;
use crate::types::BlockHash;
use crate::writer::{Large, Slice};

/// Blocks of a rank that are one chain, as the index keeps them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopiedChain {
    /// Where the index keeps it: chains of other ranks with the same number are often the same blocks, or more or fewer of
    /// them. A hint: compare before you believe it.
    pub run: u32,
    /// The block before the first, or none at the start of a prompt.
    pub parent: Option<BlockHash>,
    /// The engine's names, in order.
    pub names: Vec<BlockHash>,
    /// The content hash of each.
    pub contents: Vec<u64>,
    /// Which of them the rank holds, one copy on the device each. All about the others is in [`RankCopy::blocks`].
    pub plain: Vec<Range<usize>>,
}

/// A block of a rank by itself: below a hole, with several copies, or on another tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopiedBlock {
    /// The engine's name.
    pub name: BlockHash,
    /// The block before it, known or not.
    pub parent: Option<BlockHash>,
    /// Its content hash.
    pub content: u64,
    /// Copies on each tier, in the order of [`Tier::ALL`](crate::Tier::ALL): on the device, or on others, not both.
    pub copies: [u32; 4],
}

/// What one rank held at one moment.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RankCopy {
    /// Chains, a chain's beginning before what continues it.
    pub chains: Vec<CopiedChain>,
    /// All other blocks: those on the device, then those elsewhere. The same name may come in both parts.
    pub blocks: Vec<CopiedBlock>,
}

/// How far a copy is.
#[derive(Debug)]
pub enum Copying {
    /// There is more to be copied.
    More(RankCopier),
    /// It is complete: what was held at the moment of the last step.
    Done(CopyDone),
}

/// A copy that is complete, but not in order yet: [`sorted`](Self::sorted) does that, and needs no lock.
pub struct CopyDone(Option<Large>);

/// Copies one rank's blocks in steps between which the index is free for others.
///
/// ```
/// use std::sync::Arc;
/// use kvatlas_index::{BlockHash, BlockIndex, Config, Copying, RankCopier, Tier};
///
/// let index = Arc::new(BlockIndex::new(Config::default())?);
/// index.store("w0", 0, Tier::Gpu, None, &[BlockHash(71), BlockHash(72)], &[1, 2])?;
/// let mut copier = RankCopier::new(index.clone(), "w0", 0);
/// let copy = loop {
///     match copier.step(BlockIndex::SLICE) {
///         Copying::More(more) => copier = more,
///         Copying::Done(done) => break done.sorted(),
///     }
/// };
/// assert_eq!(copy.chains[0].contents, [1, 2]);
/// # Ok::<(), kvatlas_index::Error>(())
/// ```
pub struct RankCopier {
    index: Arc<BlockIndex>,
    worker: Arc<str>,
    rank: u32,
    large: Option<Large>,
    /// Times that all copied of it was in vain.
    again: usize,
    spent: usize,
}

/// A rank that is cleared again and again before it is copied is copied at once: it is small soon after a clear.
const MOST_AGAIN: usize = 8;

impl RankCopier {
    /// Of a worker's rank, known to the index or not.
    #[must_use]
    pub fn new(index: Arc<BlockIndex>, worker: &str, rank: u32) -> Self {
        Self { index, worker: worker.into(), rank, large: None, again: 0, spent: 0 }
    }

    /// Goes on. Writers wait once, for about as long as it takes to copy `steps` blocks ([`BlockIndex::SLICE`] takes less
    /// than a millisecond).
    #[must_use]
    pub fn step(mut self, steps: usize) -> Copying {
        let steps = if self.again < MOST_AGAIN { steps } else { usize::MAX };
        self.spent = 0;
        let (index, spent) = (self.index.clone(), &mut self.spent);
        let slice = match &mut self.large {
            Some(large) => index.write(|writer| writer.slice_more(large, steps, spent)),
            None => {
                let (worker, rank) = (&self.worker, self.rank);
                match index.write(|writer| writer.slice_begin(worker, rank, spent)) {
                    None => return Copying::Done(CopyDone(None)),
                    Some(large) => Slice::Begun(large),
                }
            }
        };
        match slice {
            Slice::Rank(_) => return Copying::Done(CopyDone(self.large.take())),
            Slice::Begun(mut large) => {
                large.tidy();
                self.large = Some(large);
            }
            Slice::More => {}
            Slice::Again => {
                self.large = None;
                self.again += 1;
            }
        }
        Copying::More(self)
    }

    /// How many steps the last call took.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.spent
    }
}

impl CopyDone {
    /// The copy. Takes a few nanoseconds a block.
    #[must_use]
    pub fn sorted(self) -> RankCopy {
        self.0.map(Large::copy).unwrap_or_default()
    }
}

impl Drop for RankCopier {
    fn drop(&mut self) {
        if let Some(large) = &self.large {
            self.index.write(|writer| writer.unwatch(large.watch));
        }
    }
}

impl fmt::Debug for RankCopier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankCopier").field("worker", &self.worker).field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl fmt::Debug for CopyDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyDone").finish_non_exhaustive()
    }
}
