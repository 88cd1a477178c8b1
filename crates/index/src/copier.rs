//! One rank's blocks, copied while others change the index.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::copied::RankCopy;
use crate::index::BlockIndex;
use crate::writer::{LargeCopy, Slice};

/// State of a copy.
#[derive(Debug)]
pub enum CopyState<I: Deref<Target = BlockIndex> = Arc<BlockIndex>> {
    /// There is more to be copied.
    More(RankCopier<I>),
    /// The copy is complete: what was held at the moment of the last step.
    Done(CopyDone),
}

/// A copy that is complete, but not in order yet: [`sorted`](Self::sorted) does that, and needs no lock.
pub struct CopyDone {
    large: Option<LargeCopy>,
    pub(crate) spent: usize,
}

/// Copies one rank's blocks in steps between which the index is free for others.
///
/// ```
/// use std::sync::Arc;
/// use kvatlas_index::{BlockHash, BlockIndex, Config, CopyState, RankCopier, Tier};
///
/// let index = Arc::new(BlockIndex::new(Config::default())?);
/// index.store("w0", 0, Tier::Gpu, None, &[BlockHash(71), BlockHash(72)], &[1, 2])?;
/// let mut copier = RankCopier::new(index.clone(), "w0", 0);
/// let copy = loop {
///     match copier.step(BlockIndex::SLICE) {
///         CopyState::More(more) => copier = more,
///         CopyState::Done(done) => break done.sorted(),
///     }
/// };
/// assert_eq!(copy.chains[0].contents, [1, 2]);
/// # Ok::<(), kvatlas_index::Error>(())
/// ```
pub struct RankCopier<I: Deref<Target = BlockIndex> = Arc<BlockIndex>> {
    index: I,
    worker: Box<str>,
    rank: u32,
    large: Option<LargeCopy>,
    /// Times that all copied of it was in vain.
    again: usize,
    spent: usize,
}

/// A rank that is cleared again and again before it is copied is copied at once: it is small soon after a clear.
const MOST_AGAIN: usize = 8;

impl<I: Deref<Target = BlockIndex>> RankCopier<I> {
    /// A copier of a worker's rank, which need not be known to the index.
    #[must_use]
    pub fn new(index: I, worker: &str, rank: u32) -> Self {
        Self { index, worker: worker.into(), rank, large: None, again: 0, spent: 0 }
    }

    /// Goes on. Writers wait once, for about as long as it takes to copy `steps` blocks ([`BlockIndex::SLICE`] takes less
    /// than a millisecond).
    #[must_use]
    pub fn step(mut self, steps: usize) -> CopyState<I> {
        let steps = if self.again < MOST_AGAIN { steps } else { usize::MAX };
        self.spent = 0;
        let Self { index, worker, rank, large, spent, .. } = &mut self;
        let slice = match large {
            Some(large) => index.write(|writer| writer.slice_more(large, steps, spent)),
            None => match index.write(|writer| writer.slice_first(worker, *rank, steps, spent)) {
                None => Slice::Done,
                Some((mut begun, slice)) => {
                    if matches!(slice, Slice::More) {
                        begun.tidy();
                    }
                    *large = Some(begun);
                    slice
                }
            },
        };
        match slice {
            Slice::Done => return CopyState::Done(CopyDone { large: self.large.take(), spent: self.spent }),
            Slice::More => {}
            Slice::Again => {
                self.large = None;
                self.again += 1;
            }
        }
        CopyState::More(self)
    }

    /// Number of steps that the last call took.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.spent
    }
}

impl CopyDone {
    /// The copy. Takes a few nanoseconds a block.
    #[must_use]
    pub fn sorted(self) -> RankCopy {
        self.large.map(LargeCopy::copy).unwrap_or_default()
    }
}

impl<I: Deref<Target = BlockIndex>> Drop for RankCopier<I> {
    fn drop(&mut self) {
        if let Some(large) = &self.large {
            self.index.write(|writer| writer.unwatch(large.watch));
        }
    }
}

impl<I: Deref<Target = BlockIndex>> fmt::Debug for RankCopier<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankCopier").field("worker", &self.worker).field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl fmt::Debug for CopyDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyDone").finish_non_exhaustive()
    }
}
