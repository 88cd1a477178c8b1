//! Copies of the blocks that a rank holds, made while other writers change the index; and dumps of the whole index as
//! events that build an equal index.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Deref;
use std::sync::Arc;
use std::vec::IntoIter;

use crate::copied::RankCopy;
use crate::index::BlockIndex;
use crate::types::Event;
use crate::writer::{LargeCopy, Slice};

/// State of the copy of a rank's blocks after a step.
#[derive(Debug)]
pub enum CopyState<I: Deref<Target = BlockIndex> = Arc<BlockIndex>> {
    /// Incomplete copy of the rank's blocks: call [`step`](RankCopier::step) again.
    More(RankCopier<I>),
    /// Complete copy of the blocks that the rank held at the time of the last step.
    Done(CopyDone),
}

/// Complete but unsorted copy of a rank's blocks; [`sorted`](Self::sorted) sorts it without a lock.
pub struct CopyDone {
    large: Option<LargeCopy>,
    pub(crate) spent: usize,
}

/// Copier of one rank's blocks in steps, between which other writers may change the index.
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
    /// Number of times that the copy was started again because the rank was cleared.
    again: usize,
    spent: usize,
}

/// Number of restarts of a copy after which the rank is copied in one step. Each restart follows a clear of the rank,
/// which then has few blocks.
const MOST_AGAIN: usize = 8;

impl<I: Deref<Target = BlockIndex>> RankCopier<I> {
    /// Creates a copier for a worker's rank, which need not be known to the index.
    #[must_use]
    pub fn new(index: I, worker: &str, rank: u32) -> Self {
        Self { index, worker: worker.into(), rank, large: None, again: 0, spent: 0 }
    }

    /// Copies the next blocks. Writers wait once during this call, for about the time to copy `steps` blocks
    /// ([`BlockIndex::SLICE`] takes less than a millisecond).
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

    /// Number of steps that the last call of [`step`](Self::step) took; a step is about the work to copy one block.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.spent
    }
}

impl CopyDone {
    /// Sorts the copied blocks and returns them, in a few nanoseconds per block.
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

impl BlockIndex {
    /// Events that store all held blocks: applied to an empty index of the same configuration, they build an equal
    /// index. Block hashes are in their canonical form. Other threads may change the index meanwhile, as in
    /// [`dump_in_slices`](Self::dump_in_slices).
    #[must_use]
    pub fn dump(&self) -> Vec<Event> {
        self.dump_in_slices(Self::SLICE).flatten().collect()
    }

    /// Events that store all held blocks, produced in slices. Other writers can change the index between two slices.
    /// `steps`: approximate number of blocks copied per slice ([`SLICE`](Self::SLICE) takes less than a millisecond).
    ///
    /// Each rank is dumped as it was at one moment, but different ranks at different moments. Ranks that were added
    /// after the start of the dump are missing.
    #[must_use]
    pub fn dump_in_slices(&self, steps: usize) -> Dump<'_> {
        let mut ranks = self.write(|writer| writer.rank_names());
        ranks.sort_unstable();
        Dump { index: self, steps, spent: 0, ranks: ranks.into_iter(), copier: None }
    }
}

/// Iterator over the events that store all held blocks, rank by rank; returned by [`BlockIndex::dump_in_slices`].
///
/// Each call of [`next`](Iterator::next) blocks writers once, for about the time to copy `steps` blocks, and returns
/// the events of at most one rank: none if the copy of the rank is incomplete, or the rank holds nothing.
pub struct Dump<'i> {
    index: &'i BlockIndex,
    steps: usize,
    spent: usize,
    ranks: IntoIter<(Box<str>, u32)>,
    copier: Option<(Box<str>, u32, RankCopier<&'i BlockIndex>)>,
}

impl Dump<'_> {
    /// Number of steps that the last slice took, for tests; a step is about the work to copy one block.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.spent
    }
}

impl Iterator for Dump<'_> {
    type Item = Vec<Event>;

    fn next(&mut self) -> Option<Vec<Event>> {
        let (worker, rank, copier) = match self.copier.take() {
            Some(begun) => begun,
            None => {
                let (worker, rank) = self.ranks.next()?;
                let copier = RankCopier::new(self.index, &worker, rank);
                (worker, rank, copier)
            }
        };
        match copier.step(self.steps) {
            CopyState::More(copier) => {
                self.spent = copier.spent();
                self.copier = Some((worker, rank, copier));
                Some(Vec::new())
            }
            CopyState::Done(done) => {
                self.spent = done.spent;
                Some(done.sorted().events(&worker, rank))
            }
        }
    }
}

impl FusedIterator for Dump<'_> {}

impl fmt::Debug for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dump").field("ranks", &self.ranks.len()).finish_non_exhaustive()
    }
}
