//! Dumps: what is held, as events that make an equal index.

use std::fmt;
use std::iter::FusedIterator;
use std::vec::IntoIter;

use crate::copier::{CopyState, RankCopier};
use crate::index::BlockIndex;
use crate::types::Event;

impl BlockIndex {
    /// Everything held, as events. Applied to an empty index of the same configuration, they make an equal one. Block
    /// hashes are in their canonical form. Writers go on meanwhile, as in [`dump_in_slices`](Self::dump_in_slices).
    #[must_use]
    pub fn dump(&self) -> Vec<Event> {
        self.dump_in_slices(Self::SLICE).flatten().collect()
    }

    /// Everything held, as events, in slices between which writers get their turn; `steps`: blocks that a slice may copy,
    /// about ([`SLICE`](Self::SLICE) takes less than a millisecond).
    ///
    /// Each rank is as it was at one moment, different ranks at different moments. A rank that is new since the
    /// beginning is not in it.
    #[must_use]
    pub fn dump_in_slices(&self, steps: usize) -> Dump<'_> {
        let mut ranks = self.write(|writer| writer.rank_names());
        ranks.sort_unstable();
        Dump { index: self, steps, spent: 0, ranks: ranks.into_iter(), copier: None }
    }
}

/// Everything held, as events, rank by rank: what [`BlockIndex::dump_in_slices`] gives.
///
/// Each call of [`next`](Iterator::next) holds writers up once, for about as long as it takes to copy so many blocks,
/// and returns the events of at most one rank: none if it is not complete yet, or holds nothing.
pub struct Dump<'i> {
    index: &'i BlockIndex,
    steps: usize,
    spent: usize,
    ranks: IntoIter<(Box<str>, u32)>,
    copier: Option<(Box<str>, u32, RankCopier<&'i BlockIndex>)>,
}

impl Dump<'_> {
    /// Number of steps that the last slice took; a step is about what it takes to copy one block. For tests.
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
