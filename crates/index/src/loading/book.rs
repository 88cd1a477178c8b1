//! Book of loadable blocks: the blocks that ranks have offloaded to host memory or disks, and those in pools, which are
//! stores that several engines load from.
//!
//! The book has one part for each rank and each pool. A rank's part maps block hashes to blocks, like the main index;
//! if a store on the device gives a block hash another content, the device's content counts. A pool's part has the
//! block hashes that its member workers stored there. The block behind a hash is looked up first on the publisher's
//! device, then in the pool, then on the publisher's other tiers, and last in the event, which may leave out a salt.
//! Engines that share a pool use the same block hashes. So if the chain from a block to the beginning of its prompt is
//! incomplete in one part, another part with the same pool may complete it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::names::{Names, Tiers, only};
use super::shrink::AnnouncementOrder;
use super::{OffloadSettings, SharedPool};
use crate::hash::next_prefix_hash;
use crate::segmented::Map;
use crate::types::Tier;

/// Block hash of a rank, with the block behind it and the set of tiers that have the block. The block is None and the
/// set empty if the rank does not have it.
pub(crate) struct HeldName {
    pub(crate) name: u64,
    pub(crate) block: Option<(Option<u64>, u64)>,
    pub(crate) on: u8,
}

/// Blocks of one rank that its engine can load.
pub(super) struct RankPart {
    pub(super) worker: Arc<str>,
    pub(super) rank: u32,
    pub(super) names: Names,
    /// Numbers of the pools from which the rank may load, in the order in which the pools were added.
    pub(super) pools: SmallVec<[u32; 2]>,
    pub(super) settings: OffloadSettings,
    pub(super) learnt: LearntChunks,
    /// True if blocks may remain in host memory that the book has deleted: engines do not announce if a reset of their
    /// cache also empties host memory.
    pub(super) is_in_doubt: bool,
    /// True once the blocks are in the book that the rank had when it was added.
    pub(super) is_filled: bool,
}

/// Chunks of one rank as learnt from store events. A chunk is a group of consecutive blocks that the engine stores and
/// loads together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct LearntChunks {
    /// Chunk lengths in blocks, for host memory, disk and external storage.
    pub(super) blocks: [u32; 3],
    /// Set of tiers whose chunks are only loaded if they continue, without a gap from the prompt's beginning, what is
    /// beyond the device.
    gapless: Tiers,
}

impl LearntChunks {
    const NONE: Self = Self { blocks: [1; 3], gapless: 0 };

    /// True if chunks of a tier are only loaded if they continue, without a gap from the prompt's beginning, what is
    /// beyond the device.
    #[inline]
    pub(super) fn is_gapless(&self, tier: Tier) -> bool {
        self.gapless & only(tier) != 0
    }

    /// True if chunks of any tier are only loaded without a gap from the prompt's beginning.
    pub(super) fn has_gapless(&self) -> bool {
        self.gapless != 0
    }
}

/// Blocks of one pool, a store that several engines load from.
pub(super) struct PoolPart {
    pub(super) pool: SharedPool,
    pub(super) name: Arc<str>,
    pub(super) names: Names,
    /// Number of blocks in a chunk (blocks stored and loaded together), as learnt from the members' store events; 0
    /// before the first one.
    learnt: u32,
    /// True if a member's store events have shown that its engine loads from this tier only what continues, without a
    /// gap from the prompt's beginning, what is beyond the device.
    is_gapless: bool,
    /// Time of the last evidence that a block is in the pool, in seconds, by block hash.
    pub(super) seen: Map<u64, f64>,
    /// Order in which blocks were announced, the oldest first; used only if the pool's capacity is limited.
    pub(super) announced: AnnouncementOrder,
    /// Block hashes that the store has named and whose contents no member has told yet, with the time in seconds.
    pub(super) unmeant: Map<u64, f64>,
    /// False while a removal that the store announced may have been missed.
    pub(super) is_whole: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Rank(u32),
    Pool(u32),
}

