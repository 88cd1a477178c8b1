//! Lookup of the part of a prompt that each rank can load.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::Members;
use super::book::{LoadBook, PoolPart, RankPart};
use crate::types::Tier;

/// Consecutive blocks of a prompt that an engine has in, or can load from, one place.
#[derive(Clone, PartialEq, Debug)]
pub struct Segment {
    /// Number of the prompt's blocks before the segment.
    pub start: u32,
    /// Number of the prompt's blocks up to the segment's end.
    pub end: u32,
    /// Tier that has the blocks.
    pub tier: Tier,
    /// Name of the pool that has the blocks; None if the worker itself has them.
    pub pool: Option<Arc<str>>,
    /// True if the removal of any of the blocks would have been announced.
    pub is_certain: bool,
    /// Seconds since the last announcement of the segment's oldest chunk; None outside pools.
    pub age: Option<f64>,
}

/// Part of a prompt that a rank's engine can use without computing it.
#[derive(Clone, PartialEq, Debug)]
pub struct Loadable {
    /// Name of the worker.
    pub worker: Arc<str>,
    /// Number of the worker's rank.
    pub rank: u32,
    /// Number of leading blocks on the device.
    pub device: u32,
    /// Number of leading blocks in whole chunks of host memory alone: what another engine can pull from this one.
    pub host: u32,
    /// True if a reset may have left blocks in host memory that are not counted here.
    pub may_hold_more: bool,
    /// Sources of the blocks, in the order of the prompt and without gaps.
    pub segments: Vec<Segment>,
}

impl Loadable {
    /// Number of leading blocks that the engine can use without computing them.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.segments.last().map_or(0, |last| last.end)
    }

    /// Number of leading blocks that the engine has on its device, continued by those in its host memory.
    #[must_use]
    pub fn own_depth(&self) -> u32 {
        let own = |it: &&Segment| it.pool.is_none() && it.tier <= Tier::Cpu;
        self.segments.iter().take_while(own).last().map_or(0, |last| last.end)
    }
}

/// Walk along a prompt: the prefix hashes of its blocks, and the segments found so far.
struct Walk<'q> {
    prefixes: &'q [u64],
    segments: Vec<Segment>,
    at: u32,
}

impl Walk<'_> {
    /// End of the chunk of `blocks` blocks that contains the next block, as a number of the prompt's blocks, and the
    /// prefix hash there; None if the prompt ends before.
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

/// Tiers beyond the device that a rank has for itself.
const OWN: [Tier; 3] = [Tier::Cpu, Tier::Disk, Tier::External];

impl LoadBook {
    /// Looks up which part of a prompt each rank can use that offloads or may load from a pool. `prefixes`: prefix
    /// hashes of the prompt's blocks; `device`: number of leading blocks on a rank's device. Sorted by worker and rank.
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
                let mut walk = Walk { prefixes, segments: Vec::new(), at: 0 };
                let pools = || self.pools.iter().filter(|it| it.pool.members.has(worker));
                let reach = self.reach(prefixes, None, pools());
                while pools().any(|pool| self.step_in_pool(&mut walk, pool, reach)) {}
                let segments = walk.segments;
                let worker = Arc::from(&**worker);
                found.push(Loadable { worker, rank: 0, device: 0, host: 0, may_hold_more: false, segments });
            }
        }
        found.sort_unstable_by(|a, b| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)));
        found
    }

    fn walk(&self, it: &RankPart, prefixes: &[u64], device: u32) -> Loadable {
        let mut walk = Walk { prefixes, segments: Vec::new(), at: 0 };
        if device > 0 {
            let (start, end, tier) = (0, device, Tier::Gpu);
            walk.take(Segment { start, end, tier, pool: None, is_certain: true, age: None });
        }
        let pools = || it.pools.iter().map(|&pool| &self.pools[pool as usize]);
        let reach = self.reach(prefixes, Some(it), pools());
        while OWN.iter().any(|&tier| step_in_tier(&mut walk, it, tier))
            || pools().any(|pool| self.step_in_pool(&mut walk, pool, reach))
        {}
        let mut host = Walk { prefixes, segments: Vec::new(), at: 0 };
        while step_in_tier(&mut host, it, Tier::Cpu) {}
        Loadable {
            worker: it.worker.clone(),
            rank: it.rank,
            device,
            host: host.at,
            may_hold_more: it.is_in_doubt,
            segments: walk.segments,
        }
    }

    /// Number of leading blocks that pools have which are only loaded from the beginning of a prompt on, or a rank on its
    /// own tiers beyond the device. 0 without such pools.
    fn reach<'p>(
        &self,
        prefixes: &[u64],
        own: Option<&RankPart>,
        pools: impl Iterator<Item = &'p PoolPart> + Clone,
    ) -> u32 {
        let gapless = pools.filter(|it| it.pool.from_beginning);
        if gapless.clone().next().is_none() {
            return 0;
        }
        let mut walk = Walk { prefixes, segments: Vec::new(), at: 0 };
        while own.is_some_and(|it| OWN.iter().any(|&tier| step_in_tier(&mut walk, it, tier)))
            || gapless.clone().any(|pool| self.step_in_pool(&mut walk, pool, u32::MAX))
        {}
        walk.at
    }

    /// Extends a walk by the next chunk, if a pool has it; returns whether it does. `reach`: end of what can be loaded from
    /// pools that are only loaded from the beginning of a prompt on.
    fn step_in_pool(&self, walk: &mut Walk<'_>, it: &PoolPart, reach: u32) -> bool {
        let Some((end, prefix)) = walk.chunk(it.chunk()) else { return false };
        if it.pool.from_beginning && end > reach {
            return false;
        }
        let Some(seen) = it.last_seen(prefix) else { return false };
        let age = (self.outside.time() - seen).max(0.0);
        if it.pool.lifetime.is_some_and(|lifetime| age > lifetime) {
            return false;
        }
        let (tier, is_certain) = (it.pool.tier, it.pool.announces_removals);
        let segment = Segment { start: walk.at, end, tier, pool: Some(it.name.clone()), is_certain, age: Some(age) };
        walk.take(segment);
        true
    }
}

/// Extends a walk by the next chunk, if the rank has it on a tier of its own; returns whether it does.
fn step_in_tier(walk: &mut Walk<'_>, it: &RankPart, tier: Tier) -> bool {
    let slot = tier as usize - 1;
    let chunk = it.settings.chunks[slot].map_or(it.learnt[slot], NonZeroU32::get);
    let Some((end, _)) = walk.chunk(chunk).filter(|(_, prefix)| it.names.holds(*prefix, tier)) else { return false };
    walk.take(Segment { start: walk.at, end, tier, pool: None, is_certain: true, age: None });
    true
}
