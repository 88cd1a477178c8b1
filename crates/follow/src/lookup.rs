//! Look-ups of the workers that hold leading blocks of a prompt, for queries and for a router in the same process.
//! Workers' names are not copied, and ranks that hold no leading block have no row in the result.
//!
//! The index has the blocks of one cache group (layers whose blocks are kept together) of each engine. For hybrid
//! models, which have several cache groups, a depth is the number of leading blocks that all groups can serve. The rows
//! of all answers are made in this module.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use hashbrown::{HashMap, HashSet};
use kvatlas_index::hash::prefix_hashes;
use kvatlas_index::{BlockIndex, Loadable, Match, Segment, View};
use kvatlas_wire::Hybrid;

use crate::state::{HybridRanks, Keyspace, Reservations, tell_time};

/// Numbers of a prompt's leading blocks that one rank of a worker holds. The number for each tier includes blocks on
/// the tiers before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankDepths {
    /// Number by which the caller of the look-up identifies the rank of the worker.
    pub number: u32,
    /// Number of leading blocks in device memory.
    pub device: u32,
    /// Number of leading blocks in device or host memory.
    pub host: u32,
    /// Number of leading blocks on any tier.
    pub any: u32,
    /// Number of leading blocks in the rank's host memory that another engine can copy from there.
    pub pullable: u32,
}

impl Keyspace {
    /// Looks a prompt up by its content hashes, and replaces the content of `held` by the depths of each trusted rank
    /// that holds leading blocks. `number` returns the caller's number for a worker's rank; ranks for which it returns
    /// `None` are left out.
    pub fn look_up(&self, content: &[u64], number: impl Fn(&str, u32) -> Option<u32>, held: &mut Vec<RankDepths>) {
        self.steady(|untrusted| {
            held.clear();
            let index = self.index();
            let found = index.find(content);
            // Read after the index, so that each hybrid rank in the match is known to be one.
            let hybrids = self.hybrids().load();
            let filter = Filter { among: None, without: Some(untrusted), strict: None };
            let rows = rows(&found, &hybrids, content, &filter, None);
            held.extend(rows.iter().filter_map(|row| {
                let number = number(row.worker, row.rank)?;
                let Depths { gpu: device, cpu: host, any, .. } = row.depths;
                Some(RankDepths { number, device, host, any, pullable: 0 })
            }));
            for found in loadable(&index, &hybrids, content, &filter) {
                let Some(number) = number(&found.worker, found.rank) else { continue };
                let (host, any, pullable) = (found.own_used(), found.used, found.host);
                // Engines load whole chunks, which the rows do not know of.
                match held.iter_mut().find(|held| held.number == number) {
                    Some(row) => {
                        (row.host, row.any, row.pullable) = (host.max(row.device), any.max(row.device), pullable)
                    }
                    None if any > 0 || pullable > 0 => {
                        held.push(RankDepths { number, device: found.device, host, any, pullable });
                    }
                    None => {}
                }
            }
        });
    }

    /// Finds the blocks of a prompt that a rank is expected to load from pools whose members may not announce removals.
    /// Returns their segments (consecutive blocks in one pool) with the present time of the index, as
    /// [`miss_in_pool`](Self::miss_in_pool) takes it; None if there are none.
    #[must_use]
    pub fn find_unsure(&self, content: &[u64], worker: &str, rank: u32) -> Option<(Vec<Segment>, f64)> {
        let index = self.index();
        let found = index.find_unsure(content, worker, rank);
        (!found.is_empty()).then(|| (found, index.time()))
    }

    /// Records that an engine reused only the `reused` leading blocks of a prompt, although a pool seemed to have the next
    /// ones. They are removed from the pool, if they were not announced again after the time `until`.
    pub fn miss_in_pool(&self, pool: &str, content: &[u64], reused: u32, until: f64) {
        let mut gone = 0;
        self.change(|index| gone = index.miss_in_pool(pool, content, reused, until));
        self.missed_in_pools.fetch_add(gone as u64, Relaxed);
        if gone > 0 {
            tracing::debug!(model = %self.model, pool, gone, "an engine has not loaded blocks of the pool: they no longer count");
        }
    }

    /// True if a worker's rank has a stream that is trusted at present.
    #[must_use]
    pub fn is_trusted(&self, worker: &str, rank: u32) -> bool {
        self.stream(worker, rank).is_some() && self.steady(|untrusted| !untrusted.contains(worker, rank))
    }
}