/// All blocks that engines can load: those that ranks have offloaded, and those in pools.
#[derive(Default)]
pub(crate) struct LoadBook {
    pub(super) ranks: HashMap<u32, RankPart>,
    pub(super) pools: Vec<PoolPart>,
    settings: HashMap<Box<str>, OffloadSettings>,
    /// Offload settings of workers without settings of their own.
    usual: OffloadSettings,
    /// Chunks as learnt from store events, by worker and rank. There is no entry if all chunks have one block.
    learnt: HashMap<(Box<str>, u32), LearntChunks>,
    /// Blocks whose prefix hash is unknown because a preceding block is unknown: lists of block hashes, each with the
    /// rank or pool that holds it, by the block hash of the missing parent.
    waiting: Map<u64, SmallVec<[(Part, u64); 2]>>,
    pub(super) outside: Arc<Outside>,
}

/// Clock of the book of loadable blocks, and a flag that says if the book is used; read and set without a lock of the
/// book.
#[derive(Default)]
pub(crate) struct Outside {
    /// Current time in seconds, as the bits of an `f64`.
    now: AtomicU64,
    /// True if the book of loadable blocks has any ranks or pools.
    is_in_use: AtomicBool,
}

impl Outside {
    pub(crate) fn set_time(&self, seconds: f64) {
        self.now.store(seconds.to_bits(), Relaxed);
    }

    pub(crate) fn time(&self) -> f64 {
        f64::from_bits(self.now.load(Relaxed))
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.is_in_use.load(Relaxed)
    }
}

impl LoadBook {
    pub(crate) fn bytes(&self) -> usize {
        let ranks = self.ranks.values().map(|it| it.names.bytes()).sum::<usize>();
        let pools = self.pools.iter().map(PoolPart::bytes).sum::<usize>();
        let maps = self.ranks.allocation_size()
            + self.settings.allocation_size()
            + self.learnt.allocation_size()
            + self.waiting.bytes();
        ranks + pools + maps + self.pools.capacity() * size_of::<PoolPart>()
    }

    pub(crate) fn outside(&self) -> Arc<Outside> {
        self.outside.clone()
    }

    pub(crate) fn settings_of(&self, worker: &str) -> OffloadSettings {
        self.settings.get(worker).copied().unwrap_or(self.usual)
    }

    pub(crate) fn set_offloading(&mut self, worker: &str, settings: OffloadSettings) {
        self.settings.insert(worker.into(), settings);
        self.ranks.values_mut().filter(|it| *it.worker == *worker).for_each(|it| it.settings = settings);
    }

    pub(crate) fn set_usual(&mut self, settings: OffloadSettings) {
        self.usual = settings;
        let Self { ranks, settings: set, .. } = self;
        ranks.values_mut().filter(|it| !set.contains_key(&*it.worker)).for_each(|it| it.settings = settings);
    }

    pub(crate) fn learn_chunk(&mut self, worker: &str, rank: u32, tier: Tier, blocks: u32, is_gapless: bool) {
        let Some(slot) = (tier as usize).checked_sub(1) else { return };
        let chunks = self.learnt.entry((worker.into(), rank)).or_insert(LearntChunks::NONE);
        chunks.blocks[slot] = blocks.max(1);
        chunks.gapless = if is_gapless { chunks.gapless | only(tier) } else { chunks.gapless & !only(tier) };
        let chunks = *chunks;
        if chunks == LearntChunks::NONE {
            self.learnt.remove(&(Box::from(worker), rank));
        }
        let is_it = |it: &&mut RankPart| *it.worker == *worker && it.rank == rank;
        self.ranks.values_mut().filter(is_it).for_each(|it| it.learnt = chunks);
        for it in self.pools.iter_mut().filter(|it| it.pool.tier == tier && it.pool.members.has(worker)) {
            it.learnt = gcd(it.learnt, blocks.max(1));
            it.is_gapless |= is_gapless;
        }
    }

