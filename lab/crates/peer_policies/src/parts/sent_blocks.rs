//! A bounded table of the prompts sent to each worker, in pieces (blocks, or parts of untokenised text).

use std::collections::{BTreeMap, HashMap};

const NONE: u32 = u32::MAX;

/// A piece of a prompt that was sent to a worker, with its uses.
#[derive(Debug, Clone, Copy)]
struct Entry {
    name: u64,
    older: u32,
    newer: u32,
    /// Number of the latest use, counted over the uses of all pieces, which gives the order of use.
    touch: u64,
    /// Time at which the piece was last sent, in seconds.
    time: f64,
    /// Number of the time window in which the piece was last used. The next fields are the uses in this window and in
    /// the one before.
    window: u64,
    hits: u32,
    hits_before: u32,
}

/// Pieces of prompts that one worker was sent, in order of use.
#[derive(Debug)]
struct Shelf {
    slots: HashMap<u64, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

impl Default for Shelf {
    fn default() -> Self {
        Self { slots: HashMap::new(), entries: Vec::new(), free: Vec::new(), oldest: NONE, newest: NONE }
    }
}

impl Shelf {
    fn unlink(&mut self, slot: u32) {
        let Entry { older, newer, .. } = self.entries[slot as usize];
        match older {
            NONE => self.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.entries[newer as usize].older = older,
        }
    }

    fn push(&mut self, slot: u32) {
        let newest = std::mem::replace(&mut self.newest, slot);
        let entry = &mut self.entries[slot as usize];
        (entry.older, entry.newer) = (newest, NONE);
        match newest {
            NONE => self.oldest = slot,
            _ => self.entries[newest as usize].newer = slot,
        }
    }

    fn drop_oldest(&mut self) {
        let slot = self.oldest;
        if slot != NONE {
            self.unlink(slot);
            self.slots.remove(&self.entries[slot as usize].name);
            self.free.push(slot);
        }
    }
}

/// Limits of the table of sent prompts: numbers of pieces, and their age.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bounds {
    /// Maximum number of pieces of one worker.
    pub(crate) worker: usize,
    /// Maximum number of pieces of all workers.
    pub(crate) all: usize,
    /// Time after which a piece is dropped if it is not sent again, in seconds.
    pub(crate) ttl: f64,
}

/// For each worker, the pieces (blocks) of the prompts sent to it. The least recently used pieces are dropped first, a
/// prompt's end before its beginning, so that a beginning of each prompt remains.
#[derive(Debug)]
pub(crate) struct SentBlocks {
    shelves: BTreeMap<u32, Shelf>,
    touches: u64,
    total: usize,
    /// Length of a time window for [`SentBlocks::hits_of_oldest`], in seconds.
    window: f64,
}

impl SentBlocks {
    /// Creates an empty table. `window`: length of the time windows over which uses are counted, in seconds.
    pub(crate) fn new(window: f64) -> Self {
        Self { shelves: BTreeMap::new(), touches: 0, total: 0, window }
    }

    /// Number of workers in the table.
    pub(crate) fn workers(&self) -> usize {
        self.shelves.len()
    }

    /// Number of pieces of prompts in the table for a worker.
    pub(crate) fn held(&self, worker: u32) -> usize {
        self.shelves.get(&worker).map_or(0, |shelf| shelf.slots.len())
    }

    /// Number of leading pieces of a prompt that the worker was sent within the last `ttl` seconds. `chain`: the hashes
    /// of the prompt's pieces.
    pub(crate) fn depth(&self, worker: u32, chain: &[u64], ttl: f64, now: f64) -> usize {
        let Some(shelf) = self.shelves.get(&worker) else { return 0 };
        // A kept piece implies those before it, which are not older.
        chain.partition_point(|name| {
            shelf.slots.get(name).is_some_and(|&slot| now - shelf.entries[slot as usize].time <= ttl)
        })
    }

    /// Number of the latest use of the piece `name` by the worker; 0 if there was none. Uses of all pieces are numbered
    /// in turn, from 1 on.
    pub(crate) fn last_touch(&self, worker: u32, name: u64) -> u64 {
        let Some(shelf) = self.shelves.get(&worker) else { return 0 };
        shelf.slots.get(&name).map_or(0, |&slot| shelf.entries[slot as usize].touch)
    }

