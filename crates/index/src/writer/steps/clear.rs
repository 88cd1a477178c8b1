//! Clearing of workers, ranks and tiers, and removal of workers.
//!
//! Clearing a large holder (a rank's device, or with other tiers) takes long. Therefore the rank gets a new holder at
//! once, and readers, who find no name for the old holder, ignore it from then on. The old holder is removed from its
//! runs in steps, at the end of the following events: from the runs farthest from the beginning of the prompt first, as
//! no run may be freed before the runs that continue it; then its private tables are freed, segment by segment.
//! Meanwhile the old holder is still in sets but has no effect: a block hash whose block only departing holders have
//! can be assigned to another block.
//!
//! If one of several tiers is cleared, the blocks that the rank loses depend on its other tiers. Then blocks are
//! removed one by one, the ends of chains first, in small parts, between which other writers get the lock. Any other
//! change of the same rank first completes the clearing.

use smallvec::SmallVec;

use super::lookup::RUN_STEPS;
use crate::position::{NO_NAME, Position};
use crate::retire::Garbage;
use crate::stats::step;
use crate::types::Tier;
use crate::writer::holders::workers::TierClear;
use crate::writer::holders::{DepartingHolder, Departures, Holder, OrderedRuns, Table};
use crate::writer::state::Writer;

impl Writer {
    /// Removes all blocks of a worker, or of one of its ranks or tiers. Returns the ranks whose clearing must be
    /// continued by [`Self::go_on_clearing`].
    pub(crate) fn clear(&mut self, worker: &str, rank: Option<u32>, tier: Option<Tier>) -> SmallVec<[u32; 4]> {
        self.counters.clears += 1;
        let ranks = self.workers.by_name.get(worker).into_iter().flatten();
        let mut ranks: SmallVec<[u32; 4]> =
            ranks.filter(|(n, _)| rank.is_none_or(|r| r == *n)).map(|(_, rank)| *rank).collect();
        ranks.retain(|&mut rank| {
            if self.rank_mut(rank).is_tracked {
                self.loading.write().clear(rank, tier);
            }
            match tier {
                // All tiers are cleared.
                None => self.rank_mut(rank).clearing = None,
                Some(_) => self.finish_clearing(rank),
            }
            self.touch_all(self.device_of(rank));
            for (number, clears) in self.rank_mut(rank).clears.iter_mut().enumerate() {
                *clears = clears.wrapping_add(u32::from(tier.is_none_or(|tier| tier as usize == number)));
            }
            match tier {
                Some(tier) if self.is_mixed(rank, tier) => {
                    self.begin_clearing(rank, tier);
                    return true;
                }
                None => self.clear_rank(rank),
                Some(Tier::Gpu) => {
                    if self.empty_device(rank) {
                        self.publish_roster();
                    }
                }
                Some(_) => {
                    // The device is all there is.
                    if self.end_views(rank) {
                        self.publish_roster();
                    }
                }
            }
            false
        });
        ranks
    }

    /// True if the blocks that a rank loses when the tier `tier` is cleared also depend on its other tiers.
    fn is_mixed(&mut self, rank: u32, tier: Tier) -> bool {
        let books = self.rank_mut(rank);
        match (tier as usize).checked_sub(1) {
            None => books.wider != [None; 3],
            Some(slot) => (0..3).any(|other| other != slot && books.offloaded.on(other) > 0),
        }
    }

    fn clear_rank(&mut self, rank: u32) {
        let has_views = self.end_views(rank);
        let has_moved = self.empty_device(rank);
        if has_views || has_moved {
            self.publish_roster();
        }
    }

    /// Removes a rank's blocks on all tiers other than the device. Returns true if the roster (the table of holders for
    /// readers) has changed, which the caller must publish.
    fn end_views(&mut self, rank: u32) -> bool {
        self.end_new_view(rank);
        let books = self.rank_mut(rank);
        let (device, wider) = (books.device, std::mem::take(&mut books.wider));
        let offloaded = std::mem::take(&mut books.offloaded);
        self.leaving.push(Table::Offloaded(offloaded));
        if wider == [None; 3] {
            return false;
        }
        self.set_views(device, wider, [None; 3]);
        wider.into_iter().flatten().for_each(|view| self.send_off(view));
        true
    }

    /// Removes a rank's blocks on its device. Returns true if the roster (the table of holders for readers) has
    /// changed, which the caller must publish.
    pub(in crate::writer) fn empty_device(&mut self, rank: u32) -> bool {
        let books = self.rank_mut(rank);
        let copies = std::mem::take(&mut books.copies);
        books.device_word = 0;
        let device = books.device;
        self.leaving.push(Table::Copies(copies));
        if self.is_small(device) {
            self.clear_holder(device);
            return false;
        }
        let new = self.new_holder();
        self.rank_mut(rank).device = new;
        let member = self.roster.get(device);
        self.roster.set(device, None);
        self.roster.set(new, member);
        self.send_off(device);
        true
    }

