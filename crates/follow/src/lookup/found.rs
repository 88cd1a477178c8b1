//! Rows of a match, by rank and by worker: without ranks that are not asked for or not trusted, in the order of the answer.

use std::cmp::Reverse;
use std::ops::Range;

use hashbrown::{HashMap, HashSet};
use kvatlas_index::{Match, View};

use crate::state::Reservations;

/// Leading blocks on the device; on it or in host memory; on these or on local disks; anywhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Depths {
    /// Leading blocks on the device.
    pub gpu: u32,
    /// Leading blocks on the device or in host memory.
    pub cpu: u32,
    /// Leading blocks on the device, in host memory or on local disks.
    pub disk: u32,
    /// Leading blocks anywhere.
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

/// A rank that matches. Its name is borrowed from the match: all threads would write a reference count at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'m> {
    /// The worker's name.
    pub worker: &'m str,
    /// The rank of the worker.
    pub rank: u32,
    /// Leading blocks that the rank holds.
    pub depths: Depths,
    /// Device blocks that the engine can reuse; none if the length of the prompt is not known.
    pub usable: Option<u32>,
}

/// A worker that matches, with the depths of its best ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRow {
    /// Rows of the worker's ranks.
    pub ranks: Range<usize>,
    /// Greatest depths of its ranks.
    pub depths: Depths,
    /// Device blocks that the best rank can reuse.
    pub usable: Option<u32>,
}

/// Filter of ranks; without any part, all ranks pass.
#[derive(Default)]
pub struct Filter<'a> {
    /// The only workers to consider.
    pub among: Option<HashSet<&'a str>>,
    /// Streams whose ranks are left out.
    pub without: Option<&'a Reservations>,
    /// Streams whose unverified ranks are left out.
    pub strict: Option<&'a Reservations>,
}

impl Filter<'_> {
    /// True if the worker is to be considered.
    #[must_use]
    pub fn allows(&self, worker: &str) -> bool {
        self.among.as_ref().is_none_or(|workers| workers.contains(worker))
    }

    pub(super) fn counts(&self, row: &Row<'_>) -> bool {
        self.passes(row.worker, row.rank)
    }

    pub(super) fn passes(&self, worker: &str, rank: u32) -> bool {
        self.allows(worker)
            && self.without.is_none_or(|streams| !streams.contains(worker, rank))
            && self.strict.is_none_or(|streams| !streams.is_unverified(worker, rank))
    }
}

/// Rows of the ranks that match and pass the filter, by worker and rank.
pub(super) fn rows<'m>(found: &'m Match<'_>, filter: &Filter<'_>) -> Vec<Row<'m>> {
    let mut rows = all(found);
    if filter.among.is_some() || filter.without.is_some_and(|streams| !streams.is_empty()) || filter.strict.is_some() {
        rows.retain(|row| filter.counts(row));
    }
    rows
}

/// Rows of all ranks that match on any tier.
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

/// The best `top_k` workers of `rows`, by device depth, then by depth on any tier. Reorders `rows`.
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
        let mut rows = rows(&found, filter);
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
