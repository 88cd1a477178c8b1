//! Tiers of a rank: the blocks that it holds beyond its device memory.
//!
//! A query may count the blocks in device memory, or those on all tiers down to a given one; these sets of tiers are
//! called views. Views are nested, and each is a holder of its own, created with the first block on its tier; until
//! then the next narrower view is used for it. A block hash stands for one block on all tiers, and announcements for
//! the device decide which one: engines announce copies on other tiers with incomplete data (above all without salts),
//! and perhaps before the device's. So an announcement for another tier counts only if the rank holds no block with
//! this block hash, and until an announcement for the device replaces it.
//!
//! A view starts with all blocks of the next narrower one, which may be many. So before a large rank's first block is
//! stored on a tier, a hidden holder takes over these blocks in steps: run by run, then, by block hash, those in no
//! run. Blocks that change meanwhile (`slices.rs`) are looked up again, until so few are left that the view can be
//! completed in one step. The result is the same as if the view had been made in one step.

use hashbrown::HashSet;

use super::lookup::{NAME_STEPS, RUN_STEPS};
use crate::position::Position;
use crate::roster::Member;
use crate::types::Tier;
use crate::writer::holders::OrderedRuns;
use crate::writer::holders::workers::{Claims, NewView};
use crate::writer::state::Writer;

/// True if a block with these numbers of copies on the tiers is part of the view (set of tiers) with index `view`.
fn reach(claims: Claims, view: usize) -> bool {
    claims[..=view].iter().any(|&copies| copies > 0)
}

impl Writer {
    /// Creates the holder (record of a rank's cached blocks) for the rank's view (set of tiers) that includes all tiers
    /// up to `tier`, if there is none.
    pub(in crate::writer) fn add_view(&mut self, rank: u32, tier: Tier) {
        let number = tier as usize - 1;
        let books = self.rank_mut(rank);
        if books.wider[number].is_some() {
            return;
        }
        let narrower = books.narrower(number);
        let holder = self.new_holder();
        for chain in self.chains_of(narrower) {
            self.gain(holder, chain.parent, &chain.names, &chain.contents, &mut Vec::new());
        }
        self.now_view(rank, number, holder);
        self.publish_roster();
    }

    /// Makes `holder` the holder of the rank's view (set of tiers) with index `number`, after the holder got the blocks
    /// of the next narrower view. The caller must publish the roster (the table of holders for readers): only then can
    /// readers use the view.
    pub(in crate::writer) fn now_view(&mut self, rank: u32, number: usize, holder: u32) {
        let books = self.rank_mut(rank);
        let (device, before) = (books.device, books.wider);
        books.wider[number] = Some(holder);
        let after = books.wider;
        self.touch_all(device);
        self.set_views(device, before, after);
    }

    /// Updates the roster (the table of holders for readers) when the holders of a rank's views (sets of tiers) have
    /// changed. The caller must publish the roster.
    pub(in crate::writer) fn set_views(&mut self, device: u32, before: [Option<u32>; 3], after: [Option<u32>; 3]) {
        let Some(member) = self.roster.get(device) else { return };
        for gone in before.into_iter().flatten().filter(|holder| !after.contains(&Some(*holder))) {
            self.roster.set(gone, None);
        }
        let (mut holder, mut views) = (device, 1);
        for (number, next) in after.into_iter().enumerate() {
            if let Some(next) = next {
                self.roster.set(holder, Some(Member { views, ..member.clone() }));
                (holder, views) = (next, 0);
            }
            views |= 2 << number;
        }
        self.roster.set(holder, Some(Member { views, ..member }));
    }

    /// Adds blocks that were just stored on the device to the rank's wider views (sets of tiers), which include other
    /// tiers.
    pub(in crate::writer) fn widen(&mut self, rank: u32, mut parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let books = self.rank_mut(rank);
        if books.wider == [None; 3] {
            return;
        }
        let (views, widest) = (books.views(), books.widest());
        let first = parent;
        for (&name, &content) in names.iter().zip(contents) {
            let claimed = self.rank_mut(rank).offloaded.get(name).is_some();
            if claimed && !self.has_block(widest, parent, name, content) {
                self.counters.replaced += 1;
                // At once: the name may come again in this chain, with yet another content.
                self.gain_one(widest, parent, name, content);
            }
            parent = Some(name);
        }
        for (_, holder) in views {
            self.gain(holder, first, names, contents, &mut Vec::new());
        }
    }

    /// Removes blocks that the device just lost, or is about to lose, from the wider views (sets of tiers), unless one
    /// of their other tiers has them.
    pub(in crate::writer) fn narrow(&mut self, rank: u32, names: &[u64]) {
        if self.rank_mut(rank).wider == [None; 3] {
            return;
        }
        for (view, holder) in self.rank_mut(rank).views() {
            let offloaded = &self.rank_mut(rank).offloaded;
            let gone: Vec<u64> =
                names.iter().copied().filter(|&name| !reach(offloaded.get(name).unwrap_or_default(), view)).collect();
            self.lose(holder, &gone, &mut Vec::new());
        }
    }