    /// Removes a worker with all its blocks.
    pub(crate) fn drop_worker(&mut self, worker: &str) {
        self.counters.drops += 1;
        self.loading.write().forget_chunks(worker);
        if !self.workers.by_name.contains_key(worker) {
            return;
        }
        self.clear(worker, None, None);
        self.counters.clears -= 1;
        for (_, rank) in self.workers.by_name.get(worker).into_iter().flatten() {
            self.loading.write().drop_rank(*rank);
        }
        if let Some(&[(_, first), ..]) = self.workers.by_name.get(worker).map(|ranks| &ranks[..]) {
            self.roster.name(first, None);
        }
        for rank in self.workers.drop(worker) {
            self.roster.set(rank.device, None);
            self.trash.push(Garbage::HolderId(rank.device));
        }
        self.publish_roster();
    }
}

/// Cost of clearing a block, in steps; a step is about the work to copy one block.
const BLOCK_STEPS: isize = 4;

impl Writer {
    /// Starts to clear a tier of a rank, that is, to remove all its blocks, in steps.
    pub(in crate::writer) fn begin_clearing(&mut self, rank: u32, tier: Tier) {
        let books = self.rank_mut(rank);
        let holder = if tier == Tier::Gpu { books.device } else { books.widest() };
        let runs = OrderedRuns::leaves_first(self.holders[holder as usize].runs.clone());
        let names = self.names_not_in_runs(holder);
        self.rank_mut(rank).clearing = Some(Box::new(TierClear { tier, holder, runs, at: None, names }));
    }

    /// Completes the clearing of a rank's tier, if one is being cleared.
    #[inline]
    pub(in crate::writer) fn finish_clearing(&mut self, rank: u32) {
        while self.workers.get(rank).is_some_and(|books| books.clearing.is_some()) {
            self.go_on_clearing(rank, usize::MAX);
        }
    }

    /// Continues to clear a tier of a rank, if one is being cleared, by about `steps` steps (a step: about the copy of
    /// one block). Returns true if blocks are left to clear.
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

    /// Clears more blocks of a rank's tier, in about `steps` steps. Returns true if more are left.
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

/// Largest holder (a rank's cache) that is cleared in one step, by its number of blocks plus `RUN` for each of its runs
/// of blocks.
const SMALL: u64 = 1 << 7;
/// Approximate work of clearing done at the end of each event, as a number of blocks.
const SHARE: usize = 1 << 8;
/// Largest number of blocks of one run (a list of consecutive blocks) that are cleared in one step.
const MOST_OF_A_RUN: u32 = 1 << 9;
/// Work of clearing a run of blocks in addition to the work for its blocks, as an equal number of blocks.
const RUN: usize = 16;

impl Writer {
    /// True if a holder (a rank's cache) is so small that it can be cleared in one step.
    pub(in crate::writer) fn is_small(&self, holder: u32) -> bool {
        let it = &self.holders[holder as usize];
        it.names() + u64::from(it.entered) * RUN as u64 <= SMALL
    }

    /// Starts to remove a holder (a rank's cache), which readers can no longer see, in steps. Afterwards its number can
    /// be reused.
    pub(in crate::writer) fn send_off(&mut self, holder: u32) {
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

    /// Does an event's share of the pending removal of holders (ranks' caches) and tables.
    pub(in crate::writer) fn see_off(&mut self) {
        if !self.leaving.is_empty() {
            self.see_off_some(SHARE);
        }
    }

    /// Continues the removal of holders (ranks' caches) and tables, by the work for about `blocks` blocks.
    #[cold]
    pub(in crate::writer) fn see_off_some(&mut self, blocks: usize) {
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

    /// Removes a holder (a rank's cache) from the runs of blocks in which it has blocks, in at most `left` steps.
    /// Returns true if the holder is in no run any longer.
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

    /// True if only holders (ranks' caches) that are being removed have a block at a position (run of blocks and
    /// offset).
    pub(in crate::writer) fn is_left(&self, at: Position) -> bool {
        if self.leaving.holders.is_empty() {
            return false;
        }
        let levels = self.runs.levels(at.run);
        let Some(level) = levels.iter().find(|level| level.end > at.offset) else { return false };
        let mut is_left = true;
        self.sets.members(level.set).for_each(|holder| is_left = is_left && self.is_leaving(holder));
        is_left
    }

    /// True if a holder (a rank's cache) is being removed in steps.
    pub(in crate::writer) fn is_leaving(&self, holder: u32) -> bool {
        self.leaving.holders.iter().any(|it| it.number == holder)
    }

    /// Removes the shared block hash of a position (run of blocks and offset), if it has one.
    pub(in crate::writer) fn unname(&mut self, at: Position) {
        let name = self.runs.name(at);
        if name != NO_NAME {
            let runs = &self.runs;
            self.names.remove(name, |number| runs.position(number) == at);
            self.runs.set_name(at, NO_NAME);
        }
    }
}
