//! Block hash → position.

use super::segments::Segments;
use crate::position::{NO_NAME, Position};
use crate::runs::Runs;
use crate::segmented::Map;
use crate::spread::mix;

/// Names by hash. The names themselves are kept elsewhere, by position.
pub(crate) struct NameTable {
    slots: Segments,
    secret: u64,
}

impl NameTable {
    pub(crate) fn new(secret: u64) -> Self {
        Self::with_room_for(0, secret)
    }

    fn with_room_for(names: usize, secret: u64) -> Self {
        Self { slots: Segments::with_room_for(names), secret }
    }

    #[inline]
    fn hash(&self, name: u64) -> u64 {
        hash(name, self.secret)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Asks for the lines of names that are about to be looked up one by one: called for each `i` before `names[i]` is.
    #[inline]
    pub(crate) fn prefetch(&self, names: &[u64], i: usize) {
        if i == 0 {
            names.iter().take(AHEAD).for_each(|&name| self.slots.prefetch(self.hash(name)));
        }
        if let Some(&name) = names.get(i + AHEAD) {
            self.slots.prefetch(self.hash(name));
        }
    }

    /// The number of the position of `name`; `name_of` tells what the position of a number is named.
    #[inline]
    pub(crate) fn find(&self, name: u64, name_of: impl Fn(u32) -> Option<u64>) -> Option<u32> {
        self.slots.find(self.hash(name), |number| name_of(number) == Some(name))
    }

    /// Adds a name that is not there; `name_of` tells what the position of any number in the table is named.
    #[inline]
    pub(crate) fn insert(&mut self, name: u64, number: u32, name_of: impl Fn(u32) -> Option<u64>) {
        let secret = self.secret;
        self.slots.insert(self.hash(name), number, |number| hash(name_of(number).unwrap_or(NO_NAME), secret));
    }

    /// Adds a name unless it is there; returns whether it was added.
    #[inline]
    pub(crate) fn insert_new(&mut self, name: u64, number: u32, name_of: impl Fn(u32) -> Option<u64>) -> bool {
        let secret = self.secret;
        self.slots.insert_new(
            self.hash(name),
            number,
            |number| name_of(number) == Some(name),
            |number| hash(name_of(number).unwrap_or(NO_NAME), secret),
        )
    }

    #[inline]
    pub(crate) fn remove(&mut self, name: u64, is_it: impl FnMut(u32) -> bool) {
        let was_there = self.slots.remove(self.hash(name), is_it);
        debug_assert!(was_there);
    }

    /// Whether what it counts is right.
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        self.slots.is_counted()
    }

    /// Takes out the names of the positions of a run from `offset` on.
    pub(crate) fn remove_all(&mut self, run: u32, offset: u32, names: &[u64], runs: &Runs) {
        for (i, (&name, offset)) in names.iter().zip(offset..).enumerate() {
            self.prefetch(names, i);
            if name != NO_NAME {
                self.remove(name, |number| runs.position(number) == Position { run, offset });
            }
        }
    }
}

/// The hash of a name, which no one who chooses names can choose.
#[inline]
fn hash(name: u64, secret: u64) -> u64 {
    mix(name, 0, secret)
}

/// Names whose lines are asked for before they are needed: about as many as a core can wait for at once.
const AHEAD: usize = 16;

/// The names of one holder whose engine does not name blocks as the others do.
pub(crate) struct Private {
    table: NameTable,
    /// By run, for each position the holder covers; `NO_NAME` where it does so by irregular blocks alone.
    names: Map<u32, Vec<u64>>,
    /// Room in these lists, in names.
    room: usize,
}

impl Private {
    /// Of so many names, about.
    pub(crate) fn with_room_for(names: usize, secret: u64) -> Self {
        Self { table: NameTable::with_room_for(names, secret), names: Map::default(), room: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes() + self.names.bytes() + self.room * size_of::<u64>()
    }

    /// Gives up a part; returns whether there is more. There is nothing to be looked up after.
    pub(crate) fn shed(&mut self) -> bool {
        self.names.shed() || self.table.slots.shed()
    }

    /// Whether the room is what it must be.
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        self.room == self.names.iter().map(|(_, names)| names.capacity()).sum::<usize>()
            && self.names.is_counted()
            && self.table.is_counted()
    }

    #[inline]
    pub(crate) fn find(&self, name: u64, runs: &Runs) -> Option<Position> {
        self.table.find(name, |number| self.name(runs.position(number))).map(|number| runs.position(number))
    }

    pub(crate) fn name(&self, at: Position) -> Option<u64> {
        name_in(&self.names, at)
    }

    /// The names in one run, by offset.
    pub(crate) fn of_run(&self, run: u32) -> &[u64] {
        self.names.get(&run).map_or(&[], Vec::as_slice)
    }

    /// Names the next position of a run; `NO_NAME` for none.
    pub(crate) fn push(&mut self, run: u32, name: u64, runs: &Runs) {
        self.load(run, self.of_run(run).len() as u32, &[name], runs);
    }

    /// Names the positions of a run from `start` on, where its names end.
    pub(crate) fn load(&mut self, run: u32, start: u32, names: &[u64], runs: &Runs) {
        // Written first: the table may ask for any of them.
        self.extend(run, names);
        let Self { table, names: all, .. } = self;
        for (&name, number) in names.iter().zip(runs.numbers_from(run, start)) {
            if name != NO_NAME {
                table.insert(name, number, |number| name_in(all, runs.position(number)));
            }
        }
    }

    /// Names the positions of a run from `start` on, where its names end, up to the first name that is taken. Returns
    /// how many.
    pub(crate) fn push_new(&mut self, run: u32, start: u32, names: &[u64], runs: &Runs) -> usize {
        // Written before they are looked up: a name may come twice.
        self.extend(run, names);
        let Self { table, names: all, .. } = self;
        let name_of = |number| name_in(all, runs.position(number));
        let mut taken = 0;
        for (i, (&name, number)) in names.iter().zip(runs.numbers_from(run, start)).enumerate() {
            table.prefetch(names, i);
            if !table.insert_new(name, number, name_of) {
                break;
            }
            taken += 1;
        }
        if taken < names.len() {
            self.cut_off(run, start as usize + taken);
        }
        taken
    }

    fn extend(&mut self, run: u32, more: &[u64]) {
        let names = self.names.get_or_insert_with(run, Vec::new);
        let room = names.capacity();
        if names.capacity() < names.len() + more.len() {
            names.reserve_exact(more.len().max(names.len() / 8 + 1));
        }
        names.extend_from_slice(more);
        self.room += names.capacity() - room;
    }

    /// Takes the name from a position, which stays covered.
    pub(crate) fn unname(&mut self, at: Position, runs: &Runs) {
        if let Some(slot) = self.names.get_mut(&at.run).and_then(|n| n.get_mut(at.offset as usize))
            && *slot != NO_NAME
        {
            let name = std::mem::replace(slot, NO_NAME);
            self.table.remove(name, |number| runs.position(number) == at);
        }
    }

    /// Forgets the names of a run from `len` on.
    pub(crate) fn truncate(&mut self, run: u32, len: u32, runs: &Runs) {
        let Some(names) = self.names.get_mut(&run) else { return };
        self.table.remove_all(run, len, &names[len as usize..], runs);
        self.cut_off(run, len as usize);
    }

    fn cut_off(&mut self, run: u32, len: usize) {
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

#[inline]
fn name_in(names: &Map<u32, Vec<u64>>, at: Position) -> Option<u64> {
    names.get(&at.run)?.get(at.offset as usize).copied()
}
