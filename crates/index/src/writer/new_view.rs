//! A rank's first block on a tier, which needs a view of its own: that comes together in steps.
//!
//! A view begins with all that the next narrower one has, which may be much. So before a large rank's first block is stored
//! on a tier, a holder that readers have no name for takes all that over: run by run, then what is in none, name by name.
//! Whatever is touched meanwhile (`watch.rs`) is looked up again, until so little is left that it can be done at once. Then
//! the view is there, as it would be if it had been made in one go.

use hashbrown::HashSet;

use super::chains::{NAME_STEPS, RUN_STEPS};
use super::ordered_runs::OrderedRuns;
use super::state::Writer;
use super::workers::NewView;
use crate::position::Position;
use crate::types::Tier;

/// Rounds of looking up what was touched during the last, as in `slices.rs`.
const ROUNDS: usize = 16;

impl Writer {
    /// Goes on with what makes a rank ready for events of a tier other than the device, in about so many steps; `stores`:
    /// there are to be blocks. Returns whether there is more to do; what is little is left to the event.
    pub(crate) fn prepare(&mut self, rank: Option<u32>, tier: Tier, stores: bool, steps: usize) -> bool {
        let Some((rank, books)) = rank.and_then(|rank| Some((rank, self.workers.get(rank)?))) else { return false };
        let (device, has_views) = (books.device, books.wider != [None; 3]);
        // The other views are told of its blocks' parents.
        if has_views && !self.gather_places(device, steps, &mut 0) {
            return true;
        }
        stores && self.prepare_view(rank, tier as usize - 1, steps)
    }

    /// Goes on with the view that a rank will need for its first block on a tier.
    fn prepare_view(&mut self, rank: u32, number: usize, steps: usize) -> bool {
        self.finish_clearing(rank);
        let books = self.rank_mut(rank);
        if books.wider[number].is_some() {
            // Somebody may have needed it at once.
            if books.new_view.as_ref().is_some_and(|view| view.number == number) {
                self.end_new_view(rank);
            }
            return false;
        }
        let narrower = books.narrower(number);
        let Some(mut view) = self.rank_mut(rank).new_view.take() else {
            return self.begin_view(rank, number, narrower, steps);
        };
        if view.number != number {
            // Somebody else has begun another one.
            self.rank_mut(rank).new_view = Some(view);
            return false;
        }
        match self.take_touched(view.watch) {
            Some(touched) if view.narrower == narrower => view.touched.extend(touched),
            _ => {
                // It is all different now.
                self.end_view(*view);
                return true;
            }
        }
        if !self.fill_view(&mut view, steps) {
            self.rank_mut(rank).new_view = Some(view);
            return true;
        }
        self.unwatch(view.watch);
        self.holders[view.holder as usize].is_hidden = false;
        self.roster.one_has_left();
        self.now_view(rank, number, view.holder);
        self.publish_roster();
        true
    }

    fn begin_view(&mut self, rank: u32, number: usize, narrower: u32, steps: usize) -> bool {
        let it = &self.holders[narrower as usize];
        if it.names() as usize + it.runs.len() * RUN_STEPS <= steps {
            return false;
        }
        let runs = OrderedRuns::root_first(it.runs.clone());
        let device = self.device_of(rank);
        let watch = self.watch([device, narrower]);
        let names = self.names_not_in_runs(narrower);
        let holder = self.new_holder();
        self.holders[holder as usize].is_hidden = true;
        self.roster.one_leaves();
        // Before any reader meets it.
        self.publish_roster();
        let (at, touched, rounds) = (None, HashSet::new(), 0);
        let view = NewView { number, holder, narrower, watch, runs, at, names, touched, rounds };
        self.rank_mut(rank).new_view = Some(Box::new(view));
        true
    }

    /// Nobody needs the view that a rank was to have.
    pub(super) fn end_new_view(&mut self, rank: u32) {
        if let Some(view) = self.rank_mut(rank).new_view.take() {
            self.end_view(*view);
        }
    }

    fn end_view(&mut self, view: NewView) {
        self.unwatch(view.watch);
        self.holders[view.holder as usize].is_hidden = false;
        self.send_off(view.holder);
        // It was counted as hidden, and is now as leaving.
        self.roster.one_has_left();
    }

    /// Puts more into a view; returns whether all is there.
    fn fill_view(&mut self, view: &mut NewView, steps: usize) -> bool {
        let mut spent = 0;
        if !self.gather_places(view.narrower, steps, &mut spent) {
            return false;
        }
        let mut left = steps.saturating_sub(spent).try_into().unwrap_or(isize::MAX);
        while left > 0
            && let Some((run, from)) = view.at.take().or_else(|| Some((view.runs.next(&self.runs, &mut left)?, 0)))
        {
            left -= RUN_STEPS as isize;
            if !self.runs.is_live(run) || !self.covers(view.narrower, Position { run, offset: 0 }) {
                continue;
            }
            let cutoff = self.cutoff(view.narrower, run, from);
            let to = cutoff.min(from.saturating_add(left.clamp(1, i32::MAX as isize) as u32));
            if let Some(chain) = self.chain_in(view.narrower, run, from, to) {
                left -= chain.names.len() as isize;
                self.gain(view.holder, chain.parent, &chain.names, &chain.contents, &mut Vec::new());
            }
            view.at = (to < cutoff).then_some((run, to));
        }
        if view.at.is_some() || !view.runs.is_empty() {
            return false;
        }
        loop {
            while left > 0
                && let Some(name) = view.names.pop()
            {
                left -= NAME_STEPS as isize;
                self.follow(view, name);
            }
            if !view.names.is_empty() {
                return false;
            }
            let touched = std::mem::take(&mut view.touched);
            if touched.is_empty() {
                return true;
            }
            view.names.extend(touched);
            if view.names.len() * NAME_STEPS <= left.max(0).unsigned_abs() || view.rounds >= ROUNDS {
                left = isize::MAX;
            }
            view.rounds += 1;
        }
    }

    /// A view has under a name what the narrower one has.
    fn follow(&mut self, view: &NewView, name: u64) {
        match self.block(view.narrower, name) {
            Some((parent, content)) => drop(self.gain_one(view.holder, parent, name, content)),
            None => drop(self.lose_one(view.holder, name)),
        }
    }
}
