//! Holders that are cleared, and take their leave in steps.
//!
//! To clear a holder at once would take as long as it holds much. Instead its rank gets another holder, and readers,
//! who are shown no name for the old one, pass over it from that moment. What it was in goes step by step, at the end
//! of the events that follow: its runs those farthest from the root first, as no run may go before what hangs on it, then
//! the tables that were its own, segment by segment.
//!
//! Meanwhile it still is in sets and in the way of nobody: a block hash that means a block of such holders alone is
//! free to mean another.

use super::departing::{DepartingHolder, Departures, Table};
use super::holder::Holder;
use super::ordered_runs::OrderedRuns;
use super::state::Writer;
use crate::position::{NO_NAME, Position};
use crate::retire::Garbage;
use crate::steps::step;

/// A holder of at most so many blocks and runs, taken together, is cleared at once.
const SMALL: u64 = 1 << 7;
/// Work that is done at the end of an event, in blocks, about.
const SHARE: usize = 1 << 8;
/// Blocks of one run that are left in one go.
const MOST_OF_A_RUN: u32 = 1 << 9;
/// A run costs as much as so many blocks.
const RUN: usize = 16;

impl Writer {
    /// True if a holder has little enough to be cleared at once.
    pub(super) fn is_small(&self, holder: u32) -> bool {
        let it = &self.holders[holder as usize];
        it.names() + u64::from(it.entered) * RUN as u64 <= SMALL
    }

    /// `holder`, for whom readers will have no name, holds nothing any more. Its number is free when that is done.
    pub(super) fn send_off(&mut self, holder: u32) {
        // Readers have no name for its branches, either, and know it.
        if let Some(branches) = self.holders[holder as usize].branches.take() {
            for branch in branches.all {
                self.send_off(branch.number);
                self.roster.one_has_left();
            }
        }
        let it = &mut self.holders[holder as usize];
        it.tidying = None;
        let (listed, private, irregular) = (std::mem::take(&mut it.runs), it.private.take(), it.irregular.take());
        if private.is_some() {
            self.counters.private_holders -= 1;
        }
        let coming = it.coming.take().map(|it| it.names);
        self.leaving.tables.extend(private.into_iter().chain(coming).map(|it| Table::Private(Box::new(it))));
        self.leaving.tables.extend(irregular.map(Table::Irregular));
        self.leaving.holders.push_back(DepartingHolder { number: holder, runs: OrderedRuns::leaves_first(listed) });
        self.count_waiting(holder);
        self.roster.one_leaves();
    }

    /// Does an event's share.
    pub(super) fn see_off(&mut self) {
        if !self.leaving.is_empty() {
            self.see_off_some(SHARE);
        }
    }

    /// Does so much, in blocks.
    #[cold]
    pub(super) fn see_off_some(&mut self, blocks: usize) {
        let mut left = blocks as isize;
        while left > 0
            && let Some(mut it) = self.leaving.holders.pop_front()
        {
            let is_done = self.see_runs_off(&mut it, &mut left);
            if !is_done {
                self.leaving.holders.push_front(it);
                continue;
            }
            self.holders[it.number as usize] = Holder::default();
            self.roster.one_has_left();
            if self.leaving.holders.is_empty() {
                self.publish_roster();
            }
            self.trash.push(Garbage::HolderId(it.number));
        }
        while left > 0
            && let Some(table) = self.leaving.tables.last_mut()
        {
            left -= 128;
            step();
            let is_more = match table {
                Table::Private(it) => it.shed(),
                Table::Places(it) => it.shed(),
                Table::Irregular(it) => it.shed(),
                Table::Copies(it) => it.shed(),
                Table::Offloaded(it) => it.shed(),
                Table::Children(it) => it.shed(),
            };
            if !is_more {
                self.leaving.tables.pop();
            }
        }
        if self.leaving.is_empty() {
            self.leaving = Departures::default();
        }
    }

    /// Takes the holder out of its runs; true if it has left all.
    fn see_runs_off(&mut self, it: &mut DepartingHolder, left: &mut isize) -> bool {
        while let Some(run) = it.runs.next(&self.runs, left) {
            step();
            *left -= RUN as isize;
            // It may be listed twice, or have been left long ago.
            if self.runs.is_live(run) && self.covers(it.number, Position { run, offset: 0 }) {
                let cutoff = self.cutoff(it.number, run, 0);
                let to = cutoff.saturating_sub(MOST_OF_A_RUN);
                *left -= (cutoff - to) as isize;
                self.lower(it.number, run, cutoff, to);
                if to > 0 {
                    it.runs.put_back(run, &self.runs);
                }
            }
        }
        it.runs.is_empty()
    }

    /// True if nobody holds a position but holders that are on their way out.
    pub(super) fn is_left(&self, at: Position) -> bool {
        if self.leaving.holders.is_empty() {
            return false;
        }
        let levels = self.runs.levels(at.run);
        let Some(level) = levels.iter().find(|level| level.end > at.offset) else { return false };
        let mut is_left = true;
        self.sets.members(level.set).for_each(|holder| is_left = is_left && self.is_leaving(holder));
        is_left
    }

    /// True if a holder is on its way out.
    pub(super) fn is_leaving(&self, holder: u32) -> bool {
        self.leaving.holders.iter().any(|it| it.number == holder)
    }

    /// Takes the shared name from a position, if it has one.
    pub(super) fn unname(&mut self, at: Position) {
        let name = self.runs.name(at);
        if name != NO_NAME {
            let runs = &self.runs;
            self.names.remove(name, |number| runs.position(number) == at);
            self.runs.set_name(at, NO_NAME);
        }
    }
}