    /// Forgets the learnt chunk lengths of a removed worker, as a later worker of the same name may use others.
    pub(crate) fn forget_chunks(&mut self, worker: &str) {
        self.learnt.retain(|(its, _), _| **its != *worker);
        self.learnt.shrink_to_fit();
    }

    /// Adds a pool. If a pool of this name exists, changes its settings and keeps its blocks.
    pub(crate) fn add_pool(&mut self, pool: SharedPool) {
        match self.pools.iter().position(|it| it.pool.name == pool.name) {
            Some(number) => {
                let it = &mut self.pools[number];
                it.pool = pool;
                it.sort_announced();
                self.keep_to_room(number as u32);
            }
            None => {
                let name = Arc::from(&*pool.name);
                let (names, seen, unmeant) = (Names::default(), Map::default(), Map::default());
                let announced = AnnouncementOrder::default();
                let slot = pool.tier as usize - 1;
                let of_members = || self.learnt.iter().filter(|((worker, _), _)| pool.members.has(worker));
                let learnt = of_members().map(|(_, chunks)| chunks.blocks[slot]).filter(|it| *it > 1).fold(0, gcd);
                let (is_gapless, is_whole) = (of_members().any(|(_, chunks)| chunks.is_gapless(pool.tier)), true);
                let part = PoolPart { pool, name, names, learnt, is_gapless, seen, announced, unmeant, is_whole };
                self.pools.push(part);
            }
        }
        self.outside.is_in_use.store(true, Relaxed);
        let Self { ranks, pools, .. } = self;
        ranks.values_mut().for_each(|it| it.pools = pools_of(pools, &it.worker));
    }

    /// True if a worker is a member of at least one pool, and so may load from it.
    pub(crate) fn is_member(&self, worker: &str) -> bool {
        self.pools.iter().any(|it| it.pool.members.has(worker))
    }

    /// True if the blocks that a worker announces on this tier are in a pool, rather than in a store of its own.
    pub(crate) fn is_in_pool(&self, worker: &str, tier: Tier) -> bool {
        self.pools.iter().any(|it| it.pool.tier == tier && it.pool.members.has(worker))
    }

    /// Adds a rank to the book of loadable blocks, under its number.
    pub(crate) fn track(&mut self, number: u32, worker: Arc<str>, rank: u32) {
        let (pools, settings) = (pools_of(&self.pools, &worker), self.settings_of(&worker));
        let learnt = self.learnt.get(&(Box::from(&*worker), rank)).copied().unwrap_or(LearntChunks::NONE);
        let (names, is_in_doubt, is_filled) = (Names::default(), false, false);
        let part = RankPart { worker, rank, names, pools, settings, learnt, is_in_doubt, is_filled };
        self.ranks.insert(number, part);
        self.outside.is_in_use.store(true, Relaxed);
    }

    /// Number of the pool to which a rank's events on this tier belong; None if they belong to no pool.
    pub(crate) fn pool_at(&self, rank: u32, tier: Tier) -> Option<u32> {
        let pools = &self.ranks.get(&rank)?.pools;
        pools.iter().copied().find(|&pool| self.pools[pool as usize].pool.tier == tier)
    }

    /// True if a rank holds a block with this prefix hash on its device.
    pub(crate) fn is_on_device(&self, rank: u32, prefix: u64) -> bool {
        self.ranks.get(&rank).is_some_and(|it| it.names.holds(prefix, Tier::Gpu))
    }

    /// Block hashes that a rank holds on a tier of its own, each with true if the device holds an equal block with the
    /// same blocks before it.
    pub(crate) fn names_on(&self, rank: u32, tier: Tier) -> Vec<(u64, bool)> {
        let Some(it) = self.ranks.get(&rank) else { return Vec::new() };
        let is_on_device = |name: u64| {
            it.names.get(name).and_then(|known| known.prefix).is_some_and(|prefix| it.names.holds(prefix, Tier::Gpu))
        };
        it.names.names_on(only(tier)).into_iter().map(|name| (name, is_on_device(name))).collect()
    }

