//! Tables from block hash to position (a run of blocks and an offset in it) and back, for the block hashes of one
//! holder (a rank's cache).

use std::cell::OnceCell;

use super::own::OwnTable;
use crate::position::{NO_NAME, Position};
use crate::runs::Runs;
use crate::segmented::Map;
use crate::stats::step;

/// Private table of block hashes, for one holder (a rank's cache) whose engine uses other block hashes than the other
/// engines.
pub(crate) struct PrivateNames {
    table: OwnTable,
    /// Block hashes by position (run of blocks and offset), built when first needed, which is rare.
    by_place: OnceCell<Box<PlaceNames>>,
    /// Block hashes by position (run of blocks and offset) while this table is being built in steps; None otherwise.
    gathering: Option<Box<TableBuilder>>,
}

/// Progress of building the table of block hashes by position (run of blocks and offset).
struct TableBuilder {
    /// Place in the holder's hash table of block hashes at which building the table by position continues.
    next: u64,
    places: Box<PlaceNames>,
}

/// Private table of the block hashes of one holder (a rank's cache) while it is being built in steps. Changes of the
/// holder's blocks in the meantime are also applied to this table, so a block hash may be added twice, or removed
/// before it was added.
pub(crate) struct NameTableBuilder {
    pub(in crate::writer) names: PrivateNames,
    /// Runs of blocks whose block hashes are still to be added to the private table.
    pub(in crate::writer) runs: Vec<u32>,
    /// Number of blocks of the last run in `runs` whose block hashes were already added to the private table.
    pub(in crate::writer) offset: u32,
}

impl NameTableBuilder {
    pub(in crate::writer) fn new(runs: Vec<u32>) -> Self {
        Self { names: PrivateNames::with_room_for(0), runs, offset: 0 }
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        size_of::<Self>() + self.names.bytes() + self.runs.capacity() * size_of::<u32>()
    }

    /// Adds the block hashes of the positions in a run of blocks from `start` on; [`NO_NAME`] is skipped.
    pub(in crate::writer) fn add(&mut self, run: u32, start: u32, names: &[u64], runs: &Runs) {
        let table = &mut self.names.table;
        table.make_ready(names.len(), 0);
        for (i, (&name, number)) in names.iter().zip(runs.numbers_from(run, start)).enumerate() {
            table.prefetch(names, i);
            if name != NO_NAME {
                let is_new = table.insert_new(name, number);
                debug_assert!(is_new || table.find(name) == Some(number));
            }
        }
    }

    /// True if the table's count of its block hashes is correct, and `is_right` holds for each block hash and position;
    /// for tests.
    #[cfg(test)]
    pub(in crate::writer) fn is_counted(&self, mut is_right: impl FnMut(u64, u32) -> bool) -> bool {
        self.names.table.is_counted() && self.names.table.iter().all(|(name, number)| is_right(name, number))
    }

    /// Removes those of the block hashes `names` that are in the table being built.
    pub(in crate::writer) fn forget(&mut self, names: &[u64]) {
        let table = &mut self.names.table;
        for &name in names.iter().filter(|name| **name != NO_NAME) {
            table.remove(name);
        }
        table.make_ready(0, names.len());
    }
}

/// Block hashes by run of blocks and offset. At positions with only irregular blocks (kept outside runs of blocks), the
/// entry is [`NO_NAME`] or, at the end of the run, missing.
#[derive(Default)]
pub(in crate::writer) struct PlaceNames {
    names: Map<u32, Vec<u64>>,
    /// Capacity of all lists of block hashes, as a number of block hashes.
    room: usize,
}

impl PrivateNames {
    /// Creates an empty table with space for about `names` block hashes.
    pub(crate) fn with_room_for(names: usize) -> Self {
        Self { table: OwnTable::with_room_for(names), by_place: OnceCell::new(), gathering: None }
    }

    pub(crate) fn bytes(&self) -> usize {
        let gathering = self.gathering.as_ref().map_or(0, |it| size_of::<TableBuilder>() + it.places.bytes());
        self.table.bytes() + self.by_place.get().map_or(0, |it| it.bytes()) + gathering
    }

