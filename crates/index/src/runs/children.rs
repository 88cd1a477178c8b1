//! Child runs: the runs (lists of consecutive blocks) that continue another run, in lists sorted by fork for the
//! writer, and in a hash table for readers. A fork is the number of blocks of the parent before the child.

use std::mem;

use smallvec::SmallVec;

use super::{Entry, NO_RUN, Runs};
use crate::position::{Place, ROOT};
use crate::raw::Children;
use crate::retire::{Garbage, Trash};
use crate::stats::step;

/// Number of runs of blocks up to which a new table of child runs is built in one step.
const FEW: usize = 1 << 9;
/// Number of runs of blocks moved into a new table of child runs for each run that is created or freed. At this pace,
/// the new table is complete before the old one is much too full.
const PACE: usize = 16;

impl Runs {
    /// Adds a run of blocks to the list of its parent's child runs. The root has too many children, and has no list.
    pub(super) fn hang(&mut self, id: u32, place: Place) {
        if place.run == ROOT {
            return;
        }
        let parent = &mut self.entries[place.run as usize];
        if parent.forks.is_none() {
            parent.run.as_ref().expect("live").head().set_has_children(true, &mut self.token);
        }
        let before = parent.forks.as_ref().map_or(0, |forks| forks.bytes());
        let forks = parent.forks.get_or_insert_default();
        let is_listed = forks.lists_next();
        let next = if is_listed {
            forks.add(place.blocks, id)
        } else {
            forks.add_unlisted();
            None
        };
        self.fork_bytes = self.fork_bytes + forks.bytes() - before;
        self.entries[id as usize].listed = is_listed;
        if let Some(next) = next {
            self.entries[id as usize].next = next;
            self.entries[next as usize].previous = id;
        }
    }

    pub(super) fn unhang(&mut self, id: u32, place: Place) {
        if place.run == ROOT {
            return;
        }
        let Entry { next, previous, listed, .. } = self.entries[id as usize];
        if next != NO_RUN {
            self.entries[next as usize].previous = previous;
        }
        if previous != NO_RUN {
            self.entries[previous as usize].next = next;
        }
        let parent = &mut self.entries[place.run as usize];
        let forks = parent.forks.as_mut().expect("a child's parent lists it");
        let before = forks.bytes();
        match (listed, previous) {
            (false, _) => forks.remove_unlisted(),
            (true, NO_RUN) => forks.remove_first(place.blocks, (next != NO_RUN).then_some(next)),
            (true, _) => forks.remove(),
        }
        self.fork_bytes = self.fork_bytes + forks.bytes() - before;
        if forks.is_empty() {
            self.fork_bytes -= forks.bytes();
            parent.forks = None;
            parent.run.as_ref().expect("live").head().set_has_children(false, &mut self.token);
        }
    }

    /// True if a run of blocks has child runs that are not in its list of children.
    #[inline]
    pub(crate) fn has_unlisted(&self, id: u32) -> bool {
        self.entries[id as usize].forks.as_ref().is_some_and(|forks| forks.has_unlisted())
    }

    /// Place where a run of blocks continues its parent, if the parent's list of children does not contain it; None if
    /// it does.
    #[inline]
    pub(crate) fn unlisted_origin(&self, id: u32) -> Option<Place> {
        (!self.entries[id as usize].listed).then(|| self.origin(id))
    }

    /// Calls `f` with each listed child run that continues a run of blocks after more than `blocks` and at most `most`
    /// blocks, until `f` returns true. Returns true if `f` did.
    pub(crate) fn any_child_beyond(&self, id: u32, blocks: u32, most: u32, mut f: impl FnMut(u32) -> bool) -> bool {
        let Some(forks) = &self.entries[id as usize].forks else { return false };
        for first in forks.between(blocks, most) {
            let mut child = first;
            while child != NO_RUN {
                step();
                if f(child) {
                    return true;
                }
                child = self.entries[child as usize].next;
            }
        }
        false
    }