    pub(crate) fn has_pools(&self, rank: u32) -> bool {
        self.ranks.get(&rank).is_some_and(|it| !it.pools.is_empty())
    }

    /// Block behind a block hash in the pools of a rank, as parent block hash and content hash; None if no pool has it.
    pub(crate) fn block_in_pools(&self, rank: u32, name: u64) -> Option<(Option<u64>, u64)> {
        let pools = &self.ranks.get(&rank)?.pools;
        pools.iter().find_map(|&pool| Some(self.pools[pool as usize].names.get(name)?.block))
    }

    /// Block behind a block hash in the pools of a worker, as parent block hash and content hash; None if no pool has
    /// it.
    pub(crate) fn block_in_pools_of(&self, worker: &str, name: u64) -> Option<(Option<u64>, u64)> {
        let mut pools = self.pools.iter().filter(|it| it.pool.members.has(worker));
        pools.find_map(|it| Some(it.names.get(name)?.block))
    }

    /// Applies changes of a rank's loadable blocks. `device_says`: true if the changes come from a store on the device,
    /// whose contents then also replace those in the rank's pools.
    pub(crate) fn sync(&mut self, rank: u32, said: &[HeldName], device_says: bool) {
        let Some(it) = self.ranks.get_mut(&rank) else { return };
        let mut forgotten: SmallVec<[(u64, Option<u64>); 8]> = SmallVec::new();
        let mut gained: SmallVec<[u64; 16]> = SmallVec::new();
        for said in said {
            match said.block {
                Some(block) if said.on != 0 => {
                    if it.is_filled && it.names.get(said.name).is_none_or(|known| known.on == 0) {
                        gained.push(said.name);
                    }
                    forgotten.extend(it.names.set(said.name, block, said.on));
                }
                _ => forgotten.extend(it.names.release(said.name)),
            }
        }
        it.is_filled = true;
        let all_pools = it.pools.clone();
        let pools = if device_says { it.pools.clone() } else { SmallVec::new() };
        forgotten.iter().for_each(|&(name, parent)| self.stop_waiting(Part::Rank(rank), name, parent));
        let held = || said.iter().filter(|said| said.on != 0);
        let mut fresh = Vec::new();
        held().for_each(|said| self.trace(Part::Rank(rank), said.name, &mut fresh));
        for pool in pools {
            let on_device = || held().filter(|said| said.on & only(Tier::Gpu) != 0);
            for said in on_device() {
                let names = &mut self.pools[pool as usize].names;
                if let (Some(known), Some(block)) = (names.get(said.name), said.block) {
                    for (name, parent) in names.set(said.name, block, known.on) {
                        self.stop_waiting(Part::Pool(pool), name, parent);
                    }
                }
            }
            for said in on_device() {
                let Some(prefix) = self.ranks[&rank].names.get(said.name).and_then(|known| known.prefix) else {
                    continue;
                };
                let mut named = Vec::new();
                self.pools[pool as usize].names.put(said.name, Some(prefix), &mut named);
                fresh.extend(named.into_iter().map(|name| (Part::Pool(pool), name)));
            }
        }
        for pool in all_pools {
            let blocks = held().filter_map(|said| Some((said.name, said.block?)));
            self.note_described(pool, blocks, &gained, &mut fresh);
        }
        self.settle(fresh);
    }