    /// Records that a prompt was sent to the worker, within the table's limits. `chain`: the hashes of the prompt's
    /// pieces.
    pub(crate) fn insert(&mut self, worker: u32, chain: &[u64], bounds: Bounds, now: f64) {
        self.forget_older(bounds.ttl, now);
        let shelf = self.shelves.entry(worker).or_default();
        let before = shelf.slots.len();
        let window = if self.window > 0.0 { (now / self.window).max(0.0) as u64 } else { 0 };
        // The end first, so that it is older than the beginning, and is dropped first.
        for &name in chain.iter().take(bounds.worker.min(bounds.all)).rev() {
            self.touches += 1;
            if let Some(&slot) = shelf.slots.get(&name) {
                shelf.unlink(slot);
                let entry = &mut shelf.entries[slot as usize];
                (entry.touch, entry.time) = (self.touches, now);
                if entry.window != window {
                    entry.hits_before = if entry.window + 1 == window { entry.hits } else { 0 };
                    (entry.window, entry.hits) = (window, 0);
                }
                entry.hits = entry.hits.saturating_add(1);
                shelf.push(slot);
                continue;
            }
            let (older, newer) = (NONE, NONE);
            let entry = Entry { name, older, newer, touch: self.touches, time: now, window, hits: 1, hits_before: 0 };
            let slot = match shelf.free.pop() {
                Some(slot) => {
                    shelf.entries[slot as usize] = entry;
                    slot
                }
                None => {
                    shelf.entries.push(entry);
                    (shelf.entries.len() - 1) as u32
                }
            };
            shelf.slots.insert(name, slot);
            shelf.push(slot);
        }
        while shelf.slots.len() > bounds.worker {
            shelf.drop_oldest();
        }
        self.total = self.total + shelf.slots.len() - before;
        while self.total > bounds.all {
            self.drop_oldest();
        }
    }

    /// Drops the least recently used pieces of a worker until at most `most` are left.
    pub(crate) fn trim(&mut self, worker: u32, most: usize) {
        if let Some(shelf) = self.shelves.get_mut(&worker) {
            while shelf.slots.len() > most {
                shelf.drop_oldest();
                self.total -= 1;
            }
        }
    }

    /// Drops a worker with its pieces.
    pub(crate) fn remove(&mut self, worker: u32) {
        if let Some(shelf) = self.shelves.remove(&worker) {
            self.total -= shelf.slots.len();
        }
    }

    /// Sum of the numbers of times that the `count` least recently used pieces of a worker were sent to it in the last
    /// time window.
    ///
    /// Uses are counted in two fixed windows; the older count is weighted by its overlap with the sliding window.
    pub(crate) fn hits_of_oldest(&self, worker: u32, count: usize, now: f64) -> f64 {
        let Some(shelf) = self.shelves.get(&worker) else { return 0.0 };
        if self.window <= 0.0 {
            return 0.0;
        }
        let place = (now / self.window).max(0.0);
        let (window, old) = (place as u64, 1.0 - place.fract());
        let (mut slot, mut sum) = (shelf.oldest, 0.0);
        for _ in 0..count {
            if slot == NONE {
                break;
            }
            let entry = &shelf.entries[slot as usize];
            sum += match window.saturating_sub(entry.window) {
                0 => f64::from(entry.hits) + old * f64::from(entry.hits_before),
                1 => old * f64::from(entry.hits),
                _ => 0.0,
            };
            slot = entry.newer;
        }
        sum
    }

    fn forget_older(&mut self, ttl: f64, now: f64) {
        if !ttl.is_finite() {
            return;
        }
        for shelf in self.shelves.values_mut() {
            while shelf.oldest != NONE && now - shelf.entries[shelf.oldest as usize].time > ttl {
                shelf.drop_oldest();
                self.total -= 1;
            }
        }
    }

