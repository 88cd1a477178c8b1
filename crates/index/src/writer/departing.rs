//! Holders and tables that take their leave in steps.

use std::collections::VecDeque;

use super::irregular::IrregularBlocks;
use super::ordered_runs::OrderedRuns;
use super::private_names::{PlaceNames, PrivateNames};
use super::workers::{Copies, OffloadedBlocks};
use crate::raw::Children;

/// All that is on its way out.
#[derive(Default)]
pub(crate) struct Departures {
    pub(super) holders: VecDeque<DepartingHolder>,
    pub(super) tables: Vec<Table>,
}

/// A holder, with the runs it was in.
pub(super) struct DepartingHolder {
    pub(super) number: u32,
    pub(super) runs: OrderedRuns,
}

/// Table that was a holder's or a rank's own, or is too small.
pub(super) enum Table {
    Private(Box<PrivateNames>),
    Places(Box<PlaceNames>),
    Irregular(Box<IrregularBlocks>),
    Copies(Copies),
    Offloaded(OffloadedBlocks),
    Children(Box<Children>),
}

impl Departures {
    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.tables.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
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

    pub(super) fn push(&mut self, table: Table) {
        self.tables.push(table);
    }
}
