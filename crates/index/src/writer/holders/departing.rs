//! Work that takes steps: holders and tables that are cleared, runs that are put in order of their distance from the root,
//! and ranks that are copied meanwhile.

use std::collections::{BinaryHeap, VecDeque};

use hashbrown::HashSet;

use super::irregular::IrregularBlocks;
use super::workers::{Copies, OffloadedBlocks};
use crate::raw::Children;
use crate::runs::Runs;
use crate::stats::step;
use crate::writer::names::private::{PlaceNames, PrivateNames};

/// Holders and tables on their way out.
#[derive(Default)]
pub(crate) struct Departures {
    pub(in crate::writer) holders: VecDeque<DepartingHolder>,
    pub(in crate::writer) tables: Vec<Table>,
}

/// A holder, with the runs it was in.
pub(in crate::writer) struct DepartingHolder {
    pub(in crate::writer) number: u32,
    pub(in crate::writer) runs: OrderedRuns,
}

/// Table that was a holder's or a rank's own, or is too small.
pub(in crate::writer) enum Table {
    Private(Box<PrivateNames>),
    Places(Box<PlaceNames>),
    Irregular(Box<IrregularBlocks>),
    Copies(Copies),
    Offloaded(OffloadedBlocks),
    Children(Box<Children>),
}

impl Departures {
    pub(in crate::writer) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.tables.is_empty()
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        let holders = self.holders.iter().map(|it| it.runs.bytes());
        let tables = self.tables.iter().map(|table| match table {
            Table::Private(it) => it.bytes() + size_of::<PrivateNames>(),
            Table::Places(it) => it.bytes(),
            Table::Irregular(it) => it.bytes(),
            Table::Copies(it) => it.bytes(),
            Table::Offloaded(it) => it.bytes(),
            Table::Children(it) => it.bytes(),
        });
        holders.chain(tables).sum()
    }

    pub(in crate::writer) fn push(&mut self, table: Table) {
        self.tables.push(table);
    }
}

/// Runs of a holder in the order of their distance from the root, put in order step by step. A run may come twice, or be
/// another by now.
pub(in crate::writer) struct OrderedRuns {
    listed: Vec<u32>,
    /// Runs, each with its sort key.
    sorted: BinaryHeap<(u32, u32)>,
    is_root_first: bool,
}

impl OrderedRuns {
    pub(in crate::writer) fn leaves_first(runs: Vec<u32>) -> Self {
        Self { sorted: BinaryHeap::with_capacity(runs.len()), listed: runs, is_root_first: false }
    }

    pub(in crate::writer) fn root_first(runs: Vec<u32>) -> Self {
        Self { sorted: BinaryHeap::with_capacity(runs.len()), listed: runs, is_root_first: true }
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        self.listed.capacity() * size_of::<u32>() + self.sorted.capacity() * size_of::<(u32, u32)>()
    }

    pub(in crate::writer) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.sorted.is_empty()
    }

    /// The next run, if there is one and `left` is not used up; takes of that for each run put in order.
    pub(in crate::writer) fn next(&mut self, runs: &Runs, left: &mut isize) -> Option<u32> {
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

    /// Puts a run back, to come again in its turn.
    pub(in crate::writer) fn put_back(&mut self, run: u32, runs: &Runs) {
        let start = runs.start(run);
        self.sorted.push((if self.is_root_first { !start } else { start }, run));
    }
}

/// Watch over one rank that is being copied.
pub(crate) struct Watch {
    pub(in crate::writer) id: u64,
    /// The rank's holders of the narrowest view and of the widest.
    pub(in crate::writer) holders: [u32; 2],
    /// Names touched since the last look.
    pub(in crate::writer) touched: HashSet<u64>,
    /// True if all names are touched.
    pub(in crate::writer) over: bool,
}

/// Watches over all ranks that are being copied.
#[derive(Default)]
pub(crate) struct Watches {
    pub(in crate::writer) all: Vec<Watch>,
    pub(in crate::writer) last: u64,
}

impl Watches {
    pub(in crate::writer) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
