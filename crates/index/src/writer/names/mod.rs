//! Table from block hash to position (a run of blocks and an offset in it), for the block hashes that several holders
//! (ranks' caches) share.

pub(in crate::writer) mod lines;
pub(in crate::writer) mod own;
pub(in crate::writer) mod private;
mod slot_lines;
mod slots;

use smallvec::SmallVec;

use self::slots::Slots;
use crate::position::{NO_NAME, Position};
use crate::runs::Runs;
use crate::spread::Secret;

/// Hash table that contains, by block hash, the numbers of blocks' positions (run of blocks and offset). The block
/// hashes themselves are stored in the runs of blocks.
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

    /// Number of the position (run of blocks and offset) with the block hash `name`; None if there is none. `name_of`
    /// returns the block hash at a numbered position.
    #[inline]
    pub(crate) fn find(&self, name: u64, name_of: impl Fn(u32) -> Option<u64>) -> Option<u32> {
        self.slots.find(self.hash(name), |number| name_of(number) == Some(name))
    }

    /// Adds a block hash, which must not be in the table yet, with the number of its block's position (run of blocks
    /// and offset). There must be space for it ([`Self::make_ready`]).
    #[inline]
    pub(crate) fn insert(&mut self, name: u64, number: u32) {
        self.slots.insert(self.hash(name), number);
    }

    /// Adds the block hashes of the positions in a run of blocks from `start` on, up to the first one that is already
    /// in the table. Returns the number of block hashes added.
    ///
    /// An entry's tag is a part of its hash, so a block hash with the tag of another entry is nearly always a different
    /// one. To compare them takes three accesses to memory. So all block hashes are added first, and those with equal
    /// tags are compared at the end, all at once.
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

    /// Grows or shrinks the table by some steps, as needed for `more` further block hashes; `changed`: number of block
    /// hashes added or removed since the last call. A block hash takes 9 to 15 bytes, in small tables up to 25.
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

    /// True if the table's counts of its bytes and entries are correct, for tests.
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        self.slots.is_counted()
    }

    /// Removes the block hashes `names` from the table: those of the positions in a run of blocks from `offset` on.
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

/// Number of possible duplicates among block hashes (with equal tags, parts of their hashes) that are collected before
/// the block hashes themselves are compared.
const MOST_ALIKE: usize = 32;
/// List of possible duplicates: a block hash to be added, the number of a position (run of blocks and offset) that may
/// already have it, and its index among the block hashes to be added.
type LookAlikes = SmallVec<[(u64, u32, usize); MOST_ALIKE]>;

/// Index, in a list of block hashes to be added to the table, of the first one that is already the block hash of
/// another position (run of blocks and offset); None if there is none. `alike`: possible duplicates to check, with
/// their indexes; emptied.
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

/// Number of block hashes for which memory of the hash table is prefetched before they are looked up, about as many as
/// a core can wait for at once.
const AHEAD: usize = 16;

/// Hashes of the next block hashes in a list, for which memory of the hash table was prefetched.
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

    /// Returns the hash of `names[i]`, and prefetches the memory of the hash table for a later block hash; must be
    /// called for each `i` in order.
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
        // Block hashes that are there already, that have more duplicates than are compared at once, or that occur
        // twice.
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
