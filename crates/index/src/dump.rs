//! A dump that lets writers in between.

use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::vec::IntoIter;

use crate::index::BlockIndex;
use crate::types::Event;
use crate::writer::{Large, Slice};

/// Everything held, as events, rank by rank: what [`BlockIndex::dump_in_slices`] gives.
///
/// Each call of [`next`](Iterator::next) holds writers up once, for about as long as it takes to copy so many blocks,
/// and returns the events of at most one rank: none if it is not complete yet, or holds nothing.
pub struct Dump<'i> {
    index: &'i BlockIndex,
    steps: usize,
    spent: usize,
    ranks: IntoIter<(Arc<str>, u32)>,
    next: Option<(Arc<str>, u32)>,
    large: Option<Large>,
    /// Times that all copied of it was in vain.
    again: usize,
}

/// A rank that is cleared again and again before it is copied is copied at once: it is small soon after a clear.
const MOST_AGAIN: usize = 8;

impl<'i> Dump<'i> {
    pub(crate) fn new(index: &'i BlockIndex, steps: usize) -> Self {
        let mut ranks = index.write(|writer| writer.rank_names());
        ranks.sort_unstable();
        Self { index, steps, spent: 0, ranks: ranks.into_iter(), next: None, large: None, again: 0 }
    }

    /// How many steps the last slice took; a step is about what it takes to copy one block. For tests.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.spent
    }
}

impl Iterator for Dump<'_> {
    type Item = Vec<Event>;

    fn next(&mut self) -> Option<Vec<Event>> {
        let steps = if self.again < MOST_AGAIN { self.steps } else { usize::MAX };
        let mut spent = 0;
        let slice = match &mut self.large {
            Some(large) => self.index.write(|writer| writer.slice_more(large, steps, &mut spent)),
            None => {
                let (worker, rank) = self.next.take().or_else(|| self.ranks.next())?;
                let slice = self.index.write(|writer| writer.slice_rank(&worker, rank, steps, &mut spent));
                self.next = matches!(slice, Slice::Begun(_)).then_some((worker, rank));
                slice
            }
        };
        self.spent = spent;
        match slice {
            Slice::Rank(events) => {
                (self.next, self.again) = (None, 0);
                return Some(self.large.take().map_or(events, Large::events));
            }
            Slice::Begun(mut large) => {
                large.tidy();
                self.large = Some(large);
            }
            Slice::More => {}
            // The rank that is next is still this one.
            Slice::Again => {
                self.large = None;
                self.again += 1;
            }
        }
        Some(Vec::new())
    }
}

impl FusedIterator for Dump<'_> {}

impl Drop for Dump<'_> {
    fn drop(&mut self) {
        if let Some(large) = &self.large {
            self.index.write(|writer| writer.unwatch(large.watch));
        }
    }
}

impl fmt::Debug for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dump").field("ranks", &self.ranks.len()).finish_non_exhaustive()
    }
}
