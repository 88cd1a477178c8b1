//! Block hash → position.

use std::cell::OnceCell;

use smallvec::SmallVec;

use super::own::OwnTable;
use super::slots::Slots;
use crate::position::{NO_NAME, Position};
use crate::runs::Runs;
use crate::segmented::Map;
use crate::spread::Secret;
use crate::steps::step;

/// Names by hash. The names themselves are kept elsewhere, by position.
pub(crate) struct NameTable {
    slots: Slots,
    secret: Secret,
}

impl NameTable {
    pub(crate) fn new() -> Self {
        Self { slots: Slots::new(), secret: Secret::new() }
    }

    #[inline]
    fn hash(&self, name: u64) -> u64 {
        self.secret.mix(name, 0)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// The number of the position of `name`; `name_of` tells what the position of a number is named.
    #[inline]
    pub(crate) fn find(&self, name: u64, name_of: impl Fn(u32) -> Option<u64>) -> Option<u32> {
        self.slots.find(self.hash(name), |number| name_of(number) == Some(name))
    }

    /// Adds a name that is not there. There must be room ([`Self::make_ready`]).
    #[inline]
    pub(crate) fn insert(&mut self, name: u64, number: u32) {
        self.slots.insert(self.hash(name), number);
    }

    /// Adds the names of the last positions of a run, from `start` on, up to the first that is there already; returns how
    /// many.
    ///
    /// An entry that looks like a name's is nearly never that: tags are short. To tell is to wait for memory three times,
    /// so all is added first, and what looked alike is compared in the end, all at once.
    pub(crate) fn insert_new(&mut self, names: &[u64], run: u32, start: u32, runs: &Runs) -> usize {
        let mut ahead = NamePrefetch::of(self, names);
        let mut alike = LookAlikes::new();
        let mut numbers = runs.numbers_from(run, start);
        let mut done = 0;
        let mut taken = None;
        while done < names.len()
            && taken.is_none()
            && let Some(number) = numbers.next()
        {
            let hash = ahead.next(self, names, done);
            self.slots.insert_new(hash, number, |other| {
                alike.push((names[done], other, done));
                false
            });
            done += 1;
            if alike.len() >= MOST_ALIKE {
                taken = first_taken(&mut alike, runs);
            }
        }
        let Some(taken) = taken.or_else(|| first_taken(&mut alike, runs)) else { return done };
        for (&name, number) in names[taken..done].iter().zip(runs.numbers_from(run, start + taken as u32)) {
            let was_there = self.slots.remove(self.hash(name), |it| it == number);
            debug_assert!(was_there);
        }
        taken
    }

    /// Makes room for `more` names, or gives room back, as far as it is time for it now that `changed` have come or gone.
    /// A name costs 9 to 15 bytes, in small tables up to 25.
    #[inline]
    pub(crate) fn make_ready(&mut self, more: usize, changed: usize, runs: &Runs) {
        let secret = self.secret;
        self.slots.make_ready(more, changed, |number| secret.mix(runs.name(runs.position(number)), 0));
    }

    #[inline]
    pub(crate) fn remove(&mut self, name: u64, is_it: impl FnMut(u32) -> bool) {
        let was_there = self.slots.remove(self.hash(name), is_it);
        debug_assert!(was_there);
    }

    /// True if what the table counts is right.
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        self.slots.is_counted()
    }

    /// Takes out the names of the positions of a run from `offset` on.
    pub(crate) fn remove_all(&mut self, run: u32, offset: u32, names: &[u64], runs: &Runs) {
        let mut ahead = NamePrefetch::of(self, names);
        for (i, (&name, offset)) in names.iter().zip(offset..).enumerate() {
            let hash = ahead.next(self, names, i);
            if name != NO_NAME {
                let was_there = self.slots.remove(hash, |number| runs.position(number) == Position { run, offset });
                debug_assert!(was_there);
            }
        }
    }
}

/// Names that are added with what looked like them: compared when there are so many.
const MOST_ALIKE: usize = 32;
/// A name, the number of a position that may be named so, and which of the names that are added it is.
type LookAlikes = SmallVec<[(u64, u32, usize); MOST_ALIKE]>;

/// Returns which of the names is first that is that of a position it looked like.
#[inline]
fn first_taken(alike: &mut LookAlikes, runs: &Runs) -> Option<usize> {
    for (_, number, _) in &*alike {
        runs.ask_for_page(*number);
    }
    for (_, number, _) in &*alike {
        runs.ask_for_name(runs.position(*number));
    }
    // In the order of the names.
    alike.drain(..).find(|(name, number, _)| runs.name(runs.position(*number)) == *name).map(|(_, _, at)| at)
}

/// Names whose lines are asked for before they are needed: about as many as a core can wait for at once.
const AHEAD: usize = 16;

/// The hashes of the next names of a list that is gone through, whose lines have been asked for.
struct NamePrefetch([u64; AHEAD]);

impl NamePrefetch {
    #[inline]
    fn of(table: &NameTable, names: &[u64]) -> Self {
        let mut hashes = [0; AHEAD];
        for (hash, &name) in hashes.iter_mut().zip(names) {
            *hash = table.hash(name);
            table.slots.prefetch(*hash);
        }
        Self(hashes)
    }