    /// Stores a chain on a tier other than the device; the rank must have the tier's view (set of tiers).
    pub(in crate::writer) fn store_elsewhere(
        &mut self,
        rank: u32,
        tier: Tier,
        mut parent: Option<u64>,
        names: &[u64],
        contents: &[u64],
    ) {
        let slot = tier as usize - 1;
        let count_copies = self.count_copies;
        let books = self.rank_mut(rank);
        let (device, views, widest) = (books.device, books.views(), books.widest());
        for (&name, &content) in names.iter().zip(contents) {
            let offloaded = &mut self.rank_mut(rank).offloaded;
            let mut claims = offloaded.get(name).unwrap_or_default();
            if claims[slot] == 0 || count_copies {
                claims[slot] = claims[slot].saturating_add(1);
            }
            let before = offloaded.set(name, claims);
            if !reach(before, slot) && !self.has_name(device, name) {
                let is_known = reach(before, 2) && !self.has_block(widest, parent, name, content);
                let known = if is_known { self.block(widest, name) } else { None };
                let (parent, content) = known.unwrap_or((parent, content));
                for &(view, holder) in &views {
                    if view >= slot && !reach(before, view) {
                        self.gain(holder, parent, &[name], &[content], &mut Vec::new());
                    }
                }
            }
            parent = Some(name);
        }
    }

    /// Removes one copy of each of a rank's blocks `names` from a tier other than the device.
    pub(in crate::writer) fn remove_elsewhere(&mut self, rank: u32, tier: Tier, names: &[u64]) {
        let slot = tier as usize - 1;
        for &name in names {
            let offloaded = &mut self.rank_mut(rank).offloaded;
            match offloaded.get(name) {
                Some(mut claims) if claims[slot] > 0 => {
                    claims[slot] -= 1;
                    let before = offloaded.set(name, claims);
                    if claims[slot] == 0 {
                        self.leave(rank, name, before);
                    }
                }
                _ => self.counters.unknown_removals += 1,
            }
        }
    }

    /// Removes all copies of a rank's blocks `names` from a tier other than the device.
    pub(in crate::writer) fn clear_names_elsewhere(&mut self, rank: u32, tier: Tier, names: &[u64]) {
        let slot = tier as usize - 1;
        for &name in names {
            let offloaded = &mut self.rank_mut(rank).offloaded;
            if let Some(mut claims) = offloaded.get(name)
                && claims[slot] > 0
            {
                claims[slot] = 0;
                let before = offloaded.set(name, claims);
                self.leave(rank, name, before);
            }
        }
    }

    /// Removes a block from the views (sets of tiers) whose tiers no longer have a copy of it, unless the device has
    /// it.
    fn leave(&mut self, rank: u32, name: u64, before: Claims) {
        let books = self.rank_mut(rank);
        let now = books.offloaded.get(name).unwrap_or_default();
        let (device, views) = (books.device, books.views());
        if self.has_name(device, name) {
            return;
        }
        for (view, holder) in views {
            if reach(before, view) && !reach(now, view) {
                self.lose_one(holder, name);
            }
        }
    }
}

/// Largest number of rounds in which the block hashes that changed during the last round are looked up again, before a
/// view (set of tiers) is completed without interruption, as in `slices.rs`.
const ROUNDS: usize = 16;

impl Writer {
    /// Prepares a rank for an event of a tier other than the device, in about `steps` steps, so that applying the event
    /// itself is short. `stores`: true if the event stores blocks. Returns true if more preparation is left to do.
    pub(crate) fn prepare(&mut self, rank: Option<u32>, tier: Tier, stores: bool, steps: usize) -> bool {
        let Some((rank, books)) = rank.and_then(|rank| Some((rank, self.workers.get(rank)?))) else { return false };
        let (device, has_views) = (books.device, books.wider != [None; 3]);
        // The other views hear of its blocks' parents.
        if has_views && !self.gather_places(device, steps, &mut 0) {
            return true;
        }
        stores && self.pool_at(rank, tier).is_none() && self.prepare_view(rank, tier as usize - 1, steps)
    }

    /// Continues to build the view (set of tiers) that a rank needs for its first block on a tier. Returns true if more
    /// is left to do.
    fn prepare_view(&mut self, rank: u32, number: usize, steps: usize) -> bool {
        self.finish_clearing(rank);
        let books = self.rank_mut(rank);
        if books.wider[number].is_some() {
            // Another call may have needed it at once.
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
            // Another call has begun another one.
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
        // The roster is published before any reader finds the new holder.
        self.publish_roster();
        let (at, touched, rounds) = (None, HashSet::new(), 0);
        let view = NewView { number, holder, narrower, watch, runs, at, names, touched, rounds };
        self.rank_mut(rank).new_view = Some(Box::new(view));
        true
    }

    /// Discards the view (set of tiers) that is being built for a rank.
    pub(in crate::writer) fn end_new_view(&mut self, rank: u32) {
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

    /// Adds more blocks to a view (set of tiers) that is being built. Returns true if the view is complete.
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

    /// Copies the block with this block hash, or its absence, from the next narrower view (set of tiers) to a view.
    fn follow(&mut self, view: &NewView, name: u64) {
        match self.block(view.narrower, name) {
            Some((parent, content)) => drop(self.gain_one(view.holder, parent, name, content)),
            None => drop(self.lose_one(view.holder, name)),
        }
    }
}