    /// Frees a part of the tables' memory; returns true if more is left. The tables must not be searched afterwards.
    pub(crate) fn shed(&mut self) -> bool {
        if let Some(places) = self.places_mut() {
            if !places.shed() {
                self.take_places();
            }
            return true;
        }
        self.table.shed()
    }

    /// True if the counts and the block hashes by position (run of blocks and offset) are correct, for tests.
    #[cfg(test)]
    pub(crate) fn is_counted(&self, runs: &Runs) -> bool {
        let places = self.by_place.get().is_none_or(|it| {
            let lists = || it.names.iter().map(|(_, names)| names);
            let same = |(name, number)| it.name(runs.position(number)) == Some(name);
            it.names.is_counted()
                && it.room == lists().map(Vec::capacity).sum::<usize>()
                && lists().flatten().filter(|name| **name != NO_NAME).count() == self.table.iter().count()
                && self.table.iter().all(same)
        });
        places && self.table.is_counted()
    }

    #[inline]
    pub(crate) fn find(&self, name: u64, runs: &Runs) -> Option<Position> {
        self.table.find(name).map(|number| runs.position(number))
    }

    /// Prefetches the memory of the hash table for the first block hashes of a list, before they are looked up one by
    /// one.
    #[inline]
    pub(crate) fn prefetch_first(&self, names: &[u64]) {
        self.table.prefetch_first(names);
    }

    /// Prefetches the memory of the hash table for a block hash that will be looked up soon. Call it for each `i`
    /// before `names[i]` is looked up.
    #[inline]
    pub(crate) fn prefetch(&self, names: &[u64], i: usize) {
        self.table.prefetch(names, i);
    }

    fn by_place(&self, runs: &Runs) -> &PlaceNames {
        self.by_place.get_or_init(|| {
            let mut it = Box::<PlaceNames>::default();
            for (name, number) in self.table.iter() {
                step();
                it.set(runs.position(number), name);
            }
            it
        })
    }

    /// True if the table by position is built, so that block hashes can be looked up by position (run of blocks and
    /// offset).
    pub(in crate::writer) fn has_places(&self) -> bool {
        self.by_place.get().is_some()
    }

    /// Adds about `names` block hashes to the table by position (run of blocks and offset), which [`Self::name`] and
    /// [`Self::of_run`] use and which takes long to build at once. Returns true if the table is complete.
    pub(in crate::writer) fn gather_places(&mut self, names: usize, runs: &Runs) -> bool {
        if self.has_places() {
            self.gathering = None;
            return true;
        }
        let TableBuilder { next, places } =
            &mut **self.gathering.get_or_insert_with(|| Box::new(TableBuilder { next: 0, places: Box::default() }));
        match self.table.some_from(*next, names, |name, number| places.set(runs.position(number), name)) {
            Some(place) => *next = place,
            None => {
                let places = std::mem::take(places);
                let was_empty = self.by_place.set(places).is_ok();
                debug_assert!(was_empty);
                self.gathering = None;
            }
        }
        self.gathering.is_none()
    }

    /// Removes and returns the table of block hashes by position (run of blocks and offset), after a copy of the rank
    /// that needed it.
    pub(in crate::writer) fn take_places(&mut self) -> Option<Box<PlaceNames>> {
        let gathering = self.gathering.take().map(|it| it.places);
        self.by_place.take().or(gathering)
    }

    /// Table of block hashes by position (run of blocks and offset), to be updated; None if there is none.
    fn places_mut(&mut self) -> Option<&mut PlaceNames> {
        let gathering = self.gathering.as_mut().map(|it| &mut it.places);
        self.by_place.get_mut().or(gathering).map(|it| &mut **it)
    }

    pub(crate) fn name(&self, at: Position, runs: &Runs) -> Option<u64> {
        self.by_place(runs).name(at)
    }

    /// Block hashes that the holder uses for the blocks of one run (a list of consecutive blocks), by offset.
    pub(crate) fn of_run(&self, run: u32, runs: &Runs) -> &[u64] {
        self.by_place(runs).names.get(&run).map_or(&[], Vec::as_slice)
    }

