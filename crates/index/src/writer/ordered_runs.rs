//! The runs of a holder in the order of their distance from the root, which they are put in step by step.

use std::collections::BinaryHeap;

use crate::runs::Runs;
use crate::steps::step;

/// See the module's text. A run may come twice, or be another by now.
pub(super) struct OrderedRuns {
    listed: Vec<u32>,
    /// Runs with what orders them.
    sorted: BinaryHeap<(u32, u32)>,
    is_root_first: bool,
}

impl OrderedRuns {
    pub(super) fn leaves_first(runs: Vec<u32>) -> Self {
        Self { sorted: BinaryHeap::with_capacity(runs.len()), listed: runs, is_root_first: false }
    }

    pub(super) fn root_first(runs: Vec<u32>) -> Self {
        Self { sorted: BinaryHeap::with_capacity(runs.len()), listed: runs, is_root_first: true }
    }

    pub(super) fn bytes(&self) -> usize {
        self.listed.capacity() * size_of::<u32>() + self.sorted.capacity() * size_of::<(u32, u32)>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.sorted.is_empty()
    }

    /// The next run, if there is one and `left` is not used up; takes of that for each run put in order.
    pub(super) fn next(&mut self, runs: &Runs, left: &mut isize) -> Option<u32> {
        while *left > 0
            && let Some(run) = self.listed.pop()
        {
            step();
            *left -= 1;
            if runs.is_live(run) {
                self.put_back(run, runs);
            }
        }
        if *left > 0 { self.sorted.pop().map(|(_, run)| run) } else { None }
    }

    /// A run is to come again, in its turn.
    pub(super) fn put_back(&mut self, run: u32, runs: &Runs) {
        let start = runs.start(run);
        self.sorted.push((if self.is_root_first { !start } else { start }, run));
    }
}
