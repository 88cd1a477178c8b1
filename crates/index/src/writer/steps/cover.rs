//! Covers: how far holders cover runs, as the levels that readers see, and the names that go with them; and the list of the
//! runs that a holder has entered.
//!
//! To tell which entries of that list are out of date is a look at each run, which takes long for a holder in many. So when
//! half of a long list is out of date it is gone through from its beginning, a few entries whenever a run is entered or
//! left, and what is right moves up. Until the end, the entries that have moved stand in both places: the list may say a run
//! twice anyway.

use crate::position::{NO_NAME, Place, Position};
use crate::raw::{Level, SetWord};
use crate::retire::Garbage;
use crate::sets::Sets;
use crate::stats::step;
use crate::writer::holders::ListCleanup;
use crate::writer::state::Writer;

impl Writer {
    /// Raises a holder's cover of a run from `from` positions to `to`.
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

    /// Lowers a holder's cover of a run from `from` positions to `to`. Names of its own it has lost
    /// before.
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

    /// The levels of a run after `holder` has gained or lost some of it: to be published.
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

    /// Every run that `holder` covers some of, with its cutoff, those nearest the root first.
    pub(in crate::writer) fn runs_of(&mut self, holder: u32) -> Vec<(u32, u32)> {
        self.compact_runs(holder);
        let runs = &self.holders[holder as usize].runs;
        let mut runs: Vec<_> = runs.iter().map(|&run| (run, self.cutoff(holder, run, 0))).collect();
        runs.sort_by_key(|&(run, _)| self.runs.start(run));
        runs
    }

    /// The block that continues `place` with `content`, made if there is none, and covered by `holder` up to it.
    ///
    /// `name` is the holder's for it, none if it covers it by irregular blocks alone. Unless it has names of its own, the
    /// position is or can be called so by everybody. The holder covers what is before `place`, and not what is after.
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

    /// Holders that are on their way out need no names.
    fn take_from_leaving(&mut self, name: u64, existing: Option<Position>) {
        for at in [existing, self.find_shared(name)].into_iter().flatten() {
            if self.is_left(at) {
                self.unname(at);
            }
        }
    }

    /// True if a position is or can be called `name` by everybody, once what only leaving holders have is out of the
    /// way.
    pub(in crate::writer) fn make_shared(&mut self, name: u64, existing: Option<Position>) -> bool {
        self.may_share(name, existing) || {
            self.take_from_leaving(name, existing);
            self.may_share(name, existing)
        }
    }

    /// True if a position is or can be called `name` by everybody.
    fn may_share(&self, name: u64, existing: Option<Position>) -> bool {
        let current = existing.map_or(NO_NAME, |at| self.runs.name(at));
        current == name || (current == NO_NAME && self.find_shared(name).is_none())
    }

    /// `holder` loses everything at once.
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

/// Greatest length of a list that is put right at once.
const FEW: usize = 1 << 9;
/// Entries looked at for each run that is entered or left.
const PACE: usize = 4;

impl Writer {
    /// A holder has entered or left a run: does a share of putting its list right, if it is time for that.
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

    /// Forgets the runs that a holder has left from its list of runs entered, and says none twice.
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

    /// True if a run of this number is there, and `holder` in it.
    fn is_in(&self, holder: u32, run: u32) -> bool {
        self.runs.is_live(run) && self.covers(holder, Position { run, offset: 0 })
    }
}

/// Changes `levels` for a holder that gains the positions `from..to`, or loses them unless `gains`. What it
/// gains goes on from what it has, what it loses is the end of that.
///
/// Ends rise and neighbours differ, before and after. The references of `levels` to sets are the caller's, before and
/// after: a set that stays is not looked at.
pub(crate) fn change_levels(levels: &mut Vec<Level>, holder: u32, from: u32, to: u32, gains: bool, sets: &mut Sets) {
    if gains && levels.last().is_none_or(|last| last.end < to) {
        // Beyond what anyone held.
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
    // Only the neighbours of those that changed can be equal now.
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

/// Makes two levels of one, parted at `end`.
fn split_level(levels: &mut Vec<Level>, at: usize, end: u32, sets: &mut Sets) {
    let set = sets.retain(levels[at].set);
    levels.insert(at, Level { end, set });
}