    /// Number of leading elements of `names` that are the block hashes of the positions in a run of blocks from `start`
    /// on.
    pub(crate) fn agree(&self, run: u32, start: u32, names: &[u64], runs: &Runs) -> usize {
        let is_named =
            |(name, offset): &(&u64, u32)| self.find(**name, runs) == Some(Position { run, offset: *offset });
        names.iter().zip(start..).take_while(is_named).count()
    }

    /// Sets the holder's block hash of a position (run of blocks and offset) to `name`.
    pub(crate) fn push(&mut self, at: Position, name: u64, runs: &Runs) {
        self.table.make_ready(1, 0);
        self.table.insert_new(name, runs.number(at));
        if let Some(by_place) = self.places_mut() {
            by_place.set(at, name);
        }
    }

    /// Sets the block hashes of the positions in a run of blocks from `start` on, up to the first of `names` that is
    /// already the block hash of another position; [`NO_NAME`] is skipped. Returns the number of positions done.
    pub(crate) fn push_new(&mut self, run: u32, start: u32, names: &[u64], runs: &Runs) -> usize {
        self.table.make_ready(names.len(), 0);
        let mut taken = 0;
        for (i, (&name, number)) in names.iter().zip(runs.numbers_from(run, start)).enumerate() {
            self.table.prefetch(names, i);
            if name != NO_NAME && !self.table.insert_new(name, number) {
                break;
            }
            taken += 1;
        }
        if let Some(by_place) = self.places_mut() {
            for (&name, offset) in names[..taken].iter().zip(start..) {
                by_place.set(Position { run, offset }, name);
            }
        }
        taken
    }

    /// Removes block hashes from the private table, at positions (runs of blocks and offsets) where the holder (a
    /// rank's cache) will have no block any longer.
    pub(crate) fn forget(&mut self, names: &[u64]) {
        for (i, &name) in names.iter().enumerate() {
            self.table.prefetch(names, i);
            let was_there = self.table.remove(name);
            debug_assert!(was_there);
        }
        self.table.make_ready(0, names.len());
    }

    /// Removes the block hash of a position (run of blocks and offset), at which the holder (a rank's cache) still has
    /// a block.
    pub(crate) fn unname(&mut self, at: Position, name: u64) {
        if name != NO_NAME && self.table.remove(name) {
            if let Some(by_place) = self.places_mut() {
                by_place.set(at, NO_NAME);
            }
            self.table.make_ready(0, 1);
        }
    }

    /// Removes the positions of a run of blocks from offset `len` on, whose block hashes were removed before.
    pub(crate) fn truncate(&mut self, run: u32, len: u32) {
        if let Some(by_place) = self.places_mut() {
            by_place.truncate(run, len as usize);
        }
    }
}

impl PlaceNames {
    pub(in crate::writer) fn bytes(&self) -> usize {
        size_of::<Self>() + self.names.bytes() + self.room * size_of::<u64>()
    }

    /// Frees a part of the memory of this table of block hashes; returns true if more is left. The table must not be
    /// searched afterwards.
    pub(in crate::writer) fn shed(&mut self) -> bool {
        self.names.shed()
    }

    fn name(&self, at: Position) -> Option<u64> {
        self.names.get(&at.run)?.get(at.offset as usize).copied()
    }

    fn set(&mut self, at: Position, name: u64) {
        let names = self.names.get_or_insert_with(at.run, Vec::new);
        let (len, room) = (at.offset as usize + 1, names.capacity());
        if room < len {
            names.reserve_exact(len + len / 8 + 1 - names.len());
        }
        if names.len() < len {
            names.resize(len, NO_NAME);
        }
        names[at.offset as usize] = name;
        self.room += names.capacity() - room;
    }

    fn truncate(&mut self, run: u32, len: usize) {
        let Some(names) = self.names.get_mut(&run) else { return };
        let room = names.capacity();
        names.truncate(len);
        if names.is_empty() {
            self.room -= room;
            self.names.remove(&run);
        } else if names.capacity() > 2 * names.len() + 8 {
            names.shrink_to(names.len() + 2);
            self.room -= room - names.capacity();
        }
    }
}