/// Makes one row of the answer to a query for each rank that holds leading blocks of the prompt and passes the filter.
/// `cap` is the maximum number of leading blocks that an engine can reuse for the prompt, if known.
#[must_use]
pub fn rows<'m>(
    found: &'m Match<'_>,
    hybrids: &'m HybridRanks,
    content: &[u64],
    filter: &Filter<'_>,
    cap: Option<u32>,
) -> Vec<Row<'m>> {
    let mut rows = filtered(found, filter);
    if let Some(cap) = cap {
        rows.iter_mut().for_each(|row| row.usable = Some(row.depths.gpu.min(cap)));
    }
    if !hybrids.is_empty() && !content.is_empty() {
        let prefixes = prefix_hashes(content);
        rows.retain_mut(|row| {
            let Some(hybrid) = hybrids.get(row.worker, row.rank) else { return true };
            let Depths { gpu, cpu, disk, any } = row.depths;
            row.depths = hybrid.depths(&prefixes, [gpu, cpu, disk, any]).into();
            row.usable = cap.map(|cap| usable(hybrid, &prefixes, row.depths.gpu, cap));
            row.depths.any > 0
        });
        rows.extend(alone(hybrids, &prefixes, cap).filter(|row| filter.counts(row)));
    }
    rows
}

/// Finds ranks of models that have no full attention, and that hold leading blocks of a prompt. The blocks of these
/// ranks are not in the index, but in `hybrids` alone. `prefixes`: the prompt's prefix hashes; `cap`: maximum number of
/// blocks that can be reused, for the field `usable` of the result.
fn alone<'m>(hybrids: &'m HybridRanks, prefixes: &[u64], cap: Option<u32>) -> impl Iterator<Item = Row<'m>> {
    hybrids.iter().filter_map(move |(worker, rank, hybrid)| {
        let depths: Depths = hybrid.depths_alone(prefixes)?.into();
        (depths.any > 0).then(|| {
            let usable = cap.map(|cap| usable(hybrid, prefixes, depths.gpu, cap));
            Row { worker, rank, depths, usable }
        })
    })
}

/// Computes the number of leading blocks of a prompt, up to `depth`, that a hybrid model can reuse if at most `cap`
/// blocks may be reused. If `cap` is less than `depth`, the blocks of an attention window that ends at `cap` are
/// needed, and may have been evicted.
fn usable(hybrid: &Hybrid, prefixes: &[u64], depth: u32, cap: u32) -> u32 {
    if depth <= cap { depth } else { hybrid.reach(prefixes, cap) }
}

impl From<[u32; 4]> for Depths {
    fn from([gpu, cpu, disk, any]: [u32; 4]) -> Self {
        Self { gpu, cpu, disk, any }
    }
}

/// Finds the parts of a prompt that each rank passing the filter can load from outside its device memory. Ranks of
/// hybrid models are left out, because offloaded blocks of their other cache groups are not followed.
#[must_use]
pub fn loadable(index: &BlockIndex, hybrids: &HybridRanks, content: &[u64], filter: &Filter<'_>) -> Vec<Loadable> {
    if !index.has_loadable() {
        return Vec::new();
    }
    tell_time(index);
    let mut found = index.find_loadable(content);
    found.retain(|it| filter.passes(&it.worker, it.rank) && hybrids.get(&it.worker, it.rank).is_none());
    found
}

/// Numbers of a prompt's leading blocks that a rank holds, by tier. The number for each tier includes blocks on the
/// tiers before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Depths {
    /// Number of leading blocks in device memory.
    pub gpu: u32,
    /// Number of leading blocks in device or host memory.
    pub cpu: u32,
    /// Number of leading blocks in device memory, host memory or on local disks.
    pub disk: u32,
    /// Number of leading blocks on any tier.
    pub any: u32,
}

impl Depths {
    fn most(self, other: Self) -> Self {
        Self {
            gpu: self.gpu.max(other.gpu),
            cpu: self.cpu.max(other.cpu),
            disk: self.disk.max(other.disk),
            any: self.any.max(other.any),
        }
    }
}

