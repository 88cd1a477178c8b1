//! Prediction of the caches of engines that publish no events, from the prompts that were sent to them.
//!
//! There are two ways to forget blocks. *Mock*: each engine's cache is simulated like vLLM's block pool. Blocks that a
//! request uses are kept; other blocks are evicted least recently used first, the last block of a chain before the
//! blocks that it continues; and output occupies space as well. *Ttl*: a block is forgotten some time after it was last
//! sent.
//!
//! In both ways a block is forgotten before the blocks that it continues, so the held blocks of a prompt are always a
//! prefix, and a binary search finds its end.

use std::collections::VecDeque;

use hashbrown::HashMap;

use kvatlas_index::hash::prefix_hashes_into;

use crate::depths::{Depth, Depths};
use crate::parts::draw::mix;

/// Constant mixed into the keys of the blocks of answers, so that they differ from the keys of all prompt blocks.
const OUTPUT: u64 = 0x006F_7574_7075_7421;

/// Rule by which blocks that an engine is predicted to hold are forgotten.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Retention {
    /// Eviction of blocks as from an engine's cache with a capacity of `blocks`, unless the engine reports its own
    /// capacity.
    Mock {
        /// Capacity of the engine's cache in blocks.
        blocks: usize,
    },
    /// Expiry of blocks a fixed time after they were last sent.
    Ttl {
        /// Seconds after which a block is forgotten.
        seconds: f64,
    },
}

/// Prediction of the blocks held by engines that publish no events.
#[derive(Debug)]
pub struct PredictedIndex {
    forgets: Retention,
    caches: Vec<Cache>,
    /// Requests in flight by number, each with its worker and the keys (hashes) of its blocks.
    using: HashMap<u64, (u32, Vec<u64>)>,
    /// Reusable buffer for the keys (hashes) of a prompt's blocks.
    names: Vec<u64>,
    outputs: u64,
}

#[derive(Debug, Default)]
struct Cache {
    /// Capacity of the engine's cache in blocks; None for the capacity in [`Retention::Mock`].
    room: Option<usize>,
    blocks: HashMap<u64, Block>,
    /// Eviction queue: time, key and stamp (sequence number) of each unused block. An item is valid only if its stamp
    /// is the latest one of its block.
    leaving: VecDeque<(f64, u64, u64)>,
    stamp: u64,
}

#[derive(Debug, Default)]
struct Block {
    /// Number of requests that use the block.
    users: u32,
    /// Stamp (sequence number) of the block's latest item in the eviction queue; 0 if the block was never queued.
    stamp: u64,
}

impl PredictedIndex {
    /// Creates a prediction in which all caches are empty.
    #[must_use]
    pub fn new(forgets: Retention) -> Self {
        Self { forgets, caches: Vec::new(), using: HashMap::new(), names: Vec::new(), outputs: 0 }
    }

    /// Sets the capacity of an engine's cache, in blocks.
    pub fn set_room(&mut self, worker: u32, blocks: usize) {
        self.cache(worker).room = Some(blocks);
    }

    /// Fills `depths` with the number of a prompt's leading blocks that each engine is predicted to hold on its device.
    pub fn look_up(&mut self, content_hashes: &[u64], now: f64, depths: &mut Depths) {
        self.expire(now);
        depths.begin();
        self.names.resize(content_hashes.len(), 0);
        prefix_hashes_into(content_hashes, &mut self.names);
        for (worker, cache) in self.caches.iter().enumerate() {
            let device = self.names.partition_point(|name| cache.blocks.contains_key(name)) as u32;
            if device > 0 {
                depths.set(worker as u32, Depth { device, ..Depth::default() });
            }
        }
    }

    /// Records that a prompt was sent to an engine.
    pub fn sent(&mut self, request: u64, worker: u32, content_hashes: &[u64], now: f64) {
        let mut names = vec![0; content_hashes.len()];
        prefix_hashes_into(content_hashes, &mut names);
        let room = self.room(worker);
        let cache = self.cache(worker);
        for name in &names {
            cache.blocks.entry(*name).or_default().users += 1;
        }
        if let Some(room) = room {
            cache.shrink_to(room);
        }
        self.using.insert(request, (worker, names));
        self.expire(now);
    }