    /// Adds a chain of consecutive blocks that a rank has stored in a pool. The first block continues `parent`.
    pub(crate) fn store_in_pool(&mut self, pool: u32, rank: u32, parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let Some(publisher) = self.ranks.get(&rank) else { return };
        let (it, now) = (&mut self.pools[pool as usize], self.outside.time());
        let on = only(it.pool.tier);
        let (mut parent, mut moved, mut stored) = (parent, Vec::new(), Vec::with_capacity(names.len()));
        let mut absent = Vec::new();
        for (&name, &content) in names.iter().zip(contents) {
            let before = parent.replace(name);
            let named_at = it.unmeant.remove(&name);
            let seen_at = if it.pool.follows_store { it.seen.get(&name).copied().or(named_at) } else { Some(now) };
            let publishers = publisher.names.get(name);
            let on_device = publishers.filter(|known| known.on & only(Tier::Gpu) != 0);
            let known = on_device.or_else(|| it.names.get(name)).or(publishers);
            let block = known.map_or((before, content), |known| known.block);
            let Some(seen_at) = seen_at else {
                // The store does not have it, but perhaps a block that continues it, whose prompt begins with it.
                if it.names.get(name).is_none() {
                    moved.extend(it.names.set(name, block, 0));
                    absent.push(name);
                }
                continue;
            };
            moved.extend(it.names.set(name, block, on));
            if it.seen.insert(name, seen_at).is_none() || !it.pool.follows_store {
                stored.push(name);
            }
        }
        it.note_announced(&stored);
        absent.iter().rev().for_each(|&name| moved.extend(it.names.forget_unused(name)));
        moved.into_iter().for_each(|(name, parent)| self.stop_waiting(Part::Pool(pool), name, parent));
        let mut fresh = Vec::new();
        names.iter().for_each(|&name| self.trace(Part::Pool(pool), name, &mut fresh));
        self.settle(fresh);
        self.keep_to_room(pool);
    }

    /// Removes blocks from a pool, in any order. Returns the number of block hashes that the pool did not have.
    pub(crate) fn remove_from_pool(&mut self, pool: u32, names: &[u64]) -> usize {
        if self.pools[pool as usize].pool.follows_store {
            return 0;
        }
        names.iter().rev().filter(|name| !self.take_from_pool(pool, **name)).count()
    }

    /// Removes from a pool a chunk that an engine failed to load, and all blocks that continue it. `prefix`: prefix
    /// hash of the chunk's last block. Returns the number of blocks removed.
    pub(crate) fn lose_from_pool(&mut self, pool: &str, prefix: u64) -> usize {
        let Some(number) = self.pools.iter().position(|it| *it.name == *pool) else { return 0 };
        let mut lost = 0;
        for name in self.pools[number].names.of_prefix(prefix).to_vec() {
            let it = &mut self.pools[number];
            let before = it.names.get(name).and_then(|known| known.block.0);
            let mut gone = it.names.forget_from(name);
            for (name, _) in &gone {
                lost += usize::from(it.seen.remove(name).is_some());
                it.announced.forget(*name);
            }
            gone.extend(before.into_iter().flat_map(|before| it.names.forget_unused(before)));
            gone.into_iter().for_each(|(name, parent)| self.stop_waiting(Part::Pool(number as u32), name, parent));
        }
        lost
    }

    /// Removes from a pool the chunk with the block after the `reused` leading blocks of a prompt, and all blocks that
    /// continue it, unless the chunk was announced after the time `until`. `prefixes`: prefix hashes of the prompt's
    /// blocks. Returns the number of blocks removed.
    pub(crate) fn miss_in_pool(&mut self, pool: &str, prefixes: &[u64], reused: u32, until: f64) -> usize {
        let Some(it) = self.pools.iter().find(|it| *it.name == *pool) else { return 0 };
        let last = (reused / it.chunk() + 1) * it.chunk() - 1;
        let Some(&prefix) = prefixes.get(last as usize) else { return 0 };
        if it.last_seen(prefix).is_none_or(|seen| seen > until) { 0 } else { self.lose_from_pool(pool, prefix) }
    }

    /// Removes the loadable blocks of a rank, from one tier or from all. Blocks in pools stay.
    pub(crate) fn clear(&mut self, rank: u32, tier: Option<Tier>) {
        let Some(it) = self.ranks.get_mut(&rank) else { return };
        let gone = tier.map_or(Tiers::MAX, only);
        if tier.is_none_or(|tier| tier == Tier::Cpu) {
            it.is_in_doubt = false;
        }
        if tier.is_none() {
            for (name, parent) in std::mem::take(&mut it.names).all() {
                self.stop_waiting(Part::Rank(rank), name, parent);
            }
            return;
        }
        for name in it.names.names_on(gone) {
            let Some(it) = self.ranks.get_mut(&rank) else { return };
            let Some(known) = it.names.get(name) else { continue };
            if known.on & !gone != 0 {
                it.names.set(name, known.block, known.on & !gone);
            } else {
                for (gone, parent) in it.names.release(name) {
                    self.stop_waiting(Part::Rank(rank), gone, parent);
                }
            }
        }
    }

