//! Lookup of the leading blocks of a prompt that each rank can load.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::Members;
use super::book::{LoadBook, PoolPart, RankPart};
use crate::types::Tier;

/// Consecutive blocks of a prompt in one place from which an engine can use or load them: a tier of its own, or a pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Segment {
    /// Number of blocks of the prompt before this segment (consecutive blocks in one place).
    pub start: u32,
    /// Number of blocks of the prompt up to and including the last one of this segment (consecutive blocks in one
    /// place).
    pub end: u32,
    /// Tier that has the blocks of this segment (consecutive blocks in one place).
    pub tier: Tier,
    /// Name of the pool that has the blocks; None if the worker itself has them.
    pub pool: Option<Arc<str>>,
    /// True if a removal of any block of this segment (consecutive blocks in one place) would have been announced;
    /// false for pools whose members do not announce removals.
    pub is_certain: bool,
    /// Seconds since the announcement of that chunk (blocks stored together) of the segment which was announced least
    /// recently; None outside pools.
    pub age: Option<f64>,
}

/// Leading part of a prompt that a rank's engine can use without computing it, and the places that have its blocks.
#[derive(Clone, PartialEq, Debug)]
pub struct Loadable {
    /// Name of the worker.
    pub worker: Arc<str>,
    /// Number of the worker's rank.
    pub rank: u32,
    /// Number of leading blocks in the engine's device memory.
    pub device: u32,
    /// Number of leading blocks in whole chunks of the engine's host memory alone, which another engine can pull. Chunks
    /// of a connector that serves no other engine (LMCache's) do not count.
    pub host: u32,
    /// True if host memory may hold more blocks than counted: a reset of the cache may have left them there.
    pub may_hold_more: bool,
    /// Places of the blocks, in the order of the prompt and without gaps.
    pub segments: Vec<Segment>,
    /// Number of leading blocks that the engine really uses: those on its device and those it loads. vLLM loads nothing
    /// if that would bring less than one chunk (blocks stored together), even if a chunk is there.
    pub used: u32,
}

impl Loadable {
    /// Number of leading blocks that the engine can use without computing them.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.segments.last().map_or(0, |last| last.end)
    }

    /// Number of leading blocks that the engine uses from its device and from its own host memory.
    #[must_use]
    pub fn own_used(&self) -> u32 {
        self.own_depth().min(self.used)
    }

    /// Number of leading blocks that the engine has on its device, continued by blocks in its own host memory.
    #[must_use]
    pub fn own_depth(&self) -> u32 {
        let own = |it: &&Segment| it.pool.is_none() && it.tier <= Tier::Cpu;
        self.segments.iter().take_while(own).last().map_or(0, |last| last.end)
    }
}

/// State of a walk along a prompt's blocks: the blocks' prefix hashes, and the segments (consecutive blocks in one
/// place) found so far.
struct Walk<'q> {
    prefixes: &'q [u64],
    segments: Vec<Segment>,
    at: u32,
    /// Number of blocks below which the engine does not load the blocks found: one chunk (blocks stored together) of the
    /// first place beyond the device. 0 before that place.
    least: u32,
}

impl<'q> Walk<'q> {
    fn new(prefixes: &'q [u64]) -> Self {
        Self { prefixes, segments: Vec::new(), at: 0, least: 0 }
    }

    /// Number of leading blocks that an engine with `device` blocks on its device uses.
    fn used(&self, device: u32) -> u32 {
        if self.at - device < self.least { device } else { self.at }
    }

    fn expect(&mut self, least: u32) {
        if self.least == 0 {
            self.least = least;
        }
    }

    /// End of the chunk that contains the walk's next block, with chunks of `blocks` blocks: as a number of blocks from
    /// the prompt's beginning, and as prefix hash of the chunk's last block. None if the prompt ends within the chunk.
    fn chunk(&self, blocks: u32) -> Option<(u32, u64)> {
        let end = (self.at / blocks + 1).checked_mul(blocks)?;
        Some((end, *self.prefixes.get(end as usize - 1)?))
    }

    fn take(&mut self, mut next: Segment) {
        self.at = next.end;
        if let Some(last) = self.segments.last_mut()
            && (last.tier, &last.pool) == (next.tier, &next.pool)
        {
            next.start = last.start;
            next.age = last.age.zip(next.age).map(|(a, b)| a.max(b));
            *last = next;
            return;
        }
        self.segments.push(next);
    }
}

/// Tiers beyond the device on which a rank may have blocks of its own, in the order in which lookups search them.
const OWN: [Tier; 3] = [Tier::Cpu, Tier::Disk, Tier::External];

