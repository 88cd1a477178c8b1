//! Removal of blocks that leave a pool without an announcement: the oldest ones if a pool has more blocks than its
//! capacity, and those that are missing in a listing of its store.

use std::collections::{HashSet, VecDeque};

use super::book::{LoadBook, Part, PoolPart};
use crate::segmented::Map;

/// Number of announcements of blocks kept in addition to twice the number of a pool's blocks, before outdated
/// announcements are deleted.
const SPARE: usize = 64;

/// Announcements of a pool's blocks, the oldest first; empty for a pool without a limit of blocks.
#[derive(Default)]
pub(super) struct AnnouncementOrder {
    /// Sequence number and block hash of each announcement. A block that was announced repeatedly has several entries.
    order: VecDeque<(u64, u64)>,
    /// Sequence number of each block's last announcement in the pool, by block hash.
    last: Map<u64, u64>,
    next: u64,
}

impl AnnouncementOrder {
    pub(super) fn bytes(&self) -> usize {
        self.order.capacity() * size_of::<(u64, u64)>() + self.last.bytes()
    }

    fn add(&mut self, name: u64) {
        self.order.push_back((self.next, name));
        self.last.insert(name, self.next);
        self.next += 1;
    }

    /// Forgets a block that has left the pool.
    pub(super) fn forget(&mut self, name: u64) {
        self.last.remove(&name);
    }

    /// Removes and returns the block whose last announcement is the oldest; None if there is none.
    fn pop(&mut self) -> Option<u64> {
        while let Some((number, name)) = self.order.pop_front() {
            if self.last.get(&name) == Some(&number) {
                return Some(name);
            }
        }
        None
    }
}

impl PoolPart {
    /// Records announcements of a pool's blocks, given in the order of their prompt.
    pub(super) fn note_announced(&mut self, names: &[u64]) {
        if self.pool.room.is_none() {
            return;
        }
        let AnnouncementOrder { order, last, .. } = &mut self.announced;
        if order.len() > 2 * last.len() + SPARE {
            order.retain(|(number, name)| last.get(name) == Some(number));
        }
        names.iter().for_each(|name| self.announced.add(*name));
    }

    /// Sorts the announcements of a pool's blocks by time; needed after blocks were added from a source other than
    /// events.
    pub(super) fn sort_announced(&mut self) {
        self.announced = AnnouncementOrder::default();
        if self.pool.room.is_some() {
            let mut all: Vec<_> = self.seen.iter().map(|(name, at)| (*at, *name)).collect();
            all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            all.into_iter().for_each(|(_, name)| self.announced.add(name));
        }
    }

    /// Block that was announced longest ago, if the pool has more blocks than its capacity; None otherwise.
    fn next_beyond_room(&mut self) -> Option<u64> {
        let room = usize::try_from(self.pool.room?.get()).unwrap_or(usize::MAX);
        if self.seen.len() > room { self.announced.pop() } else { None }
    }
}

impl LoadBook {
    /// Removes the blocks of a pool that were announced longest ago, until the others fit its capacity.
    pub(super) fn keep_to_room(&mut self, pool: u32) {
        while let Some(name) = self.pools[pool as usize].next_beyond_room() {
            self.take_from_pool(pool, name);
        }
    }

    /// Block hashes of a pool's blocks that were announced at `until` (in seconds) or before, and that are not in
    /// `found`, a listing of the pool's store.
    pub(crate) fn missing_in_pool(&self, pool: &str, found: &HashSet<u64>, until: f64) -> Vec<u64> {
        let pool = self.pools.iter().find(|it| *it.name == *pool);
        let seen = pool.into_iter().flat_map(|it| it.seen.iter().chain(it.unmeant.iter()));
        seen.filter(|(name, at)| **at <= until && !found.contains(*name)).map(|(name, _)| *name).collect()
    }

    /// Removes blocks that a listing of a pool's store lacks, except those announced after `until`, in seconds. Returns
    /// the number of blocks removed.
    pub(crate) fn take_missing(&mut self, pool: &str, missing: &[u64], until: f64) -> usize {
        let Some(number) = self.pools.iter().position(|it| *it.name == *pool) else { return 0 };
        let is_old = |it: &PoolPart, name: &u64| it.seen.get(name).is_some_and(|at| *at <= until);
        let mut gone = 0;
        for &name in missing {
            let unmeant = &mut self.pools[number].unmeant;
            if unmeant.get(&name).is_some_and(|at| *at <= until) {
                unmeant.remove(&name);
            }
            gone += usize::from(is_old(&self.pools[number], &name) && self.take_from_pool(number as u32, name));
        }
        gone
    }

    /// Name of each pool, and the number of its blocks.
    pub(crate) fn pool_sizes(&self) -> Vec<(Box<str>, usize)> {
        self.pools.iter().map(|it| (it.pool.name.clone(), it.seen.len())).collect()
    }

    /// Removes a block from a pool, a store that several engines load from. Returns true if the pool had the block.
    pub(super) fn take_from_pool(&mut self, pool: u32, name: u64) -> bool {
        let it = &mut self.pools[pool as usize];
        if it.seen.remove(&name).is_none() {
            return false;
        }
        it.announced.forget(name);
        for (gone, parent) in it.names.release(name) {
            self.stop_waiting(Part::Pool(pool), gone, parent);
        }
        true
    }
}
