//! Private tables of block hashes, for holders (ranks' caches) that cannot use the shared table.
//!
//! Holders use the same block hash for a position (a run of blocks and an offset) as long as they can. If a holder's
//! engine uses another one for a position, or one that belongs to another position, the holder gets a private table
//! with all its block hashes. Filling the table takes long for a holder with many blocks. So it is built in steps, at
//! the end of the following events. Until it is complete, the holder uses the shared block hashes for its regular
//! blocks, and keeps blocks for which it cannot as irregular blocks.

use crate::position::{NO_NAME, Position};
use crate::stats::step;
use crate::writer::names::private::{NameTableBuilder, PrivateNames};
use crate::writer::state::Writer;

/// Approximate number of block hashes added to a private table at the end of each event.
const SHARE: usize = 1 << 9;
/// Cost of reading a run of blocks, as the number of block hashes that can be added to a private table in the same
/// time.
const RUN: usize = 8;

impl Writer {
    /// True if a holder (a rank's cache) can use the block hash `name` for a regular block (stored in a run) at
    /// `existing` or at a new position. If a private table of block hashes is needed for this, gives the holder one, or
    /// starts to build one.
    pub(in crate::writer) fn may_name(&mut self, holder: u32, name: u64, existing: Option<Position>) -> bool {
        let it = &self.holders[holder as usize];
        if it.private.is_some() || self.make_shared(name, existing) {
            return true;
        }
        let it = &self.holders[holder as usize];
        if it.coming.is_some() {
            return false;
        }
        self.dissolve_all(holder);
        let it = &self.holders[holder as usize];
        if it.blocks <= self.most_own_at_once {
            self.make_private(holder);
            return true;
        }
        let runs = it.runs.clone();
        self.holders[holder as usize].coming = Some(Box::new(NameTableBuilder::new(runs)));
        self.gathering.push(holder);
        false
    }

    /// Gives a holder (a rank's cache) a private table of block hashes, built at once.
    fn make_private(&mut self, holder: u32) {
        let runs = self.runs_of(holder);
        let mut private = PrivateNames::with_room_for(self.holders[holder as usize].blocks as usize);
        for (run, cutoff) in runs {
            private.push_new(run, 0, &self.regular_names(holder, run, 0, cutoff), &self.runs);
        }
        self.now_private(holder, private);
    }

    fn now_private(&mut self, holder: u32, names: PrivateNames) {
        self.holders[holder as usize].private = Some(names);
        self.counters.private_holders += 1;
    }

    /// Shared block hashes of the positions `from..to` of a run of blocks, where the holder (a rank's cache) has
    /// blocks; [`NO_NAME`] where it has no regular block (stored in a run).
    fn regular_names(&self, holder: u32, run: u32, from: u32, to: u32) -> Vec<u64> {
        let it = &self.holders[holder as usize];
        let name = |offset| {
            let at = Position { run, offset };
            if it.covers_irregularly(at) { NO_NAME } else { self.runs.name(at) }
        };
        (from..to).map(name).collect()
    }

    /// Continues to build the pending private tables of block hashes, by the amount of work that is due at the end of
    /// an event.
    pub(in crate::writer) fn gather_names(&mut self) {
        if !self.gathering.is_empty() {
            self.gather_some_names((self.most_own_at_once as usize).clamp(1, SHARE));
        }
    }

    /// Adds about `names` block hashes to the private tables that are being built.
    #[cold]
    pub(in crate::writer) fn gather_some_names(&mut self, names: usize) {
        let mut left = names as isize;
        while left > 0
            && let Some(&holder) = self.gathering.last()
        {
            let Some(mut coming) = self.holders.get_mut(holder as usize).and_then(|it| it.coming.take()) else {
                // It has been cleared.
                self.gathering.pop();
                continue;
            };
            while left > 0
                && let Some(&run) = coming.runs.last()
            {
                step();
                let from = coming.offset;
                let first = Position { run, offset: 0 };
                let is_in = self.runs.is_live(run) && self.covers(holder, first);
                let cutoff = if is_in { self.cutoff(holder, run, from) } else { 0 };
                let to = cutoff.min(from.saturating_add(left as u32));
                if from < to {
                    coming.add(run, from, &self.regular_names(holder, run, from, to), &self.runs);
                    left -= (to - from) as isize;
                }
                left -= RUN as isize;
                coming.offset = to;
                if to >= cutoff {
                    coming.runs.pop();
                    coming.offset = 0;
                }
            }
            if coming.runs.is_empty() {
                self.gathering.pop();
                self.now_private(holder, coming.names);
            } else {
                self.holders[holder as usize].coming = Some(coming);
            }
        }
        if self.gathering.is_empty() {
            self.gathering = Vec::new();
        }
    }
}