/// Rank that holds leading blocks of a prompt. The worker's name is borrowed from the match instead of being reference
/// counted, because all threads would contend for the same count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'m> {
    /// Name of the worker.
    pub worker: &'m str,
    /// Data-parallel rank of the worker.
    pub rank: u32,
    /// Numbers of leading blocks that the rank holds, by tier.
    pub depths: Depths,
    /// Number of leading blocks in device memory that the rank can reuse for the prompt; `None` if the prompt's length is
    /// unknown.
    pub usable: Option<u32>,
}

/// Worker that holds leading blocks of a prompt, with the greatest depths among its ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRow {
    /// Positions of the worker's ranks in the list of rows (one row per rank).
    pub ranks: Range<usize>,
    /// Greatest numbers of leading blocks that any of the worker's ranks holds, by tier.
    pub depths: Depths,
    /// Greatest number of leading blocks in device memory that any of the worker's ranks can reuse; `None` if the
    /// prompt's length is unknown.
    pub usable: Option<u32>,
}

/// Filter for the ranks in an answer to a query. An empty filter passes all ranks.
#[derive(Default)]
pub struct Filter<'a> {
    /// Workers that pass; `None` for all workers.
    pub among: Option<HashSet<&'a str>>,
    /// Names of the workers that pass the filter; `None` for all workers.
    pub without: Option<&'a Reservations>,
    /// Streams whose ranks are left out of the answer if they are unverified (their engine may have restarted
    /// unnoticed); `None` to leave out none.
    pub strict: Option<&'a Reservations>,
}

impl Filter<'_> {
    /// True if the worker passes the filter.
    #[must_use]
    pub fn allows(&self, worker: &str) -> bool {
        self.among.as_ref().is_none_or(|workers| workers.contains(worker))
    }

    fn counts(&self, row: &Row<'_>) -> bool {
        self.passes(row.worker, row.rank)
    }

    fn passes(&self, worker: &str, rank: u32) -> bool {
        self.allows(worker)
            && self.without.is_none_or(|streams| !streams.contains(worker, rank))
            && self.strict.is_none_or(|streams| !streams.is_unverified(worker, rank))
    }
}

/// Makes one row for each rank that holds leading blocks of the prompt and passes the filter, sorted by worker and
/// rank.
fn filtered<'m>(found: &'m Match<'_>, filter: &Filter<'_>) -> Vec<Row<'m>> {
    let mut rows = all(found);
    if filter.among.is_some() || filter.without.is_some_and(|streams| !streams.is_empty()) || filter.strict.is_some() {
        rows.retain(|row| filter.counts(row));
    }
    rows
}

