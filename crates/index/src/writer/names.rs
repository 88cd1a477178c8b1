//! Block hash → position.

use hashbrown::HashMap;

use crate::runs::{NO_NAME, Position, Runs};
use crate::table::{Table, mix};

/// Names by hash. The names themselves are kept elsewhere, by position.
pub(crate) struct NameTable {
    table: Table,
    len: usize,
    secret: u64,
}

impl NameTable {
    pub(crate) fn new(secret: u64) -> Self {
        Self { table: Table::with_room_for(0), len: 0, secret }
    }

    fn hash(&self, name: u64) -> u64 {
        mix(name, 0, self.secret)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes()
    }

    #[inline]
    pub(crate) fn prefetch(&self, name: u64) {
        self.table.prefetch(self.hash(name));
    }

    /// The position of `name`; `name_at` tells what a position is named.
    #[inline]
    pub(crate) fn find(&self, name: u64, name_at: impl Fn(Position) -> Option<u64>) -> Option<Position> {
        self.table
            .find(self.hash(name), |word| name_at(Position::unpack(word)) == Some(name))
            .map(Position::unpack)
    }

    #[inline]
    pub(crate) fn insert(&mut self, name: u64, at: Position) {
        self.table.insert(self.hash(name), at.pack());
        self.len += 1;
    }

    #[inline]
    pub(crate) fn remove(&mut self, name: u64, at: Position) {
        let was_there = self.table.remove(self.hash(name), at.pack());
        debug_assert!(was_there);
        self.len -= 1;
    }

    /// Whether `more` names fit, or so few are left that the table should shrink.
    #[inline]
    fn fits(&self, more: usize) -> bool {
        let room = self.table.room();
        self.len + more <= room && (self.len * 4 >= room || room <= 64)
    }

    /// Makes room for `more` names, or gives room back; `all` lists every name there is. Half as much again is taken,
    /// so that a name costs 10 to 16 bytes; the old table goes before the new one comes.
    pub(crate) fn reserve<I: Iterator<Item = (u64, Position)>>(&mut self, more: usize, all: impl FnOnce() -> I) {
        if self.fits(more) {
            return;
        }
        let wanted = self.len + more;
        self.table = Table::with_room_for(0);
        self.table = Table::with_room_for(wanted + wanted / 2);
        // Ask for the lines a little ahead: each is a miss of its own.
        let mut waiting = std::collections::VecDeque::with_capacity(AHEAD);
        for (name, at) in all() {
            self.prefetch(name);
            if waiting.len() == AHEAD
                && let Some((name, at)) = waiting.pop_front()
            {
                self.put(name, at);
            }
            waiting.push_back((name, at));
        }
        for (name, at) in waiting {
            self.put(name, at);
        }
    }

    fn put(&self, name: u64, at: Position) {
        self.table.insert(self.hash(name), at.pack());
    }
}

const AHEAD: usize = 16;

/// The names of one holder whose engine does not name blocks as the others do.
pub(crate) struct Private {
    table: NameTable,
    /// By run, for each position the holder covers; `NO_NAME` where it does so by odd blocks alone.
    names: HashMap<u32, Vec<u64>>,
}

impl Private {
    pub(crate) fn new(secret: u64) -> Self {
        Self { table: NameTable::new(secret), names: HashMap::new() }
    }

    pub(crate) fn bytes(&self) -> usize {
        let vectors: usize = self.names.values().map(|v| v.capacity() * size_of::<u64>()).sum();
        self.table.bytes() + self.names.allocation_size() + vectors
    }

    #[inline]
    pub(crate) fn find(&self, name: u64) -> Option<Position> {
        self.table.find(name, |at| self.name(at))
    }

    #[inline]
    pub(crate) fn prefetch(&self, name: u64) {
        self.table.prefetch(name);
    }

    pub(crate) fn name(&self, at: Position) -> Option<u64> {
        self.names.get(&at.run)?.get(at.offset as usize).copied()
    }

    /// The names in one run, by offset.
    pub(crate) fn of_run(&self, run: u32) -> &[u64] {
        self.names.get(&run).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn reserve(&mut self, more: usize) {
        let Self { table, names } = self;
        table.reserve(more, || {
            names.iter().flat_map(|(&run, names)| {
                let positions = (0..).map(move |offset| Position { run, offset });
                names.iter().copied().zip(positions).filter(|(name, _)| *name != NO_NAME)
            })
        });
    }

    /// Names the next position of a run; `NO_NAME` for none. `more`: how many are likely to follow at once.
    pub(crate) fn push(&mut self, run: u32, name: u64, more: usize) {
        self.reserve(1);
        let names = self.names.entry(run).or_default();
        if names.len() == names.capacity() {
            names.reserve_exact((more + 1).max(names.len() / 4 + 1));
        }
        let at = Position { run, offset: names.len() as u32 };
        names.push(name);
        if name != NO_NAME {
            self.table.insert(name, at);
        }
    }

    /// Takes the name from a position, which stays covered.
    pub(crate) fn unname(&mut self, at: Position) {
        if let Some(slot) = self.names.get_mut(&at.run).and_then(|n| n.get_mut(at.offset as usize))
            && *slot != NO_NAME
        {
            self.table.remove(std::mem::replace(slot, NO_NAME), at);
        }
    }

    /// Forgets the names of a run from `len` on.
    pub(crate) fn truncate(&mut self, run: u32, len: u32) {
        let Some(names) = self.names.get_mut(&run) else { return };
        for (offset, &name) in names.iter().enumerate().skip(len as usize) {
            if name != NO_NAME {
                self.table.remove(name, Position { run, offset: offset as u32 });
            }
        }
        names.truncate(len as usize);
        if names.is_empty() {
            self.names.remove(&run);
            if self.names.capacity() > 64 && self.names.len() * 4 < self.names.capacity() {
                self.names.shrink_to(self.names.len() * 2);
            }
        } else if names.capacity() > 2 * names.len() + 8 {
            names.shrink_to(names.len() + 2);
        }
        self.reserve(0);
    }
}

/// All shared names.
pub(crate) fn shared_names(runs: &Runs) -> impl Iterator<Item = (u64, Position)> {
    runs.ids().flat_map(|run| {
        let positions = (0..).map(move |offset| Position { run, offset });
        runs.get(run).names().iter().copied().zip(positions).filter(|(name, _)| *name != NO_NAME)
    })
}
