//! State of the index's writer: the tables that it owns, and its counters.

use std::sync::Arc;

use parking_lot::RwLock;

use super::holders::workers::{Workers, inner};
use super::holders::{Departures, Holder, Table, Watches};
use super::names::NameTable;
use crate::loading::LoadBook;
use crate::raw::{Level, Readers};
use crate::retire::{Garbage, Trash};
use crate::roster::Roster;
use crate::runs::Runs;
use crate::sets::Sets;
use crate::stats::{Counters, step};
use crate::types::BlockHash;

/// Largest number of block hashes for which the memory of a buffer is kept from one event to the next.
pub(super) const MOST_NAMES: usize = 1024;

/// Largest number of a holder's blocks for which its private table of block hashes is built in one step (a holder: a
/// rank's cache).
const OWN_AT_ONCE: u64 = 1 << 10;

/// Smallest number of blocks after a missing block that are kept together, as a branch (a group of blocks under a
/// holder of their own).
const LEAST_BRANCH: u64 = 1 << 7;

/// State of the writer: which holder (a rank's device, or with other tiers) has which blocks.
pub(crate) struct Writer {
    pub(crate) runs: Runs,
    pub(super) sets: Sets,
    /// Table from block hash to position (a run of blocks and an offset in it), for all holders (ranks' caches) that
    /// use the same block hashes.
    pub(super) names: NameTable,
    pub(super) holders: Vec<Holder>,
    pub(super) free_holders: Vec<u32>,
    pub(super) workers: Workers,
    /// Reusable buffer for the block hashes of an event.
    pub(super) names_of_event: Vec<u64>,
    /// Reusable buffer for the block hashes of the blocks that a removal removes.
    pub(super) gone: Vec<u64>,
    /// Reusable buffer for the levels of a run (numbers of its first blocks with their holders) while they change.
    pub(super) levels: Vec<Level>,
    pub(super) leaving: Departures,
    /// Number of blocks of all holders (ranks' caches) whose chain to the beginning of the prompt is incomplete.
    pub(super) waiting: usize,
    /// Number of blocks that are still to be stored by store events that have been applied only in part.
    pub(super) promised: usize,
    /// Number of blocks of a store event that follow the part being applied, until the first block of this part is
    /// stored.
    pub(super) coming: usize,
    /// Newest roster, the table of the workers and ranks behind holders (ranks' caches), to be published to readers.
    pub(super) roster: Roster,
    /// Holders (ranks' caches) whose private tables of block hashes are being built in steps. Some of the tables may be
    /// complete.
    pub(super) gathering: Vec<u32>,
    /// Largest number of blocks for which the private table of block hashes of a holder (a rank's cache) is built in
    /// one step.
    pub(crate) most_own_at_once: u64,
    /// Smallest number of blocks after a missing block that are kept together, as a branch (a group of blocks under a
    /// holder of their own).
    pub(crate) least_branch: u64,
    pub(super) trash: Trash,
    pub(crate) counters: Counters,
    /// Sum of the values that block hashes, assigned to other blocks by the event, add to a fingerprint; one for each
    /// assignment.
    pub(super) replaced_words: u64,
    /// Records of changes for the ranks that are being copied.
    pub(super) watches: Watches,
    /// Data about the blocks that ranks can load, shared with readers.
    pub(crate) loading: Arc<RwLock<LoadBook>>,
    pub(super) count_copies: bool,
}

impl Writer {
    pub(crate) fn new(count_copies: bool, readers: &Readers) -> Self {
        Self {
            least_branch: LEAST_BRANCH,
            runs: Runs::new(readers),
            sets: Sets::new(),
            names: NameTable::new(),
            holders: Vec::new(),
            free_holders: Vec::new(),
            workers: Workers::default(),
            names_of_event: Vec::new(),
            gone: Vec::new(),
            levels: Vec::new(),
            leaving: Departures::default(),
            gathering: Vec::new(),
            most_own_at_once: OWN_AT_ONCE,
            waiting: 0,
            promised: 0,
            coming: 0,
            roster: Roster::default(),
            trash: Trash::new(readers),
            counters: Counters::default(),
            replaced_words: 0,
            watches: Watches::default(),
            loading: Arc::default(),
            count_copies,
        }
    }