    /// Replaces the readers' table of child runs if it is full or less than a quarter full. If few of many runs of
    /// blocks are left, the table is larger, so that the next one can be built in time. A large table is built a few
    /// runs per call, while readers use the old one. Returns true if this call completed a new table and published it.
    pub(crate) fn reserve_children(&mut self, trash: &mut Trash) -> bool {
        // Twice the number of runs that can be created while all numbers of runs are visited once.
        let least = if self.entries.len() <= FEW { 0 } else { self.entries.len() * 2 / PACE };
        let wanted = self.live.max(least);
        if self.next_children.is_none() {
            let room = self.shown.children.get(&self.token).room();
            if wanted <= room && (wanted * 4 >= room || room <= 64) {
                return false;
            }
            let table = Children::with_room_for(wanted * 2 + 6, &self.token);
            self.next_children = Some(NextChildren { table, until: 0 });
        }
        if self.live == 0
            && let Some(next) = &mut self.next_children
        {
            // Nothing is left to be looked for: a new one is complete.
            *next = NextChildren { table: Children::with_room_for(least * 2 + 6, &self.token), until: NO_RUN };
        }
        let most = if self.entries.len() <= FEW { usize::MAX } else { PACE };
        let Self { next_children: Some(next), entries, token, .. } = self else { return false };
        let more = entries.some_from(next.until as usize, most).inspect(|_| step());
        for run in more.filter_map(|entry| entry.run.as_ref()) {
            next.table.insert(run, run.contents()[0], token);
        }
        next.until = next.until.saturating_add(most.min(NO_RUN as usize) as u32);
        let is_complete = next.until as usize >= entries.len();
        if is_complete && let Some(next) = self.next_children.take() {
            trash.push(Garbage::Children(self.shown.children.replace(next.table, &mut self.token)));
        }
        is_complete
    }
}

/// Table of child runs that is being built, and that readers do not use yet.
pub(super) struct NextChildren {
    pub(super) table: Children,
    /// Number of the first run of blocks that is not in the new table of child runs yet; all runs with smaller numbers
    /// are.
    pub(super) until: u32,
}

impl NextChildren {
    /// Table of child runs that is being built, if it contains the run with this number; None otherwise.
    pub(super) fn of(next: Option<&Self>, id: u32) -> Option<&Children> {
        next.filter(|next| id < next.until).map(|next| &next.table)
    }
}

/// Largest number of child runs in a run's list of children. Further children are not listed; each holder (a rank's
/// cache) counts those in which it has blocks: a common beginning has as many children as there are conversations, and
/// a change of one holder must not visit all of them.
const LISTED: u32 = 16;

/// Forks of one run of blocks: the numbers of blocks after which child runs continue the run, in descending order, each
/// with the first child there. Most runs with children have only one fork.
#[derive(Default)]
pub(crate) struct Forks {
    places: SmallVec<[(u32, u32); 2]>,
    listed: u32,
    /// Number of the run's child runs that are not in its list of children.
    unlisted: u32,
}

impl Forks {
    pub(crate) fn bytes(&self) -> usize {
        let places = if self.places.spilled() { self.places.capacity() * size_of::<(u32, u32)>() } else { 0 };
        size_of::<Self>() + places
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.listed == 0 && self.unlisted == 0
    }

    /// True if the next child run that is added goes into the run's list of children; otherwise it is only counted.
    pub(crate) fn lists_next(&self) -> bool {
        self.listed < LISTED
    }

    /// Makes `child` the first child run that continues the run of blocks after `blocks` blocks; returns the previous
    /// first one.
    pub(crate) fn add(&mut self, blocks: u32, child: u32) -> Option<u32> {
        self.listed += 1;
        match self.places.binary_search_by(|(fork, _)| blocks.cmp(fork)) {
            Ok(at) => Some(mem::replace(&mut self.places[at].1, child)),
            Err(at) => {
                self.places.insert(at, (blocks, child));
                None
            }
        }
    }

    /// Subtracts a listed child run from the count; it must not be the first one of its fork (number of blocks of the
    /// parent before it).
    pub(crate) fn remove(&mut self) {
        self.listed -= 1;
    }

    /// Removes the first child run that continues the run of blocks after `blocks` blocks. `next`, if any, becomes the
    /// first child there.
    pub(crate) fn remove_first(&mut self, blocks: u32, next: Option<u32>) {
        self.listed -= 1;
        let at = self.places.binary_search_by(|(fork, _)| blocks.cmp(fork)).expect("a child's parent lists it");
        match next {
            Some(child) => self.places[at].1 = child,
            None => drop(self.places.remove(at)),
        }
    }

    pub(crate) fn has_unlisted(&self) -> bool {
        self.unlisted > 0
    }

    pub(crate) fn add_unlisted(&mut self) {
        self.unlisted += 1;
    }

    pub(crate) fn remove_unlisted(&mut self) {
        self.unlisted -= 1;
    }

    /// First listed child run at each fork (number of blocks of the parent before the child) after more than `blocks`
    /// and at most `most` blocks, in descending order of the forks.
    pub(crate) fn between(&self, blocks: u32, most: u32) -> impl Iterator<Item = u32> {
        let from = self.places.partition_point(|&(fork, _)| fork > most);
        self.places[from..].iter().take_while(move |&&(fork, _)| fork > blocks).map(|&(_, first)| first)
    }
}
