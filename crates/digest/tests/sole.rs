//! Marks that only one worker has, compared with plain sets of marks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvatlas_digest::{Publisher, marks_of_rank};
use kvatlas_index::hash::prefix_hashes;
use kvatlas_index::{BlockHash, BlockIndex, Config, CopyState, RankCopier, RankCopy, Tier};
use kvatlas_testing::{Random, seeds};

const GRAIN: u32 = 4;
const WORKERS: [&str; 3] = ["a", "b", "c"];

fn copy(index: &Arc<BlockIndex>, worker: &str, rank: u32) -> RankCopy {
    let mut copier = RankCopier::new(index.clone(), worker, rank);
    loop {
        match copier.step(BlockIndex::SLICE) {
            CopyState::More(more) => copier = more,
            CopyState::Done(done) => return done.sorted(),
        }
    }
}

/// Numbers of marks that no other worker has, by worker.
fn expected(index: &Arc<BlockIndex>) -> BTreeMap<Arc<str>, usize> {
    let mut holders: BTreeMap<u64, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for stats in index.ranks() {
        counts.insert(stats.worker.clone(), 0);
        for mark in marks_of_rank(&copy(index, &stats.worker, stats.rank), GRAIN) {
            holders.entry(mark).or_default().insert(stats.worker.clone());
        }
    }
    for workers in holders.into_values().filter(|workers| workers.len() == 1) {
        for worker in workers {
            *counts.entry(worker).or_default() += 1;
        }
    }
    counts
}

#[test]
fn a_mark_counts_for_the_only_worker_that_has_it_on_however_many_ranks() {
    for seed in 0..seeds(200) {
        let mut random = Random(seed);
        let index = Arc::new(BlockIndex::new(Config::default()).unwrap());
        let mut publisher = Publisher::new("own", 0, GRAIN).unwrap();
        for _ in 0..random.below(40) {
            let (worker, rank) = (WORKERS[random.index(WORKERS.len())], random.below(2) as u32);
            let family = random.below(3);
            let contents: Vec<u64> = (0..random.below(30)).map(|at| family << 32 | at).collect();
            let names: Vec<BlockHash> = prefix_hashes(&contents).into_iter().map(BlockHash).collect();
            match random.below(6) {
                0 => index.remove(worker, rank, Tier::Gpu, &names[random.index(names.len() + 1)..]),
                1 if random.below(4) == 0 => index.drop_worker(worker),
                _ => index.store(worker, rank, Tier::Gpu, None, &names, &contents).unwrap(),
            }
            if random.below(3) == 0 {
                publisher.look(&index, |_, _| true, || {});
            }
        }
        publisher.look(&index, |_, _| true, || {});
        let found: BTreeMap<_, _> = publisher.sole_marks().into_iter().collect();
        assert_eq!(found, expected(&index), "seed {seed}");
    }
}
