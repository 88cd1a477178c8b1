//! One tier of several is cleared, in steps.
//!
//! If a rank has blocks on other tiers too, what it loses with one is block by block a matter of what the others have. So
//! blocks go leaves first, a bounded part at a time, and between two parts others have their turn. What happens to the same
//! rank meanwhile waits until all have gone: whoever comes first sees to that.

use super::chains::RUN_STEPS;
use super::ordered_runs::OrderedRuns;
use super::state::Writer;
use super::workers::TierClear;
use crate::position::Position;
use crate::types::Tier;

/// Cost of a block, in steps.
const BLOCK_STEPS: isize = 4;

impl Writer {
    /// Begins to clear a tier, which takes as long as there is much.
    pub(super) fn begin_clearing(&mut self, rank: u32, tier: Tier) {
        let books = self.rank_mut(rank);
        let holder = if tier == Tier::Gpu { books.device } else { books.widest() };
        let runs = OrderedRuns::leaves_first(self.holders[holder as usize].runs.clone());
        let names = self.names_not_in_runs(holder);
        self.rank_mut(rank).clearing = Some(Box::new(TierClear { tier, holder, runs, at: None, names }));
    }

    /// Does all that is left of a tier that is being cleared.
    #[inline]
    pub(super) fn finish_clearing(&mut self, rank: u32) {
        while self.workers.get(rank).is_some_and(|books| books.clearing.is_some()) {
            self.go_on_clearing(rank, usize::MAX);
        }
    }

    /// Goes on with the tier of a rank that is being cleared, if one is, in about so many steps. Returns whether there is
    /// more to do.
    #[cold]
    pub(crate) fn go_on_clearing(&mut self, rank: u32, steps: usize) -> bool {
        let Some(mut it) = self.workers.get_mut(rank).and_then(|books| books.clearing.take()) else { return false };
        if self.clear_some(rank, &mut it, steps) {
            self.rank_mut(rank).clearing = Some(it);
            return true;
        }
        if it.tier == Tier::Gpu && self.empty_device(rank) {
            self.publish_roster();
        }
        let books = self.rank_mut(rank);
        let holders = [books.device, books.widest()];
        self.forget_places(holders);
        false
    }

    /// Returns whether there is more.
    fn clear_some(&mut self, rank: u32, it: &mut TierClear, steps: usize) -> bool {
        let mut spent = 0;
        let device = self.device_of(rank);
        if ![device, it.holder].iter().all(|holder| self.gather_places(*holder, steps, &mut spent)) {
            return true;
        }
        let mut left: isize = steps.saturating_sub(spent).try_into().unwrap_or(isize::MAX);
        while left > 0 && !it.names.is_empty() {
            let most = (left / BLOCK_STEPS).max(1) as usize;
            let mut names = it.names.split_off(it.names.len().saturating_sub(most));
            names.reverse();
            left -= names.len() as isize * BLOCK_STEPS;
            self.clear_names(rank, it.tier, &names);
        }
        while left > 0
            && let Some((run, to)) = it.at.take().or_else(|| Some((it.runs.next(&self.runs, &mut left)?, u32::MAX)))
        {
            left -= RUN_STEPS as isize;
            if !self.runs.is_live(run) || !self.covers(it.holder, Position { run, offset: 0 }) {
                continue;
            }
            let to = to.min(self.cutoff(it.holder, run, 0));
            let from = to.saturating_sub((left / BLOCK_STEPS).clamp(1, i32::MAX as isize) as u32);
            if let Some(mut chain) = self.chain_in(it.holder, run, from, to) {
                left -= chain.names.len() as isize * BLOCK_STEPS;
                chain.names.reverse();
                self.clear_names(rank, it.tier, &chain.names);
            }
            it.at = (from > 0).then_some((run, from));
        }
        if it.at.is_some() || !it.runs.is_empty() || !it.names.is_empty() {
            return true;
        }
        if let Some(slot) = (it.tier as usize).checked_sub(1)
            && let offloaded = &self.rank_mut(rank).offloaded
            && offloaded.on(slot) > 0
        {
            debug_assert!(false, "a block was in no run and among no names");
            it.names.extend(offloaded.iter().filter(|(_, claims)| claims[slot] > 0).map(|(name, _)| name));
        }
        !it.names.is_empty()
    }

    fn clear_names(&mut self, rank: u32, tier: Tier, names: &[u64]) {
        self.touch(self.device_of(rank), names.iter().copied());
        match tier {
            Tier::Gpu => self.narrow(rank, names),
            tier => self.clear_names_elsewhere(rank, tier, names),
        }
    }
}
