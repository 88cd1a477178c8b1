//! Covers: the number of first blocks of each run that a holder has, as stored in the levels that readers see. A holder
//! is a rank's cache; a run is a list of consecutive blocks. Also the block hashes of these blocks, and the list of the
//! runs in which a holder has blocks.
//!
//! To find the outdated entries of that list, each of its runs must be read, which takes long for a holder in many
//! runs. So when half of a long list is outdated, it is cleaned up from the start, a few entries whenever the holder's
//! first block in a run is added or removed, and valid entries are moved up. Until the end, the entries that were moved
//! are in both places, which is allowed: the list may contain a run twice.

use crate::position::{NO_NAME, Place, Position};
use crate::raw::{Level, SetWord};
use crate::retire::Garbage;
use crate::sets::Sets;
use crate::stats::step;
use crate::writer::holders::ListCleanup;
use crate::writer::state::Writer;

impl Writer {
    /// Increases the number of a run's first blocks that a holder (a rank's cache) has, from `from` to `to`.
    pub(in crate::writer) fn raise(&mut self, holder: u32, run: u32, from: u32, to: u32) {
        let levels = self.changed_levels(holder, run, from, to, true);
        self.publish_levels(run, levels);
        let it = &mut self.holders[holder as usize];
        it.blocks += u64::from(to - from);
        if let Some(coming) = &mut it.coming {
            coming.add(run, from, &self.runs.get(run).names()[from as usize..to as usize], &self.runs);
        }
        if from == 0 {
            it.childless = None;
            it.entered += 1;
            it.runs.push(run);
            if let Some(place) = self.runs.unlisted_origin(run) {
                it.hanging.add(place);
            }
            self.tidy_runs(holder);
        }
    }

    /// Decreases the number of a run's first blocks that a holder (a rank's cache) has, from `from` to `to`. The block
    /// hashes of the removed blocks must have been removed from the holder's private table before.
    pub(in crate::writer) fn lower(&mut self, holder: u32, run: u32, from: u32, to: u32) {
        let levels = self.changed_levels(holder, run, to, from, false);
        if let Some(coming) = &mut self.holders[holder as usize].coming {
            coming.forget(&self.runs.get(run).names()[to as usize..from as usize]);
        }
        let left = levels.last().map_or(0, |level| level.end);
        let lost = &self.runs.get(run).names()[left as usize..];
        self.names.remove_all(run, left, lost, &self.runs);
        self.names.make_ready(0, lost.len(), &self.runs);
        if let Some(private) = &mut self.holders[holder as usize].private {
            private.truncate(run, to);
        }
        if to == 0
            && let Some(place) = self.runs.unlisted_origin(run)
        {
            self.holders[holder as usize].hanging.remove(place);
        }
        self.publish_levels(run, levels);
        let it = &mut self.holders[holder as usize];
        it.blocks -= u64::from(from - to);
        if to == 0 {
            it.entered -= 1;
            if it.entered == 0 {
                // Nothing regular is left, so there are no names to differ in.
                (it.runs, it.tidying) = (Vec::new(), None);
                if it.private.take().is_some() {
                    self.counters.private_holders -= 1;
                }
                it.coming = None;
            } else {
                self.tidy_runs(holder);
            }
        }
    }

    /// Levels (numbers of blocks with their holders) of a run of blocks after `holder` has gained the blocks at the
    /// offsets `from..to`, or lost them if `gains` is false; to be published.
    #[inline]
    fn changed_levels(&mut self, holder: u32, run: u32, from: u32, to: u32, gains: bool) -> Vec<Level> {
        let mut levels = std::mem::take(&mut self.levels);
        levels.extend_from_slice(&self.runs.levels(run));
        change_levels(&mut levels, holder, from, to, gains, &mut self.sets);
        levels
    }

    fn publish_levels(&mut self, run: u32, mut levels: Vec<Level>) {
        self.runs.publish(run, &levels, &mut self.trash);
        levels.clear();
        self.levels = levels;
        // Unlinked now.
        for set in self.sets.dead.drain(..) {
            self.trash.push(Garbage::Set(set));
        }
    }