impl LoadBook {
    /// Finds the leading blocks of a prompt that each rank can use, for all ranks that offload or may load from a pool.
    /// `prefixes`: prefix hashes of the prompt's blocks; `device`: number of leading blocks on the device of a worker's
    /// rank. Sorted by worker and rank.
    pub(crate) fn look_up(&self, prefixes: &[u64], device: impl Fn(&str, u32) -> u32) -> Vec<Loadable> {
        let mut found: Vec<Loadable> =
            self.ranks.values().map(|it| self.walk(it, prefixes, device(&it.worker, it.rank))).collect();
        // Those that have never announced anything, but may load.
        let named = self.pools.iter().flat_map(|it| match &it.pool.members {
            Members::All => &[][..],
            Members::Named(names) => names,
        });
        for worker in named {
            if !found.iter().any(|it| *it.worker == **worker) {
                found.push(self.walk_pools(worker, prefixes));
            }
        }
        found.sort_unstable_by(|a, b| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)));
        found
    }

    /// Finds the segments (consecutive blocks in one place) of a prompt that a rank uses from pools whose members may not
    /// announce removals. `prefixes`: prefix hashes of the prompt's blocks; `device`: number of leading blocks on the
    /// rank's device.
    pub(crate) fn unsure(&self, prefixes: &[u64], worker: &str, rank: u32, device: u32) -> Vec<Segment> {
        let it = self.ranks.values().find(|it| *it.worker == *worker && it.rank == rank);
        let found = it.map_or_else(|| self.walk_pools(worker, prefixes), |it| self.walk(it, prefixes, device));
        let used = found.used;
        found.segments.into_iter().filter(|it| it.pool.is_some() && !it.is_certain && it.start < used).collect()
    }

    /// Finds the blocks of a prompt that a worker which has never announced anything can load from pools.
    fn walk_pools(&self, worker: &str, prefixes: &[u64]) -> Loadable {
        let mut walk = Walk::new(prefixes);
        let pools = || self.pools.iter().filter(|it| it.pool.members.has(worker));
        let reach = self.reach(prefixes, None, pools());
        while pools().any(|pool| self.step_in_pool(&mut walk, pool, reach)) {}
        let (used, segments) = (walk.used(0), walk.segments);
        Loadable { worker: Arc::from(worker), rank: 0, device: 0, host: 0, may_hold_more: false, segments, used }
    }

    fn walk(&self, it: &RankPart, prefixes: &[u64], device: u32) -> Loadable {
        let mut walk = Walk::new(prefixes);
        if device > 0 {
            let (start, end, tier) = (0, device, Tier::Gpu);
            walk.take(Segment { start, end, tier, pool: None, is_certain: true, age: None });
        }
        let pools = || it.pools.iter().map(|&pool| &self.pools[pool as usize]);
        let reach = self.reach(prefixes, Some(it), pools());
        while OWN.iter().any(|&tier| step_in_tier(&mut walk, it, tier, reach))
            || pools().any(|pool| self.step_in_pool(&mut walk, pool, reach))
        {}
        let mut host = Walk::new(prefixes);
        while step_in_tier(&mut host, it, Tier::Cpu, 0) {}
        Loadable {
            worker: it.worker.clone(),
            rank: it.rank,
            device,
            host: host.at,
            may_hold_more: it.is_in_doubt,
            used: walk.used(device),
            segments: walk.segments,
        }
    }

    /// Number of a prompt's leading blocks that a rank has on its own tiers beyond the device, or in pools whose chunks
    /// are only loaded from the beginning of a prompt on. 0 if there are no chunks of that kind, on own tiers or in pools.
    fn reach<'p>(
        &self,
        prefixes: &[u64],
        own: Option<&RankPart>,
        pools: impl Iterator<Item = &'p PoolPart> + Clone,
    ) -> u32 {
        let gapless = pools.filter(|it| it.is_from_beginning());
        if gapless.clone().next().is_none() && !own.is_some_and(|it| it.learnt.has_gapless()) {
            return 0;
        }
        let mut walk = Walk::new(prefixes);
        while own.is_some_and(|it| OWN.iter().any(|&tier| step_in_tier(&mut walk, it, tier, u32::MAX)))
            || gapless.clone().any(|pool| self.step_in_pool(&mut walk, pool, u32::MAX))
        {}
        walk.at
    }

    /// Extends a walk by the prompt's next chunk, if a pool has it; returns true if so. `reach`: end of the blocks that can
    /// be loaded from pools whose chunks are only loaded from the beginning of a prompt on.
    fn step_in_pool(&self, walk: &mut Walk<'_>, it: &PoolPart, reach: u32) -> bool {
        let Some((end, prefix)) = walk.chunk(it.chunk()) else { return false };
        if it.is_from_beginning() && end > reach {
            return false;
        }
        let Some(seen) = it.last_seen(prefix) else { return false };
        let age = (self.outside.time() - seen).max(0.0);
        if it.pool.lifetime.is_some_and(|lifetime| age > lifetime) {
            return false;
        }
        // LMCache's and Mooncake's connectors load any number of blocks.
        walk.expect(if it.is_from_beginning() || it.pool.follows_store { 1 } else { it.chunk() });
        let (tier, is_certain) = (it.pool.tier, it.pool.announces_removals && it.is_whole);
        let segment = Segment { start: walk.at, end, tier, pool: Some(it.name.clone()), is_certain, age: Some(age) };
        walk.take(segment);
        true
    }
}

/// Extends a walk by the prompt's next chunk, if the rank has it on a tier of its own; returns true if so. `reach`: end
/// of the blocks that can be loaded from tiers whose chunks are only loaded from the beginning of a prompt on.
fn step_in_tier(walk: &mut Walk<'_>, it: &RankPart, tier: Tier, reach: u32) -> bool {
    let slot = tier as usize - 1;
    let chunk = it.settings.chunks[slot].map_or(it.learnt.blocks[slot], NonZeroU32::get);
    let Some((end, _)) = walk.chunk(chunk).filter(|(_, prefix)| it.names.holds(*prefix, tier)) else { return false };
    let is_gapless = it.learnt.is_gapless(tier);
    if is_gapless && end > reach {
        return false;
    }
    // LMCache's connector loads any number of blocks.
    walk.expect(if is_gapless { 1 } else { chunk });
    walk.take(Segment { start: walk.at, end, tier, pool: None, is_certain: true, age: None });
    true
}