    fn drop_oldest(&mut self) {
        let touch = |shelf: &Shelf| match shelf.oldest {
            NONE => u64::MAX,
            slot => shelf.entries[slot as usize].touch,
        };
        if let Some(shelf) = self.shelves.values_mut().min_by_key(|shelf| touch(shelf)) {
            shelf.drop_oldest();
        }
        self.total -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Bounds = Bounds { worker: 100, all: 100, ttl: f64::INFINITY };

    fn depth(table: &SentBlocks, worker: u32, chain: &[u64]) -> usize {
        table.depth(worker, chain, f64::INFINITY, 0.0)
    }

    #[test]
    fn a_prompt_is_known_as_far_as_it_was_sent() {
        let mut table = SentBlocks::new(0.0);
        table.insert(7, &[1, 2, 3], WIDE, 0.0);
        assert_eq!(depth(&table, 7, &[1, 2, 3, 4]), 3);
        assert_eq!(depth(&table, 7, &[1, 2, 9]), 2);
        assert_eq!(
            depth(&table, 7, &[2, 3]),
            2,
            "names say all that is before: 2 is not a beginning of another prompt"
        );
        assert_eq!(depth(&table, 8, &[1]), 0);
        table.remove(7);
        assert_eq!((depth(&table, 7, &[1]), table.workers(), table.total), (0, 0, 0));
    }

    #[test]
    fn the_end_of_the_least_recently_used_goes_first() {
        let mut table = SentBlocks::new(0.0);
        let bounds = Bounds { worker: 4, ..WIDE };
        table.insert(0, &[1, 2, 3], bounds, 0.0);
        table.insert(0, &[1, 8, 9], bounds, 1.0);
        // Five pieces, one too many: 3, the end of the older prompt.
        assert_eq!((depth(&table, 0, &[1, 2, 3]), depth(&table, 0, &[1, 8, 9])), (2, 3));
        table.insert(0, &[5, 6, 7, 4, 3], bounds, 2.0);
        assert_eq!((table.held(0), depth(&table, 0, &[5, 6, 7, 4, 3])), (4, 4), "no more than what fits");
    }

    #[test]
    fn workers_share_a_bound_on_all() {
        let mut table = SentBlocks::new(0.0);
        let bounds = Bounds { all: 3, ..WIDE };
        table.insert(0, &[1, 2], bounds, 0.0);
        table.insert(1, &[1, 2], bounds, 1.0);
        assert_eq!((depth(&table, 0, &[1, 2]), depth(&table, 1, &[1, 2]), table.total), (1, 2, 3));
        table.trim(1, 0);
        assert_eq!((table.held(1), table.total), (0, 1));
    }

    #[test]
    fn pieces_are_forgotten_in_time() {
        let mut table = SentBlocks::new(0.0);
        let bounds = Bounds { ttl: 10.0, ..WIDE };
        table.insert(0, &[1, 2], bounds, 0.0);
        table.insert(0, &[1], bounds, 6.0);
        assert_eq!(table.depth(0, &[1, 2], 10.0, 9.0), 2);
        assert_eq!(table.depth(0, &[1, 2], 10.0, 12.0), 1);
        table.insert(1, &[5], bounds, 12.0);
        assert_eq!(table.held(0), 1, "what was too old is gone, not only hidden");
    }

    #[test]
    fn hits_are_counted_in_a_sliding_window() {
        let mut table = SentBlocks::new(10.0);
        for now in [1.0, 2.0, 11.0] {
            table.insert(0, &[1], WIDE, now);
        }
        // At 15 s half of the window from 5 s on is the one before, which had two: 1 + 2 / 2.
        assert!((table.hits_of_oldest(0, 5, 15.0) - 2.0).abs() < 1e-9);
        // At 25 s the one before is that from 10 s on, with one hit: 1 / 2.
        assert!((table.hits_of_oldest(0, 5, 25.0) - 0.5).abs() < 1e-9);
        assert_eq!(table.hits_of_oldest(0, 5, 40.0), 0.0);
    }

    #[test]
    fn a_random_stream_keeps_beginnings_and_bounds() {
        let mut draw = kvatlas_routing::parts::draw::Draw::new(3);
        let mut table = SentBlocks::new(5.0);
        let bounds = Bounds { worker: 20, all: 45, ttl: 30.0 };
        for step in 0..5000 {
            let now = f64::from(step) / 10.0;
            let chain: Vec<u64> = (0..draw.below(9))
                .scan(0, |name, _| {
                    *name = *name * 3 + draw.below(2) as u64 + 1;
                    Some(*name)
                })
                .collect();
            table.insert(draw.below(4) as u32, &chain, bounds, now);
            if draw.below(50) == 0 {
                table.remove(draw.below(4) as u32);
            }
            let held: usize = table.shelves.values().map(|shelf| shelf.slots.len()).sum();
            assert_eq!(held, table.total);
            assert!(held <= 45 && table.shelves.values().all(|shelf| shelf.slots.len() <= 20));
            for (&worker, shelf) in &table.shelves {
                let known = |name: &u64| shelf.slots.contains_key(name);
                let scan = chain.iter().take_while(|name| known(name)).count();
                assert_eq!(table.depth(worker, &chain, f64::INFINITY, now), scan);
            }
        }
    }
}
