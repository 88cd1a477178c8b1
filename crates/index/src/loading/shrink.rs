//! Blocks of pools that go unannounced: those that a pool has no room for, and those that a look at the store does not find.

use std::collections::{HashSet, VecDeque};

use super::book::{LoadBook, Part, PoolPart};
use crate::segmented::Map;

/// Announcements kept beyond twice the number of blocks, before those that were repeated since are left out.
const SPARE: usize = 64;

/// Announcements of a pool's blocks in their order, the oldest first; none of a pool without a limit.
#[derive(Default)]
pub(super) struct AnnouncementOrder {
    /// Number and name of each; a block that was announced again is here more than once.
    order: VecDeque<(u64, u64)>,
    /// Number of the last announcement of each block.
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

    /// Forgets a block that the pool does not have any more.
    pub(super) fn forget(&mut self, name: u64) {
        self.last.remove(&name);
    }

    /// The block that was announced longest ago.
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
    /// Notes that blocks were announced, in the order of their prompt.
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

    /// Puts the announcements in order by their times, after others than those of events.
    pub(super) fn sort_announced(&mut self) {
        self.announced = AnnouncementOrder::default();
        if self.pool.room.is_some() {
            let mut all: Vec<_> = self.seen.iter().map(|(name, at)| (*at, *name)).collect();
            all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            all.into_iter().for_each(|(_, name)| self.announced.add(name));
        }
    }

    /// The block that was announced longest ago, if the pool has no room for all.
    fn next_beyond_room(&mut self) -> Option<u64> {
        let room = usize::try_from(self.pool.room?.get()).unwrap_or(usize::MAX);
        if self.seen.len() > room { self.announced.pop() } else { None }
    }
}

impl LoadBook {
    /// Takes out of a pool what it has no room for.
    pub(super) fn keep_to_room(&mut self, pool: u32) {
        while let Some(name) = self.pools[pool as usize].next_beyond_room() {
            self.take_from_pool(pool, name);
        }
    }

    /// Blocks of a pool that were announced until a time and are not among those found in its store.
    pub(crate) fn missing_in_pool(&self, pool: &str, found: &HashSet<u64>, until: f64) -> Vec<u64> {
        let pool = self.pools.iter().find(|it| *it.name == *pool);
        let seen = pool.into_iter().flat_map(|it| it.seen.iter());
        seen.filter(|(name, at)| **at <= until && !found.contains(*name)).map(|(name, _)| *name).collect()
    }

    /// Takes blocks out of a pool, unless they were announced after a time. Returns their number.
    pub(crate) fn take_missing(&mut self, pool: &str, missing: &[u64], until: f64) -> usize {
        let Some(number) = self.pools.iter().position(|it| *it.name == *pool) else { return 0 };
        let is_old = |it: &PoolPart, name| it.seen.get(name).is_some_and(|at| *at <= until);
        let gone = missing
            .iter()
            .filter(|name| is_old(&self.pools[number], name) && self.take_from_pool(number as u32, **name));
        gone.count()
    }

    /// Number of blocks that each pool has.
    pub(crate) fn pool_sizes(&self) -> Vec<(Box<str>, usize)> {
        self.pools.iter().map(|it| (it.pool.name.clone(), it.seen.len())).collect()
    }

    /// Takes a block out of a pool.
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