    /// Runs of blocks in which a holder (a rank's cache) has blocks, each with the number of these blocks, in the order
    /// of the distance from the beginning of the prompt.
    pub(in crate::writer) fn runs_of(&mut self, holder: u32) -> Vec<(u32, u32)> {
        self.compact_runs(holder);
        let runs = &self.holders[holder as usize].runs;
        let mut runs: Vec<_> = runs.iter().map(|&run| (run, self.cutoff(holder, run, 0))).collect();
        runs.sort_by_key(|&(run, _)| self.runs.start(run));
        runs
    }

    /// Adds the block with the content hash `content` that comes next after `place` (a run and a number of its blocks)
    /// to a holder (a rank's cache), creates the block if no holder has it, and returns its position (run of blocks and
    /// offset).
    ///
    /// `name`: the holder's block hash for the block; None if the holder has only irregular blocks (kept outside runs)
    /// there. Unless the holder has a private table of block hashes, this block hash must be or become the shared one.
    /// The holder has all blocks before `place`, and none after it.
    pub(in crate::writer) fn cover(&mut self, holder: u32, place: Place, content: u64, name: Option<u64>) -> Position {
        let at = self.runs.next(place, content).unwrap_or_else(|| {
            if self.runs.can_append(place, &[content]) {
                self.runs.append(place.run, &[content], None, 0, &mut self.trash);
                Position { run: place.run, offset: place.blocks }
            } else {
                let run = self.runs.create(place, &[content], None, 0, &mut self.trash);
                Position { run, offset: 0 }
            }
        });
        if let Some(private) = &mut self.holders[holder as usize].private {
            if let Some(name) = name {
                private.push(at, name, &self.runs);
            }
        } else if let Some(name) = name
            && self.runs.name(at) == NO_NAME
        {
            self.names.make_ready(1, 0, &self.runs);
            self.runs.set_name(at, name);
            self.names.insert(name, self.runs.number(at));
        }
        self.raise(holder, at.run, at.offset, at.offset + 1);
        if name.is_none()
            && let Some(coming) = &mut self.holders[holder as usize].coming
        {
            coming.forget(&[self.runs.name(at)]);
        }
        at
    }

    /// Removes shared block hashes that only holders (ranks' caches) under removal need, if they conflict with the
    /// block hash `name` for the position (run of blocks and offset) `existing`.
    fn take_from_leaving(&mut self, name: u64, existing: Option<Position>) {
        for at in [existing, self.find_shared(name)].into_iter().flatten() {
            if self.is_left(at) {
                self.unname(at);
            }
        }
    }

    /// Makes `name` the shared block hash of a position (run of blocks and offset) if possible, after removing block
    /// hashes that only holders (ranks' caches) under removal need. Returns true if `name` is or can become the shared
    /// block hash.
    pub(in crate::writer) fn make_shared(&mut self, name: u64, existing: Option<Position>) -> bool {
        self.may_share(name, existing) || {
            self.take_from_leaving(name, existing);
            self.may_share(name, existing)
        }
    }

    /// True if `name` is or can become the shared block hash of a position (run of blocks and offset).
    fn may_share(&self, name: u64, existing: Option<Position>) -> bool {
        let current = existing.map_or(NO_NAME, |at| self.runs.name(at));
        current == name || (current == NO_NAME && self.find_shared(name).is_none())
    }

    /// Removes all blocks of a holder (a rank's cache) at once.
    pub(in crate::writer) fn clear_holder(&mut self, holder: u32) {
        self.end_branches(holder);
        let runs = self.runs_of(holder);
        let it = &mut self.holders[holder as usize];
        (it.irregular, it.coming) = (None, None);
        if it.private.take().is_some() {
            self.counters.private_holders -= 1;
        }
        for (run, cutoff) in runs.into_iter().rev() {
            self.lower(holder, run, cutoff, 0);
        }
        self.holders[holder as usize].runs = Vec::new();
        self.count_waiting(holder);
    }
}

/// Largest length of a holder's list of runs of blocks that is cleaned up in one step.
const FEW: usize = 1 << 9;
/// Number of list entries that are checked whenever the first block of a holder (a rank's cache) in a run is added or
/// removed.
const PACE: usize = 4;