    /// Records the end of a request. `output_blocks`: number of blocks that the request's answer occupies.
    pub fn ended(&mut self, request: u64, output_blocks: usize, now: f64) {
        let Some((worker, names)) = self.using.remove(&request) else { return };
        let (first, room, until) = (self.outputs, self.room(worker), self.until(now));
        self.outputs += output_blocks as u64;
        let cache = self.cache(worker);
        if let Some(room) = room {
            for output in first..first + output_blocks.min(room) as u64 {
                cache.release(mix(output ^ OUTPUT), until);
            }
        }
        for name in names.iter().rev() {
            cache.release(*name, until);
        }
        if let Some(room) = room {
            cache.shrink_to(room);
        }
    }

    /// Records that a request failed, or that its engine has left. Blocks that only this request would have stored are
    /// removed.
    pub fn failed(&mut self, request: u64, now: f64) {
        let Some((worker, names)) = self.using.remove(&request) else { return };
        let until = self.until(now);
        let cache = self.cache(worker);
        for name in names.iter().rev() {
            // Nobody but this request was ever to bring it there.
            let new = cache.blocks.get(name).is_some_and(|block| block.users == 1 && block.stamp == 0);
            if new {
                cache.blocks.remove(name);
            } else {
                cache.release(*name, until);
            }
        }
    }

    /// Removes an engine that has left the fleet, with its predicted blocks.
    pub fn left(&mut self, worker: u32) {
        self.using.retain(|_, (its, _)| *its != worker);
        *self.cache(worker) = Cache::default();
    }

    /// Total number of blocks that all engines are predicted to hold.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.caches.iter().map(|cache| cache.blocks.len()).sum()
    }

    fn room(&mut self, worker: u32) -> Option<usize> {
        match self.forgets {
            Retention::Mock { blocks } => Some(self.cache(worker).room.unwrap_or(blocks)),
            Retention::Ttl { .. } => None,
        }
    }

    fn until(&self, now: f64) -> f64 {
        match self.forgets {
            Retention::Ttl { seconds } => now + seconds,
            Retention::Mock { .. } => 0.0,
        }
    }

    fn cache(&mut self, worker: u32) -> &mut Cache {
        let at = worker as usize;
        if self.caches.len() <= at {
            self.caches.resize_with(at + 1, Cache::default);
        }
        &mut self.caches[at]
    }

    fn expire(&mut self, now: f64) {
        if let Retention::Ttl { .. } = self.forgets {
            for cache in &mut self.caches {
                while cache.leaving.front().is_some_and(|first| first.0 <= now) {
                    cache.forget_first();
                }
            }
        }
    }
}

impl Cache {
    /// Ends a request's use of a block, and moves the block to the end of the eviction queue.
    fn release(&mut self, name: u64, until: f64) {
        self.stamp += 1;
        let block = self.blocks.entry(name).or_default();
        block.users = block.users.saturating_sub(1);
        block.stamp = self.stamp;
        self.leaving.push_back((until, name, self.stamp));
        if self.leaving.len() > 4 * self.blocks.len() + 64 {
            let blocks = &self.blocks;
            self.leaving.retain(|(_, name, stamp)| blocks.get(name).is_some_and(|block| block.stamp == *stamp));
        }
    }