    /// Runs a change of the index during which no block gets a second copy on a rank.
    pub(crate) fn without_copies<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let counts = std::mem::replace(&mut self.count_copies, false);
        let result = change(self);
        self.count_copies = counts;
        result
    }

    /// Converts the block hashes of an event to their internal form, in a buffer that must be returned by
    /// [`Self::names_done`].
    #[inline]
    pub(super) fn inner_names(&mut self, block_hashes: &[BlockHash]) -> Vec<u64> {
        let mut names = std::mem::take(&mut self.names_of_event);
        names.clear();
        names.extend(block_hashes.iter().map(|&name| inner(name)));
        names
    }

    #[inline]
    pub(super) fn names_done(&mut self, names: Vec<u64>) {
        if names.capacity() <= MOST_NAMES {
            self.names_of_event = names;
        }
    }

    pub(super) fn new_holder(&mut self) -> u32 {
        self.free_holders.pop().unwrap_or_else(|| {
            if self.holders.len() == self.holders.capacity() {
                self.holders.reserve_exact(self.holders.len() / 4 + 4);
            }
            self.holders.push(Holder::default());
            (self.holders.len() - 1) as u32
        })
    }

    /// Updates the number of blocks of a holder (a rank's cache) whose chain to the beginning of the prompt is
    /// incomplete.
    pub(super) fn count_waiting(&mut self, holder: u32) {
        let it = &mut self.holders[holder as usize];
        let now = it.unlinked();
        self.waiting = self.waiting + now - std::mem::replace(&mut it.waiting, now);
    }

    /// Publishes the current roster, the table of the workers and ranks behind holders (ranks' caches), to readers.
    pub(super) fn publish_roster(&mut self) {
        let old = self.runs.shown.roster.replace(self.roster.clone(), &mut self.runs.token);
        self.trash.push(Garbage::Roster(old));
    }

    /// Frees memory that no reader can use any longer, if there is enough of it, the index is empty, or `now` is true.
    pub(crate) fn tidy(&mut self, readers: &Readers, now: bool) {
        if !now && !self.trash.is_full() && self.runs.len() != 0 {
            return;
        }
        let Self { trash, runs, sets, holders, free_holders, leaving, .. } = self;
        loop {
            trash.empty(readers, |garbage| match garbage {
                Garbage::RunId(run) => runs.reuse(run),
                Garbage::HolderId(holder) => free_holders.push(holder),
                Garbage::Set(set) => sets.spares.keep(set),
                Garbage::Levels(levels) => runs.spare_levels.keep(levels),
                Garbage::Children(children) => leaving.push(Table::Children(children.into_box())),
                memory => drop(memory),
            });
            // Once the last run's number is free, a small table of children is enough.
            if runs.len() != 0 || !runs.reserve_children(trash) {
                break;
            }
        }
        if runs.len() == 0 {
            sets.spares.clear();
            runs.spare_levels.clear();
        }
        if !holders.is_empty() && free_holders.len() == holders.len() {
            *holders = Vec::new();
            *free_holders = Vec::new();
        }
    }

    /// True if there is memory, unlinked from the index, that can be freed, as no reader can use it any longer.
    pub(super) fn has_garbage(&self) -> bool {
        self.trash.is_ready()
    }

    /// Memory that the writer has allocated, in bytes. The time of this call depends on the number of holders (ranks'
    /// caches), not of their blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.bytes()
            + self.sets.bytes()
            + self.names.bytes()
            + self.holders.iter().inspect(|_| step()).map(Holder::bytes).sum::<usize>()
            + self.holders.capacity() * size_of::<Holder>()
            + self.workers.bytes()
            + self.leaving.bytes()
            + self.gathering.capacity() * size_of::<u32>()
            + self.roster.bytes()
            + self.trash.bytes()
            + self.loading.read().bytes()
            + (self.gone.capacity() + self.names_of_event.capacity()) * size_of::<u64>()
            + self.levels.capacity() * size_of::<Level>()
    }
}