    /// Marks a rank whose engine, after a reset of its cache, may still have offloaded blocks that were deleted from
    /// the book of loadable blocks.
    pub(crate) fn doubt(&mut self, rank: u32) {
        if let Some(it) = self.ranks.get_mut(&rank) {
            it.is_in_doubt = true;
        }
    }

    pub(crate) fn is_in_doubt(&self, rank: u32) -> bool {
        self.ranks.get(&rank).is_some_and(|it| it.is_in_doubt)
    }

    /// Removes a rank and its blocks from the book of loadable blocks.
    pub(crate) fn drop_rank(&mut self, rank: u32) {
        self.clear(rank, None);
        self.ranks.remove(&rank);
        // What is empty gives back its memory.
        if self.ranks.is_empty() {
            self.ranks = HashMap::new();
        }
        if self.waiting.is_empty() {
            self.waiting = Map::default();
        }
        self.outside.is_in_use.store(!(self.ranks.is_empty() && self.pools.is_empty()), Relaxed);
    }

    fn names(&self, part: Part) -> Option<&Names> {
        match part {
            Part::Rank(rank) => self.ranks.get(&rank).map(|it| &it.names),
            Part::Pool(pool) => self.pools.get(pool as usize).map(|it| &it.names),
        }
    }

    /// Parts of the book with the same block hashes as a given part: for a rank, its pools; for a pool, the ranks that
    /// may load from it.
    fn beside(&self, part: Part) -> SmallVec<[Part; 8]> {
        match part {
            Part::Rank(rank) => {
                self.ranks.get(&rank).into_iter().flat_map(|it| &it.pools).map(|&pool| Part::Pool(pool)).collect()
            }
            Part::Pool(pool) => self
                .ranks
                .iter()
                .filter(|(_, it)| it.pools.contains(&pool))
                .map(|(&rank, _)| Part::Rank(rank))
                .collect(),
        }
    }

    fn is_beside(&self, part: Part, other: Part) -> bool {
        let may_load = |rank, pool| self.ranks.get(&rank).is_some_and(|it| it.pools.contains(&pool));
        match (part, other) {
            (Part::Rank(rank), Part::Pool(pool)) | (Part::Pool(pool), Part::Rank(rank)) => may_load(rank, pool),
            _ => part == other,
        }
    }

    /// Finds the prefix hash of a block if it is unknown: computes it from the parent's prefix hash, or copies it from
    /// another rank or pool that holds an equal block. Otherwise adds the block to those that wait for their parent.
    /// Appends to `fresh` all block hashes whose prefix hash has become known.
    pub(super) fn trace(&mut self, part: Part, name: u64, fresh: &mut Vec<(Part, u64)>) {
        let Some(known) = self.names(part).and_then(|names| names.get(name)) else { return };
        if known.prefix.is_some() {
            return;
        }
        let (parent, content) = known.block;
        let prefix = match parent {
            None => Some(content),
            Some(parent) => {
                self.trace_from(part, parent).map(|prefix| next_prefix_hash(prefix, content)).or_else(|| {
                    let same =
                        |other: &Part| self.names(*other)?.get(name).filter(|it| it.block == known.block)?.prefix;
                    self.beside(part).iter().find_map(same)
                })
            }
        };
        let Some(prefix) = prefix else {
            if let Some(parent) = parent {
                let waiting = self.waiting.get_or_insert_with(parent, SmallVec::new);
                if !waiting.contains(&(part, name)) {
                    waiting.push((part, name));
                }
            }
            return;
        };
        let names = match part {
            Part::Rank(rank) => self.ranks.get_mut(&rank).map(|it| &mut it.names),
            Part::Pool(pool) => self.pools.get_mut(pool as usize).map(|it| &mut it.names),
        };
        let mut named = Vec::new();
        if let Some(names) = names {
            names.put(name, Some(prefix), &mut named);
        }
        fresh.extend(named.into_iter().map(|name| (part, name)));
    }