/// Makes one row for each rank that holds leading blocks of the prompt on any tier.
fn all<'m>(found: &'m Match<'_>) -> Vec<Row<'m>> {
    if found.is_plain() {
        // Room for most fleets at once.
        let mut rows = Vec::with_capacity(32);
        found.for_each(View::Device, |worker, rank, depth| {
            let depths = Depths { gpu: depth, cpu: depth, disk: depth, any: depth };
            rows.push(Row { worker, rank, depths, usable: None });
        });
        return rows;
    }
    let mut ranks: HashMap<(&str, u32), Depths> = HashMap::new();
    for view in View::ALL {
        found.for_each(view, |worker, rank, depth| {
            let depths = ranks.entry((&**worker, rank)).or_default();
            match view {
                View::Device => depths.gpu = depth,
                View::Host => depths.cpu = depth,
                View::Local => depths.disk = depth,
                View::AnyTier => depths.any = depth,
            }
        });
    }
    // What a view reaches, wider ones do too, even if a name means another block there.
    let row = |((worker, rank), depths): ((&'m str, u32), Depths)| {
        let cpu = depths.cpu.max(depths.gpu);
        let disk = depths.disk.max(cpu);
        let depths = Depths { cpu, disk, any: depths.any.max(disk), ..depths };
        Row { worker, rank, depths, usable: None }
    };
    let mut rows: Vec<_> = ranks.into_iter().map(row).collect();
    rows.sort_unstable_by(|a, b| a.worker.cmp(b.worker).then(a.rank.cmp(&b.rank)));
    rows
}

/// Groups rows (one per rank) by worker, and returns the best `top_k` workers, or all if `top_k` is `None`: those with
/// the greatest depth in device memory first, and for equal depths those with the greatest depth on any tier. Reorders
/// `rows`.
#[must_use]
pub fn by_worker(rows: &mut [Row<'_>], top_k: Option<usize>) -> Vec<WorkerRow> {
    // Most fleets have one rank a worker: then there is nothing to bring together.
    if !rows.is_sorted_by(|a, b| a.rank == b.rank) {
        rows.sort_unstable_by(|a, b| a.worker.cmp(b.worker).then(a.rank.cmp(&b.rank)));
    }
    let mut workers = Vec::with_capacity(rows.len());
    let mut start = 0;
    for ranks in rows.chunk_by(|a, b| a.rank != b.rank && a.worker == b.worker) {
        let depths = ranks.iter().fold(Depths::default(), |most, row| most.most(row.depths));
        let usable = ranks.iter().filter_map(|row| row.usable).max();
        workers.push(WorkerRow { ranks: start..start + ranks.len(), depths, usable });
        start += ranks.len();
    }
    workers.sort_by_key(|worker| Reverse(worker.depths));
    workers.truncate(top_k.unwrap_or(usize::MAX));
    workers
}

#[cfg(test)]
mod tests {
    use kvatlas_index::{BlockHash, BlockIndex, Config, Tier};

    use super::*;

    const ALL: Filter<'_> = Filter { among: None, without: None, strict: None };

    fn store(index: &BlockIndex, worker: &str, rank: u32, tier: Tier, blocks: Range<u64>) {
        let hashes: Vec<_> = blocks.clone().map(BlockHash).collect();
        let content: Vec<_> = blocks.clone().collect();
        let parent = (blocks.start > 1).then(|| BlockHash(blocks.start - 1));
        index.store(worker, rank, tier, parent, &hashes, &content).expect("equal lengths");
    }

    fn seen(index: &BlockIndex, filter: &Filter<'_>, top_k: Option<usize>) -> Vec<(String, Vec<u32>, Depths)> {
        let query: Vec<u64> = (1..20).collect();
        let found = index.find(&query);
        let mut rows = filtered(&found, filter);
        let workers = by_worker(&mut rows, top_k);
        let one = |worker: WorkerRow| {
            let ranks = &rows[worker.ranks];
            (ranks[0].worker.to_string(), ranks.iter().map(|row| row.rank).collect(), worker.depths)
        };
        workers.into_iter().map(one).collect()
    }

    fn depths(gpu: u32, any: u32) -> Depths {
        Depths { gpu, cpu: any, disk: any, any }
    }

    #[test]
    fn deepest_first_each_worker_once() {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        store(&index, "a", 0, Tier::Gpu, 1..4);
        store(&index, "b", 1, Tier::Gpu, 1..3);
        store(&index, "b", 0, Tier::Gpu, 1..6);
        store(&index, "c", 0, Tier::Gpu, 5..6);
        let expected = vec![("b".into(), vec![0, 1], depths(5, 5)), ("a".into(), vec![0], depths(3, 3))];
        assert_eq!(seen(&index, &ALL, None), expected);
        assert_eq!(seen(&index, &ALL, Some(1)), expected[..1]);
        let only_a = Filter { among: Some(HashSet::from(["a", "z"])), without: None, strict: None };
        assert_eq!(seen(&index, &only_a, Some(5)), expected[1..]);
    }

    #[test]
    fn offloaded_blocks_come_after_the_device() {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        store(&index, "a", 0, Tier::Gpu, 1..3);
        store(&index, "a", 0, Tier::Cpu, 3..9);
        store(&index, "b", 0, Tier::Gpu, 1..4);
        store(&index, "c", 0, Tier::Cpu, 1..8);
        let expected = vec![
            ("b".into(), vec![0], depths(3, 3)),
            ("a".into(), vec![0], depths(2, 8)),
            ("c".into(), vec![0], depths(0, 7)),
        ];
        assert_eq!(seen(&index, &ALL, None), expected);
    }
    #[test]
    fn a_name_that_means_another_block_elsewhere_takes_nothing_from_the_device() {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        store(&index, "a", 0, Tier::Gpu, 1..6);
        index.store("a", 0, Tier::Cpu, None, &[BlockHash(3)], &[77]).expect("equal lengths");
        assert_eq!(index.find(&[1, 2, 3]).depth(View::AnyTier), 3);
        assert_eq!(seen(&index, &ALL, None), [("a".into(), vec![0], depths(5, 5))]);
    }
}