    /// The hash of `names[i]`: to be called for each `i` in turn.
    #[inline]
    fn next(&mut self, table: &NameTable, names: &[u64], i: usize) -> u64 {
        let slot = &mut self.0[i % AHEAD];
        let hash = *slot;
        if let Some(&name) = names.get(i + AHEAD) {
            *slot = table.hash(name);
            table.slots.prefetch(*slot);
        }
        hash
    }
}

/// The names of one holder whose engine does not name blocks as the others do.
pub(crate) struct PrivateNames {
    table: OwnTable,
    /// The other way round, from when somebody asks: nearly nobody does.
    by_place: OnceCell<Box<PlaceNames>>,
    /// The same while it comes together in steps, for who can wait.
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
    pub(super) names: PrivateNames,
    /// The runs whose names are to be put in.
    pub(super) runs: Vec<u32>,
    /// Blocks of the last of these after which to go on.
    pub(super) offset: u32,
}

impl NameTableBuilder {
    pub(super) fn new(runs: Vec<u32>) -> Self {
        Self { names: PrivateNames::with_room_for(0), runs, offset: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.names.bytes() + self.runs.capacity() * size_of::<u32>()
    }

    /// The holder calls the positions of a run from `start` on by these names; [`NO_NAME`] is none.
    pub(super) fn add(&mut self, run: u32, start: u32, names: &[u64], runs: &Runs) {
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

    /// True if the count of the names is right, and there are only such as `is_right`.
    #[cfg(test)]
    pub(super) fn is_counted(&self, mut is_right: impl FnMut(u64, u32) -> bool) -> bool {
        self.names.table.is_counted() && self.names.table.iter().all(|(name, number)| is_right(name, number))
    }

    /// The holder calls nothing by these names any more, if it did.
    pub(super) fn forget(&mut self, names: &[u64]) {
        let table = &mut self.names.table;
        for &name in names.iter().filter(|name| **name != NO_NAME) {
            table.remove(name);
        }
        table.make_ready(0, names.len());
    }
}

/// Names by run and offset; [`NO_NAME`], or nothing at the end, where the holder covers a position by irregular blocks alone.
#[derive(Default)]
pub(super) struct PlaceNames {
    names: Map<u32, Vec<u64>>,
    /// Room in these lists, in names.
    room: usize,
}

impl PrivateNames {
    /// Of so many names, about.
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
    pub(super) fn has_places(&self) -> bool {
        self.by_place.get().is_some()
    }

    /// Puts about so many names where [`Self::name`] and [`Self::of_run`] look for them, which takes long for all at once;
    /// returns whether all are there.
    pub(super) fn gather_places(&mut self, names: usize, runs: &Runs) -> bool {
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

    /// Whoever asked for many names by their places is done.
    pub(super) fn take_places(&mut self) -> Option<Box<PlaceNames>> {
        let gathering = self.gathering.take().map(|it| it.places);
        self.by_place.take().or(gathering)
    }

    /// Names by place, which are to be told whatever changes.
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
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.names.bytes() + self.room * size_of::<u64>()
    }

    /// Gives up a part; returns whether there is more. There is nothing to be looked up after.
    pub(super) fn shed(&mut self) -> bool {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::position::Place;
    use crate::raw::Readers;
    use crate::retire::Trash;

    #[test]
    fn names_are_added_up_to_the_first_that_is_there() {
        let (mut runs, mut trash, mut table) =
            (Runs::new(&Readers::new(1)), Trash::new(&Readers::new(1)), NameTable::new());
        let mut add = |runs: &mut Runs, table: &mut NameTable, content: u64, names: &[u64]| {
            let contents: Vec<u64> = (content..).take(names.len()).collect();
            let run = runs.create(Place::ROOT, &contents, Some(names), 0, &mut trash);
            table.make_ready(names.len(), 0, runs);
            (run, table.insert_new(names, run, 0, runs))
        };
        let old: Vec<u64> = (1..1_000).collect();
        assert_eq!(add(&mut runs, &mut table, 1 << 32, &old).1, old.len());
        let fresh = |content: u64| (0..1_000).map(|i| content << 32 | i).collect::<Vec<u64>>();
        // There already; more of them than are compared at once; and one that the list itself has twice.
        let is_there: &dyn Fn(&mut Vec<u64>, usize) = &|names, at| names[at] = old[at];
        let are_there = &|names: &mut Vec<u64>, at: usize| names[at..].copy_from_slice(&old[at - 1..]);
        let is_twice = &|names: &mut Vec<u64>, at: usize| names[at] = names[at / 2];
        for (i, spoil) in [is_there, are_there, is_twice].into_iter().enumerate() {
            for (j, at) in [1, 15, 16, 17, 500, 998].into_iter().enumerate() {
                let content = 2 + (i * 10 + j) as u64;
                let mut names = fresh(content);
                spoil(&mut names, at);
                let (run, added) = add(&mut runs, &mut table, content << 32, &names);
                assert_eq!(added, at);
                assert!(table.is_counted());
                let name_of = |number| Some(runs.name(runs.position(number)));
                for (name, number) in names[..at].iter().zip(runs.numbers_from(run, 0)) {
                    assert_eq!(table.find(*name, name_of), Some(number));
                }
                let ours = |name: &u64| table.find(*name, name_of).is_some_and(|it| runs.position(it).run == run);
                assert!(!names[at..].iter().any(|name| ours(name) && !names[..at].contains(name)));
                assert!(old.iter().all(|name| table.find(*name, name_of).is_some()));
                table.remove_all(run, 0, &names[..at], &runs);
            }
        }
    }
}