    fn shrink_to(&mut self, room: usize) {
        while self.blocks.len() > room && !self.leaving.is_empty() {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((_, name, stamp)) = self.leaving.pop_front() else { return };
        if self.blocks.get(&name).is_some_and(|block| block.stamp == stamp && block.users == 0) {
            self.blocks.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn depth(index: &mut PredictedIndex, prompt: &[u64], worker: u32, now: f64) -> u32 {
        let mut depths = Depths::unknown();
        index.look_up(prompt, now, &mut depths);
        depths.get(worker).device
    }

    #[test]
    fn the_least_recently_used_leaves_first_and_the_end_of_a_chain_before_its_beginning() {
        let mut index = PredictedIndex::new(Retention::Mock { blocks: 6 });
        for (request, prompt) in [(1, [1, 2, 3]), (2, [4, 5, 6])] {
            index.sent(request, 0, &prompt, 0.0);
            index.ended(request, 0, 0.0);
        }
        index.sent(3, 0, &[7, 8], 0.0);
        assert_eq!(depth(&mut index, &[1, 2, 3], 0, 0.0), 1);
        assert_eq!(depth(&mut index, &[4, 5, 6], 0, 0.0), 3);
        assert_eq!(depth(&mut index, &[7, 8, 9], 0, 0.0), 2);
        // Output takes room as well.
        index.ended(3, 2, 0.0);
        assert_eq!(depth(&mut index, &[1, 2, 3], 0, 0.0), 0);
        assert_eq!(depth(&mut index, &[4, 5, 6], 0, 0.0), 2);
    }

    #[test]
    fn what_is_in_use_stays() {
        let mut index = PredictedIndex::new(Retention::Mock { blocks: 2 });
        index.set_room(0, 3);
        index.sent(1, 0, &[1, 2, 3], 0.0);
        index.sent(2, 0, &[4, 5, 6], 0.0);
        index.ended(2, 0, 0.0);
        assert_eq!(depth(&mut index, &[1, 2, 3], 0, 0.0), 3);
        assert_eq!(depth(&mut index, &[4, 5, 6], 0, 0.0), 0);
    }

    #[test]
    fn a_ttl_counts_from_the_end() {
        let mut index = PredictedIndex::new(Retention::Ttl { seconds: 10.0 });
        index.sent(1, 0, &[1, 2], 0.0);
        assert_eq!(depth(&mut index, &[1, 2], 0, 50.0), 2);
        index.ended(1, 9, 50.0);
        assert_eq!(depth(&mut index, &[1, 2], 0, 59.9), 2);
        assert_eq!(depth(&mut index, &[1, 2], 0, 60.0), 0);
        assert_eq!(index.blocks(), 0);
    }

    #[test]
    fn what_failed_was_never_there() {
        let mut index = PredictedIndex::new(Retention::Mock { blocks: 9 });
        index.sent(1, 0, &[1, 2], 0.0);
        index.ended(1, 0, 0.0);
        index.sent(2, 0, &[1, 2, 3], 0.0);
        index.failed(2, 0.0);
        assert_eq!(depth(&mut index, &[1, 2, 3], 0, 0.0), 2);
        index.left(0);
        assert_eq!(depth(&mut index, &[1, 2, 3], 0, 0.0), 0);
    }

    proptest! {
        /// Checks that the held blocks of a chain are always a prefix, as the binary search requires, and that no block
        /// is kept forever.
        #[test]
        fn holdings_are_prefixes(
            steps in prop::collection::vec((0u64..3, 1u64..8, any::<bool>(), 0usize..5, 0.0..4.0), 1..80),
            ttl in any::<bool>(),
        ) {
            let forgets = if ttl { Retention::Ttl { seconds: 5.0 } } else { Retention::Mock { blocks: 12 } };
            let mut index = PredictedIndex::new(forgets);
            let mut open = Vec::new();
            let mut now = 0.0;
            let chain = |family: u64| (0..8).map(|block| if block < 3 { block } else { family << 8 | block }).collect::<Vec<u64>>();
            for (number, (family, length, fails, ends, passes)) in steps.into_iter().enumerate() {
                now += passes;
                index.sent(number as u64, 0, &chain(family)[..length as usize], now);
                open.push(number as u64);
                if ends < open.len() {
                    let request = open.remove(ends);
                    if fails { index.failed(request, now) } else { index.ended(request, ends, now) }
                }
                for family in 0..3 {
                    let mut names = vec![0; 8];
                    prefix_hashes_into(&chain(family), &mut names);
                    let held: Vec<bool> = names.iter().map(|name| index.caches[0].blocks.contains_key(name)).collect();
                    prop_assert!(held.is_sorted_by(|a, b| a >= b), "{:?}", held);
                }
            }
            for request in open {
                index.ended(request, 0, now);
            }
            index.expire(now + 6.0);
            let most = if ttl { 0 } else { 12 };
            prop_assert!(index.blocks() <= most);
            prop_assert!(index.using.is_empty());
        }
    }
}
