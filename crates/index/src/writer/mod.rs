//! The writer: all there is to know about who holds what.
//!
//! A holder's *regular* blocks are those reachable from the root whose positions it covers under one name; nearly all
//! are. In each run they are a prefix, so a holder is one cutoff a run, kept in the run's levels. Whatever is not like
//! that (blocks below a hole, orphans, second names of one position) is *odd* and kept aside by name (`odd.rs`).
//!
//! Readers see only levels. They change from the root down when a holder gains and from the leaves up when it loses,
//! so that at every moment what a reader sees of a holder is a prefix that it holds then.

mod del;
mod dump;
mod holder;
mod names;
mod odd;
mod put;
mod ranks;
mod slots;
mod tiers;

use std::sync::Arc;

use crate::levels;
use crate::reclaim::Readers;
use crate::retire::{Garbage, Trash};
use crate::roster::Roster;
use crate::runs::{NO_NAME, Place, Position, Runs};
use crate::sets::Sets;
use crate::shared::{Level, Levels, Published};
use crate::stats::Counters;

use holder::Holder;
use names::{NameTable, shared_names};
use ranks::Workers;

pub(crate) use put::common_prefix;
pub(crate) use ranks::Chain;

/// See the module's text.
pub(crate) struct Writer {
    pub(crate) runs: Runs,
    sets: Sets,
    /// Block hash → position, for all holders that agree on it.
    names: NameTable,
    holders: Vec<Holder>,
    free_holders: Vec<u32>,
    workers: Workers,
    /// What readers are shown; this is the newest.
    roster: Roster,
    trash: Trash,
    pub(crate) counters: Counters,
    secret: u64,
    count_copies: bool,
}

impl Writer {
    pub(crate) fn new(count_copies: bool, secret: u64) -> Self {
        Self {
            runs: Runs::new(secret),
            sets: Sets::new(secret),
            names: NameTable::new(secret),
            holders: Vec::new(),
            free_holders: Vec::new(),
            workers: Workers::default(),
            roster: Roster::default(),
            trash: Trash::new(),
            counters: Counters::default(),
            secret,
            count_copies,
        }
    }

