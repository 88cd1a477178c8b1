//! Blocks that a pool's store itself names, without their contents, and loads that keep a pool's blocks from being
//! evicted.
//!
//! A store knows its blocks by block hashes alone. Their contents are those that a member told for its device or for
//! another tier. A block hash that no member has described waits in the pool until one does: from then on the block
//! counts.
//!
//! A rank that gains a block that it had on none of its own tiers, while a pool that it may load from has this block, has
//! loaded it: engines look into their pools before they compute.

use smallvec::SmallVec;

use super::EvictionOrder;
use super::book::{LoadBook, Part, PoolPart};
use super::names::{Block, only};
use crate::types::Tier;

/// Maximum number of block hashes of one pool that wait for their contents: about 100 MB.
const MOST_UNMEANT: usize = 1 << 22;

/// Numbers of blocks that a store has named, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedBlocks {
    /// Blocks that were in the pool already.
    pub known: usize,
    /// Blocks added to the pool, as members had told their contents.
    pub placed: usize,
    /// Blocks that count once a member tells their contents.
    pub waiting: usize,
    /// Blocks left out because too many wait for their contents.
    pub refused: usize,
}

impl std::ops::AddAssign for NamedBlocks {
    fn add_assign(&mut self, other: Self) {
        self.known += other.known;
        self.placed += other.placed;
        self.waiting += other.waiting;
        self.refused += other.refused;
    }
}

impl PoolPart {
    /// Records that a block was loaded now. Its age begins anew, and it is the last to be evicted.
    fn renew(&mut self, name: u64, now: f64) {
        self.seen.insert(name, now);
        self.note_announced(&[name]);
    }
}

impl LoadBook {
    fn pool_number(&self, pool: &str) -> Option<u32> {
        self.pools.iter().position(|it| *it.name == *pool).map(|number| number as u32)
    }

    /// Records that the store of a pool has named blocks that it holds.
    pub(crate) fn name_in_pool(&mut self, pool: &str, names: &[u64]) -> NamedBlocks {
        let mut counts = NamedBlocks::default();
        let Some(number) = self.pool_number(pool) else { return counts };
        let (now, mut fresh) = (self.outside.time(), Vec::new());
        for &name in names {
            let it = &mut self.pools[number as usize];
            if it.seen.contains_key(&name) {
                // To be listed is not to be used: the order of eviction stays.
                it.seen.insert(name, now);
                counts.known += 1;
            } else if let Some(block) = self.meaning(number, name) {
                self.place(number, name, block, now, &mut fresh);
                counts.placed += 1;
            } else if it_has_room(&self.pools[number as usize], name) {
                self.pools[number as usize].unmeant.insert(name, now);
                counts.waiting += 1;
            } else {
                counts.refused += 1;
            }
        }
        self.settle(fresh);
        counts
    }

    /// Records that the store of a pool no longer holds blocks. Returns how many of them were in the pool.
    pub(crate) fn unname_in_pool(&mut self, pool: &str, names: &[u64]) -> usize {
        let Some(number) = self.pool_number(pool) else { return 0 };
        let mut gone = 0;
        for &name in names {
            self.pools[number as usize].unmeant.remove(&name);
            gone += usize::from(self.take_from_pool(number, name));
        }
        gone
    }

    /// Sets whether all removals that the store of a pool announced have been seen.
    pub(crate) fn set_pool_whole(&mut self, pool: &str, is_whole: bool) {
        if let Some(number) = self.pool_number(pool) {
            self.pools[number as usize].is_whole = is_whole;
        }
    }

    /// Records that an engine has loaded blocks, given by their prefix hashes, from a pool. Returns the number of blocks
    /// whose age begins anew: none where loads do not delay eviction.
    pub(crate) fn use_from_pool(&mut self, pool: &str, prefixes: &[u64]) -> usize {
        let Some(number) = self.pool_number(pool) else { return 0 };
        let (it, now) = (&mut self.pools[number as usize], self.outside.time());
        if it.pool.evicts != EvictionOrder::Used {
            return 0;
        }
        let mut renewed = 0;
        for prefix in prefixes {
            let names: SmallVec<[u64; 2]> = it.names.of_prefix(*prefix).into();
            for name in names.into_iter().filter(|name| it.seen.contains_key(name)).collect::<SmallVec<[u64; 2]>>() {
                it.renew(name, now);
                renewed += 1;
            }
        }
        renewed
    }

    /// Number of blocks of each pool that wait for their contents, in the order of
    /// [`pool_sizes`](Self::pool_sizes).
    pub(crate) fn unmeant_sizes(&self) -> Vec<usize> {
        self.pools.iter().map(|it| it.unmeant.len()).collect()
    }

    /// Adds the blocks that a member has described to one of its pools: blocks that waited for their contents are in the
    /// pool now, and those that the member has just gained were loaded from there.
    pub(super) fn note_described(
        &mut self,
        pool: u32,
        blocks: impl Iterator<Item = (u64, Block)>,
        gained: &[u64],
        fresh: &mut Vec<(Part, u64)>,
    ) {
        let it = &self.pools[pool as usize];
        let counts_uses = it.pool.evicts == EvictionOrder::Used && !gained.is_empty();
        if it.unmeant.is_empty() && !counts_uses {
            return;
        }
        let (now, mut gained) = (self.outside.time(), gained.iter().peekable());
        for (name, block) in blocks {
            if let Some(named_at) = self.pools[pool as usize].unmeant.remove(&name) {
                self.place(pool, name, block, named_at, fresh);
            }
            let is_gained = gained.next_if(|next| **next == name).is_some();
            let it = &mut self.pools[pool as usize];
            if is_gained && counts_uses && it.seen.contains_key(&name) {
                it.renew(name, now);
            }
        }
    }

    /// Puts a block with known contents into a pool that has not got it.
    fn place(&mut self, pool: u32, name: u64, block: Block, seen_at: f64, fresh: &mut Vec<(Part, u64)>) {
        let it = &mut self.pools[pool as usize];
        it.unmeant.remove(&name);
        let moved = it.names.set(name, block, only(it.pool.tier));
        it.seen.insert(name, seen_at);
        it.note_announced(&[name]);
        moved.into_iter().for_each(|(name, parent)| self.stop_waiting(Part::Pool(pool), name, parent));
        self.trace(Part::Pool(pool), name, fresh);
        self.keep_to_room(pool);
    }

    /// The block that a block hash means: as a member's device says, else as the pool remembers, else as another tier of
    /// a member says.
    fn meaning(&self, pool: u32, name: u64) -> Option<Block> {
        let members = || self.ranks.values().filter(|it| it.pools.contains(&pool));
        let known = || members().filter_map(|it| it.names.get(name));
        let on_device = known().find(|known| known.on & only(Tier::Gpu) != 0);
        let known = on_device.or_else(|| self.pools[pool as usize].names.get(name)).or_else(|| known().next());
        known.map(|known| known.block)
    }
}

/// True if a block hash can wait for its contents in a pool.
fn it_has_room(it: &PoolPart, name: u64) -> bool {
    it.unmeant.len() < MOST_UNMEANT || it.unmeant.contains_key(&name)
}
