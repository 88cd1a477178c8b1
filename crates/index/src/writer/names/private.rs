//! Block hash → position and back, for the names of one holder alone.

use std::cell::OnceCell;

use super::own::OwnTable;
use crate::position::{NO_NAME, Position};
use crate::runs::Runs;
use crate::segmented::Map;
use crate::stats::step;

/// The names of one holder whose engine does not name blocks as the others do.
pub(crate) struct PrivateNames {
    table: OwnTable,
    /// Positions to names, made when first asked for, which is rare.
    by_place: OnceCell<Box<PlaceNames>>,
    /// Positions to names while they come together in steps.
    gathering: Option<Box<TableBuilder>>,
}

/// Names by place, as far as they have been put in.
struct TableBuilder {
    /// The place in the table to go on from.
    next: u64,
    places: Box<PlaceNames>,
}

/// All that a holder calls its regular blocks, as a table of its own, while it comes together in steps. Whatever is regular
/// or no longer is meanwhile is noted here too, so a name may come twice, or go before it has come.
pub(crate) struct NameTableBuilder {
    pub(in crate::writer) names: PrivateNames,
    /// The runs whose names are to be put in.
    pub(in crate::writer) runs: Vec<u32>,
    /// Blocks of the last of these after which to go on.
    pub(in crate::writer) offset: u32,
}

impl NameTableBuilder {
    pub(in crate::writer) fn new(runs: Vec<u32>) -> Self {
        Self { names: PrivateNames::with_room_for(0), runs, offset: 0 }
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        size_of::<Self>() + self.names.bytes() + self.runs.capacity() * size_of::<u32>()
    }

    /// Names positions of a run from `start` on; [`NO_NAME`] is none.
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

    /// True if the count of the names is right, and `is_right` holds for each.
    #[cfg(test)]
    pub(in crate::writer) fn is_counted(&self, mut is_right: impl FnMut(u64, u32) -> bool) -> bool {
        self.names.table.is_counted() && self.names.table.iter().all(|(name, number)| is_right(name, number))
    }

    /// Removes these names, if they are there.
    pub(in crate::writer) fn forget(&mut self, names: &[u64]) {
        let table = &mut self.names.table;
        for &name in names.iter().filter(|name| **name != NO_NAME) {
            table.remove(name);
        }
        table.make_ready(0, names.len());
    }
}

/// Names by run and offset; [`NO_NAME`], or nothing at the end, where the holder covers a position by irregular blocks alone.
#[derive(Default)]
pub(in crate::writer) struct PlaceNames {
    names: Map<u32, Vec<u64>>,
    /// Room in these lists, in names.
    room: usize,
}

impl PrivateNames {
    /// Returns an empty table with room for about `names` names.
    pub(crate) fn with_room_for(names: usize) -> Self {
        Self { table: OwnTable::with_room_for(names), by_place: OnceCell::new(), gathering: None }
    }

    pub(crate) fn bytes(&self) -> usize {
        let gathering = self.gathering.as_ref().map_or(0, |it| size_of::<TableBuilder>() + it.places.bytes());
        self.table.bytes() + self.by_place.get().map_or(0, |it| it.bytes()) + gathering
    }

    /// Gives up a part; returns whether there is more. There is nothing to be looked up after.
    pub(crate) fn shed(&mut self) -> bool {
        if let Some(places) = self.places_mut() {
            if !places.shed() {
                self.take_places();
            }
            return true;
        }
        self.table.shed()
    }

    /// True if what it counts, and the names by place, are what they must be.
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

    /// Asks for the lines of the first names that are soon to be looked up.
    #[inline]
    pub(crate) fn prefetch_first(&self, names: &[u64]) {
        self.table.prefetch_first(names);
    }

    /// Asks for the lines of names that are being looked up: called for each `i` before `names[i]` is.
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

    /// True if names are found by their places without work.
    pub(in crate::writer) fn has_places(&self) -> bool {
        self.by_place.get().is_some()
    }

    /// Puts about `names` names where [`Self::name`] and [`Self::of_run`] look for them, which takes long for all at once;
    /// returns whether all are there.
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

    /// Takes the names by place, after a copy that needed them.
    pub(in crate::writer) fn take_places(&mut self) -> Option<Box<PlaceNames>> {
        let gathering = self.gathering.take().map(|it| it.places);
        self.by_place.take().or(gathering)
    }

    /// Names by place, if they are kept, for an update.
    fn places_mut(&mut self) -> Option<&mut PlaceNames> {
        let gathering = self.gathering.as_mut().map(|it| &mut it.places);
        self.by_place.get_mut().or(gathering).map(|it| &mut **it)
    }

    pub(crate) fn name(&self, at: Position, runs: &Runs) -> Option<u64> {
        self.by_place(runs).name(at)
    }

    /// The names in one run, by offset.
    pub(crate) fn of_run(&self, run: u32, runs: &Runs) -> &[u64] {
        self.by_place(runs).names.get(&run).map_or(&[], Vec::as_slice)
    }

    /// Number of leading names that are those of the positions of a run from `start` on.
    pub(crate) fn agree(&self, run: u32, start: u32, names: &[u64], runs: &Runs) -> usize {
        let is_named =
            |(name, offset): &(&u64, u32)| self.find(**name, runs) == Some(Position { run, offset: *offset });
        names.iter().zip(start..).take_while(is_named).count()
    }

    /// Names a position.
    pub(crate) fn push(&mut self, at: Position, name: u64, runs: &Runs) {
        self.table.make_ready(1, 0);
        self.table.insert_new(name, runs.number(at));
        if let Some(by_place) = self.places_mut() {
            by_place.set(at, name);
        }
    }

    /// Names the positions of a run from `start` on, up to the first name that is taken; [`NO_NAME`] names nothing. Returns
    /// how many.
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

    /// Takes names away from positions that are about to be covered no more.
    pub(crate) fn forget(&mut self, names: &[u64]) {
        for (i, &name) in names.iter().enumerate() {
            self.table.prefetch(names, i);
            let was_there = self.table.remove(name);
            debug_assert!(was_there);
        }
        self.table.make_ready(0, names.len());
    }

    /// Takes the name from a position, which stays covered for now.
    pub(crate) fn unname(&mut self, at: Position, name: u64) {
        if name != NO_NAME && self.table.remove(name) {
            if let Some(by_place) = self.places_mut() {
                by_place.set(at, NO_NAME);
            }
            self.table.make_ready(0, 1);
        }
    }

    /// A run is covered up to `len` only; what was named beyond has lost its name before.
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

    /// Gives up a part; returns whether there is more. There is nothing to be looked up after.
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