    /// Makes a change in which nothing gains a second copy.
    pub(crate) fn without_copies<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let counts = std::mem::replace(&mut self.count_copies, false);
        let result = change(self);
        self.count_copies = counts;
        result
    }

    /// How far `holder` covers a run, in blocks. `near`: a guess; to look at a set of holders is often a miss.
    #[inline]
    fn cutoff(&self, holder: u32, run: u32, near: u32) -> u32 {
        let levels = self.runs.levels(run);
        let has = |level: &&Level| self.sets.contains(level.set, holder);
        let guess = levels.iter().position(|level| level.end > near).unwrap_or(levels.len());
        // Sets shrink with depth.
        let (up, down) = (&levels[guess..], &levels[..guess]);
        let within = up.iter().take_while(has).last();
        within.or_else(|| down.iter().rev().find(has)).map_or(0, |level| level.end)
    }

    #[inline]
    fn covers(&self, holder: u32, at: Position) -> bool {
        let levels = self.runs.levels(at.run);
        let level = levels.iter().find(|level| level.end > at.offset);
        level.is_some_and(|level| self.sets.contains(level.set, holder))
    }

    /// Where `holder` has a regular block of this name.
    #[inline]
    fn find(&self, holder: u32, name: u64) -> Option<Position> {
        let it = &self.holders[holder as usize];
        if let Some(private) = &it.private {
            return private.find(name, &self.runs);
        }
        let at = self.find_shared(name)?;
        // The name speaks for a holder only if that covers the position, and not by odd blocks alone.
        (self.covers(holder, at) && !it.covers_oddly(at)).then_some(at)
    }

    /// The position that bears this name for all who agree on it.
    #[inline]
    fn find_shared(&self, name: u64) -> Option<Position> {
        let number = self.names.find(name, |number| Some(self.runs.name(self.runs.position(number))))?;
        Some(self.runs.position(number))
    }

    /// The name of a position that `holder` covers regularly.
    fn name_of(&self, holder: u32, at: Position) -> u64 {
        match &self.holders[holder as usize].private {
            Some(private) => private.name(at).unwrap_or(NO_NAME),
            None => self.runs.name(at),
        }
    }

    /// Parent and content hash of a regular block.
    fn block_at(&self, holder: u32, at: Position) -> (Option<u64>, u64) {
        let parent = self.runs.parent(at).map(|parent| self.name_of(holder, parent));
        (parent, self.runs.content(at))
    }

    /// Parent and content hash of a block, if `holder` has one of this name.
    fn block(&self, holder: u32, name: u64) -> Option<(Option<u64>, u64)> {
        if let Some(block) = self.holders[holder as usize].odd_block(name) {
            return Some(block);
        }
        self.find(holder, name).map(|at| self.block_at(holder, at))
    }

    /// `holder` gains the positions `from..to` of a run, of which it covers the first `from`.
    fn raise(&mut self, holder: u32, run: u32, from: u32, to: u32) {
        let new = self.change_levels(holder, run, from, to, true);
        self.runs.publish(run, &new.0, &mut self.trash);
        self.release(&new.1);
        let it = &mut self.holders[holder as usize];
        it.blocks += u64::from(to - from);
        if from == 0 {
            it.childless = None;
            it.entered += 1;
            it.runs.push(run);
            if it.runs.len() > 2 * it.entered as usize + 64 {
                self.compact_runs(holder);
            }
        }
    }

    /// `holder` loses the positions `to..from` of a run, of which it covers the first `from`.
    fn lower(&mut self, holder: u32, run: u32, from: u32, to: u32) {
        let new = self.change_levels(holder, run, to, from, false);
        let left = new.0.last().map_or(0, |level| level.end);
        self.names.remove_all(run, left, &self.runs.get(run).names()[left as usize..], &self.runs);
        if let Some(private) = &mut self.holders[holder as usize].private {
            private.truncate(run, to, &self.runs);
        }
        self.runs.publish(run, &new.0, &mut self.trash);
        self.release(&new.1);
        let it = &mut self.holders[holder as usize];
        it.blocks -= u64::from(from - to);
        if to == 0 {
            it.entered -= 1;
            if it.entered == 0 {
                // Nothing regular is left, so there are no names to differ in.
                it.runs = Vec::new();
                if it.private.take().is_some() {
                    self.counters.private_holders -= 1;
                }
            } else if it.runs.len() > 2 * it.entered as usize + 64 {
                self.compact_runs(holder);
            }
        }
        self.names.reserve(0, || shared_names(&self.runs));
    }

    /// New levels and old.
    #[inline]
    fn change_levels(&mut self, holder: u32, run: u32, from: u32, to: u32, gains: bool) -> (Levels, Levels) {
        let old = self.runs.levels(run);
        (levels::changed(&old, holder, from, to, gains, &mut self.sets), old)
    }

    fn release(&mut self, levels: &[Level]) {
        for level in levels {
            self.sets.release(level.set);
        }
        for set in self.sets.dead.drain(..) {
            self.trash.push(Garbage::Set(set));
        }
    }

    /// Forgets the runs that a holder has left from its list of runs entered.
    fn compact_runs(&mut self, holder: u32) {
        let mut runs = std::mem::take(&mut self.holders[holder as usize].runs);
        runs.sort_unstable();
        runs.dedup();
        runs.retain(|&run| self.runs.is_live(run) && self.covers(holder, Position { run, offset: 0 }));
        runs.shrink_to_fit();
        self.holders[holder as usize].runs = runs;
    }

    /// Every run that `holder` covers some of, with its cutoff, those nearest the root first.
    fn runs_of(&mut self, holder: u32) -> Vec<(u32, u32)> {
        self.compact_runs(holder);
        let runs = &self.holders[holder as usize].runs;
        let mut runs: Vec<_> = runs.iter().map(|&run| (run, self.cutoff(holder, run, 0))).collect();
        runs.sort_by_key(|&(run, _)| self.runs.start(run));
        runs
    }

    /// The block that continues `place` with `content`, made if there is none, and covered by `holder` up to it.
    ///
    /// `name` is the holder's for it, none if it covers it by odd blocks alone. The holder covers what is before
    /// `place`, and not what is after.
    fn cover(&mut self, holder: u32, place: Place, content: u64, name: Option<u64>) -> Position {
        let existing = self.runs.next(place, content);
        if let Some(name) = name
            && self.holders[holder as usize].private.is_none()
            && !self.may_share(name, existing)
        {
            self.make_private(holder);
        }
        let at = existing.unwrap_or_else(|| {
            if self.runs.can_append(place, &[content]) {
                self.runs.append(place.run, &[content], None, &mut self.trash);
                Position { run: place.run, offset: place.blocks }
            } else {
                let run = self.runs.create(place, &[content], None, &mut self.trash);
                Position { run, offset: 0 }
            }
        });
        if let Some(private) = &mut self.holders[holder as usize].private {
            private.reserve(1, &self.runs);
            private.push(at.run, name.unwrap_or(NO_NAME), &self.runs);
        } else if let Some(name) = name
            && self.runs.name(at) == NO_NAME
        {
            self.names.reserve(1, || shared_names(&self.runs));
            self.runs.set_name(at, name);
            self.names.insert(name, self.runs.number(at));
        }
        self.raise(holder, at.run, at.offset, at.offset + 1);
        at
    }

    /// Whether a position is or can be called `name` by everybody.
    fn may_share(&self, name: u64, existing: Option<Position>) -> bool {
        let current = existing.map_or(NO_NAME, |at| self.runs.name(at));
        current == name || (current == NO_NAME && self.find_shared(name).is_none())
    }

    /// From now on `holder` has names of its own.
    fn make_private(&mut self, holder: u32) {
        let runs = self.runs_of(holder);
        let it = &self.holders[holder as usize];
        let mut private = names::Private::new(self.secret);
        for (run, cutoff) in runs {
            private.reserve(cutoff as usize, &self.runs);
            let name = |offset| {
                let at = Position { run, offset };
                if it.covers_oddly(at) { NO_NAME } else { self.runs.name(at) }
            };
            private.load(run, &(0..cutoff).map(name).collect::<Vec<_>>(), &self.runs);
        }
        self.holders[holder as usize].private = Some(Box::new(private));
        self.counters.private_holders += 1;
    }

    /// `holder` loses everything at once.
    fn clear_holder(&mut self, holder: u32) {
        let runs = self.runs_of(holder);
        let it = &mut self.holders[holder as usize];
        it.odd = None;
        if it.private.take().is_some() {
            self.counters.private_holders -= 1;
        }
        for (run, cutoff) in runs.into_iter().rev() {
            self.lower(holder, run, cutoff, 0);
        }
        self.holders[holder as usize].runs = Vec::new();
    }

    fn new_holder(&mut self) -> u32 {
        self.free_holders.pop().unwrap_or_else(|| {
            self.holders.push(Holder::default());
            (self.holders.len() - 1) as u32
        })
    }

    /// Shows readers the roster as it is now.
    fn publish_roster(&mut self, published: &Published<Arc<Roster>>) {
        let old = published.replace(Arc::new(self.roster.clone()), &mut self.runs.token);
        self.trash.push(Garbage::Roster(old));
    }

    /// Frees what no reader can see any more, when there is enough of it or little else is left.
    pub(crate) fn tidy(&mut self, readers: &Readers, now: bool) {
        if !now && !self.trash.is_full() && self.runs.len() != 0 {
            return;
        }
        let Self { trash, runs, holders, free_holders, .. } = self;
        trash.empty(readers, |number| match number {
            Garbage::RunId(run) => runs.reuse(run),
            Garbage::HolderId(holder) => free_holders.push(holder),
            _ => {}
        });
        if !holders.is_empty() && free_holders.len() == holders.len() {
            *holders = Vec::new();
            *free_holders = Vec::new();
        }
    }

    /// Bytes of all this, as allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.bytes()
            + self.sets.bytes()
            + self.names.bytes()
            + self.holders.iter().map(Holder::bytes).sum::<usize>()
            + self.holders.capacity() * size_of::<Holder>()
            + self.workers.bytes()
            + self.roster.bytes()
            + self.trash.bytes()
    }
}