    /// Prefix hash of a parent block, looked up in one part of the book (a rank or a pool) and then in the parts that
    /// use the same block hashes; None if unknown.
    fn trace_from(&self, part: Part, parent: u64) -> Option<u64> {
        let prefix = |part: Part| self.names(part)?.get(parent)?.prefix;
        prefix(part).or_else(|| self.beside(part).into_iter().find_map(prefix))
    }

    /// Finds the prefix hashes of blocks that waited for a parent in `fresh`, then of the blocks that waited for these
    /// blocks, and so on.
    pub(super) fn settle(&mut self, mut fresh: Vec<(Part, u64)>) {
        while !self.waiting.is_empty()
            && let Some((part, name)) = fresh.pop()
        {
            let Some(waiting) = self.waiting.remove(&name) else { continue };
            let (now, later): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) =
                waiting.into_iter().partition(|&(other, _)| self.is_beside(part, other));
            if !later.is_empty() {
                self.waiting.insert(name, later);
            }
            now.into_iter().for_each(|(other, name)| self.trace(other, name, &mut fresh));
        }
    }

    pub(super) fn stop_waiting(&mut self, part: Part, name: u64, parent: Option<u64>) {
        let Some(parent) = parent.filter(|_| !self.waiting.is_empty()) else { return };
        if let Some(waiting) = self.waiting.get_mut(&parent) {
            waiting.retain(|it| *it != (part, name));
            if waiting.is_empty() {
                self.waiting.remove(&parent);
            }
        }
    }

    /// True if the maps in the book of loadable blocks agree with each other; for tests.
    #[cfg(feature = "testing")]
    pub(crate) fn is_consistent(&self) -> bool {
        self.ranks.values().all(|it| it.names.is_consistent())
            && self.pools.iter().all(|it| it.names.is_consistent() && it.names.len() >= it.seen.len())
    }
}

impl PoolPart {
    fn bytes(&self) -> usize {
        self.names.bytes() + self.seen.bytes() + self.announced.bytes() + self.unmeant.bytes()
    }

    /// Number of blocks in a chunk (blocks stored and loaded together) of this pool: as configured, or else as learnt
    /// from stores; at least 1.
    pub(super) fn chunk(&self) -> u32 {
        self.pool.chunk.map_or(self.learnt.max(1), NonZeroU32::get)
    }

    /// True if engines load from this pool only what continues, without a gap from the prompt's beginning, what they find
    /// beyond their devices.
    pub(super) fn is_from_beginning(&self) -> bool {
        self.pool.from_beginning || self.is_gapless
    }

    /// Time of the last evidence that the pool has a block with this prefix hash, in seconds; None if there was none.
    pub(super) fn last_seen(&self, prefix: u64) -> Option<f64> {
        self.names.of_prefix(prefix).iter().filter_map(|name| self.seen.get(name).copied()).reduce(f64::max)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn pools_of(pools: &[PoolPart], worker: &str) -> SmallVec<[u32; 2]> {
    (0..).zip(pools).filter(|(_, it)| it.pool.members.has(worker)).map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_of_workers_that_are_gone() {
        let mut book = LoadBook::default();
        for number in 0..1_000 {
            let worker = format!("pod-{number}");
            book.learn_chunk(&worker, 0, Tier::Cpu, 4, true);
            book.track(number, worker.as_str().into(), 0);
            book.drop_rank(number);
            book.forget_chunks(&worker);
        }
        assert_eq!((book.ranks.len(), book.learnt.len()), (0, 0));
        assert_eq!(book.bytes(), LoadBook::default().bytes());
    }
}