impl Writer {
    /// Cleans up a part of the list of runs of blocks of a holder (a rank's cache), if needed. Call it after the
    /// holder's first block in a run was added or removed.
    #[inline]
    pub(in crate::writer) fn tidy_runs(&mut self, holder: u32) {
        let it = &self.holders[holder as usize];
        if it.tidying.is_some() || it.runs.len() > 2 * it.entered as usize + 64 {
            self.tidy_some_runs(holder);
        }
    }

    #[cold]
    fn tidy_some_runs(&mut self, holder: u32) {
        if self.holders[holder as usize].runs.len() <= FEW {
            return self.compact_runs(holder);
        }
        let numbers = self.runs.numbers();
        let it = &mut self.holders[holder as usize];
        let mut runs = std::mem::take(&mut it.runs);
        let tidying = it.tidying.take();
        let begin = || Box::new(ListCleanup { next: 0, kept: 0, seen: vec![0; numbers / 64 + 1] });
        let mut tidying = tidying.unwrap_or_else(begin);
        for _ in 0..PACE {
            let Some(&run) = runs.get(tidying.next) else {
                runs.truncate(tidying.kept);
                runs.shrink_to_fit();
                self.holders[holder as usize].runs = runs;
                return;
            };
            step();
            tidying.next += 1;
            if self.is_in(holder, run) && tidying.is_first(run) {
                runs[tidying.kept] = run;
                tidying.kept += 1;
            }
        }
        let it = &mut self.holders[holder as usize];
        (it.runs, it.tidying) = (runs, Some(tidying));
    }

    /// Removes duplicates from the list of runs of blocks of a holder (a rank's cache), and runs in which it no longer
    /// has blocks.
    pub(in crate::writer) fn compact_runs(&mut self, holder: u32) {
        let it = &mut self.holders[holder as usize];
        it.tidying = None;
        let mut runs = std::mem::take(&mut it.runs);
        runs.sort_unstable();
        runs.dedup();
        runs.retain(|&run| self.is_in(holder, run));
        runs.shrink_to_fit();
        self.holders[holder as usize].runs = runs;
    }

    /// True if a run of blocks with this number exists, and the holder (a rank's cache) has blocks in it.
    fn is_in(&self, holder: u32, run: u32) -> bool {
        self.runs.is_live(run) && self.covers(holder, Position { run, offset: 0 })
    }
}

/// Changes the `levels` of a run (numbers of blocks with their holders) for a holder that gains the blocks at the
/// offsets `from..to`, or loses them if `gains` is false. The holder had all blocks of the run before `from` and none
/// from `to` on.
///
/// Before and after the call, the ends of the levels rise and neighbouring sets differ. The caller owns the references
/// of `levels` to sets; sets that stay are not touched.
pub(crate) fn change_levels(levels: &mut Vec<Level>, holder: u32, from: u32, to: u32, gains: bool, sets: &mut Sets) {
    if gains && levels.last().is_none_or(|last| last.end < to) {
        // Blocks beyond those that any holder has.
        levels.push(Level { end: to, set: SetWord::EMPTY });
    }
    let mut at = levels.iter().position(|level| level.end > from).unwrap_or(levels.len());
    let first = at;
    if at < levels.len() && from > at.checked_sub(1).map_or(0, |before| levels[before].end) {
        split_level(levels, at, from, sets);
        at += 1;
    }
    while at < levels.len() && at.checked_sub(1).map_or(0, |before| levels[before].end) < to {
        if levels[at].end > to {
            split_level(levels, at, to, sets);
        }
        let old = levels[at].set;
        levels[at].set = if gains { sets.with(old, holder) } else { sets.without(old, holder) };
        sets.release(old);
        at += 1;
    }
    // Only the neighbours of changed levels can have become equal.
    for at in (first..=at.min(levels.len() - 1)).rev() {
        if at > 0 && levels[at - 1].set == levels[at].set {
            sets.release(levels[at].set);
            levels[at - 1].end = levels[at].end;
            levels.remove(at);
        }
    }
    while levels.last().is_some_and(|last| last.set.is_empty()) {
        levels.pop();
    }
}

/// Splits a level (number of first blocks with their holders) in two at the offset `end`.
fn split_level(levels: &mut Vec<Level>, at: usize, end: u32, sets: &mut Sets) {
    let set = sets.retain(levels[at].set);
    levels.insert(at, Level { end, set });
}
