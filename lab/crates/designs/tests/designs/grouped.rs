//! Tests of the index over groups of workers: full answers, answers with the deepest workers only, and counts of
//! messages.

use std::cmp::Reverse;

use kvatlas_designs::grouped::{BestWorkers, GroupOptions, GroupedIndex, SparsePositions};
use kvatlas_designs::pool::EventPool;
use kvatlas_designs::positional::{InvalidOption, Layout, Options, Search};
use kvatlas_designs::{ConcurrentDesign, Scores};
use kvatlas_index::BlockHash;

use crate::check::{after_concurrent, check_concurrent, check_under_load, remove, store, truth};
use crate::positional::{REFUSES_ORPHANS, STRICT};
use crate::streams::{Family, Names, Random, mix, stream, streams};

fn index(options: GroupOptions) -> GroupedIndex {
    GroupedIndex::new(options).unwrap()
}

fn forms(strict: bool) -> impl Iterator<Item = GroupOptions> {
    [1, 3, 1000].into_iter().flat_map(move |workers_per_group| {
        [SparsePositions::Doubling, SparsePositions::Every(1), SparsePositions::Every(7)].map(|sparse| {
            let layout = if workers_per_group == 3 { Layout::Arrays } else { Layout::Map };
            let search = if workers_per_group == 1 { Search::Bisect } else { Search::Jump };
            let inner = Options { jump_size: 8, search, layout, strict };
            GroupOptions { workers_per_group, sparse, inner, best: 2 }
        })
    })
}

#[test]
fn the_full_answer_is_exact_where_the_positional_index_is() {
    for (form, options) in (0..).zip(forms(false)) {
        let well_behaved = streams(Family::WELL_BEHAVED, form * 8..form * 8 + 8);
        check_concurrent(|| index(options), REFUSES_ORPHANS, well_behaved);
    }
    for (form, options) in (0..).zip(forms(true)) {
        check_concurrent(|| index(options), REFUSES_ORPHANS, streams(STRICT, form * 16..form * 16 + 16));
    }
}

/// Checks that the depths of the deepest workers equal those in the full answer, and that each worker has its depth
/// there.
fn check_best(index: &GroupedIndex, query: &[u64], k: usize) -> BestWorkers {
    let best = index.find_best(query, k);
    let mut full = Scores::new();
    index.find(query, &mut full);
    full.sort_unstable_by_key(|&(_, depth)| Reverse(depth));
    let depths = |scores: &Scores| scores.iter().take(k).map(|&(_, depth)| depth).collect::<Vec<_>>();
    assert_eq!(depths(&best.scores), depths(&full), "{query:?}, {k} of {full:?}: {best:?}");
    assert!(best.scores.iter().all(|one| full.contains(one)), "{best:?} {full:?}");
    assert!(best.probed <= best.candidates);
    best
}

#[test]
fn the_deepest_are_found_though_not_everybody_is_asked() {
    let (mut asked, mut candidates) = (0, 0);
    for options in forms(true) {
        for stream in streams(STRICT, 0..60) {
            let index = index(options);
            for (at, change) in stream.changes.iter().enumerate() {
                let _ = index.apply(change);
                if at % 8 != 0 && at + 1 < stream.changes.len() {
                    continue;
                }
                for query in &stream.queries {
                    for k in [1, 2, 5, 100] {
                        let best = check_best(&index, query, k);
                        asked += best.probed;
                        candidates += best.candidates;
                    }
                }
            }
        }
    }
    assert!(asked < candidates, "nothing was saved: {asked} of {candidates}");
    assert_eq!(index(GroupOptions::default()).find_best(&[1], 0), BestWorkers::default());
}

/// Asks 64 workers in groups of 4, where worker w holds 2w + 1 blocks of one prompt.
#[test]
fn asks_only_who_can_win_and_counts_what_travels() {
    let query: Vec<u64> = (0..200).map(mix).collect();
    let own: Vec<BlockHash> = query.iter().map(|&content| BlockHash(mix(content))).collect();
    let updates = |index: &GroupedIndex| index.stats().messages;
    let options = GroupOptions { workers_per_group: 4, ..GroupOptions::default() };
    let index = index(options);
    for worker in 0..64 {
        index.store(worker, None, &own[..2 * worker as usize + 1], &query[..2 * worker as usize + 1]).unwrap();
    }
    // A group reports when it is the first time that a worker of it reaches 1, 2, 4, … blocks; the reports of one event
    // travel together. Within a group, each worker is deeper than the ones before.
    let told: usize = (0..64usize)
        .filter(|worker| {
            let reached = |worker: usize| (0..8).filter(|power| 2 * worker + 1 >= 1 << power).count();
            worker % 4 == 0 || reached(*worker) > reached(worker - 1)
        })
        .count();
    assert_eq!(updates(&index), told as u64);
    let best = check_best(&index, &query, 1);
    assert_eq!((best.scores, best.candidates), (vec![(63, 127)], 16));
    // Depths from 64 to 127 are equal to the top, so half of the groups can win: 32..64.
    assert_eq!(best.probed, 8);
    assert_eq!(updates(&index), told as u64 + 2 * 8 + 2 * 16);
    let mut scores = Scores::new();
    assert_eq!((index.answer(&query, &mut scores), scores.len()), (127, 1));
    // A shorter query is answered by the first group that has it all.
    let best = check_best(&index, &query[..20], 1);
    assert_eq!((best.probed, best.scores[0].1), (1, 20));
    // Finer steps distinguish more.
    let fine = GroupedIndex::new(GroupOptions { sparse: SparsePositions::Every(4), ..options }).unwrap();
    for worker in 0..64 {
        fine.store(worker, None, &own[..2 * worker as usize + 1], &query[..2 * worker as usize + 1]).unwrap();
    }
    assert!(fine.find_best(&query, 1).probed <= 2);
    // Dropped workers are not asked.
    (60..64).for_each(|worker| index.drop_worker(worker));
    assert_eq!(check_best(&index, &query, 1).candidates, 15);
    (0..60).for_each(|worker| index.clear(worker));
    assert_eq!(check_best(&index, &query, 1), BestWorkers::default());
    let stats = index.stats();
    assert_eq!((stats.workers, stats.blocks, stats.entries), (60, 0, 0));
}

#[test]
fn deviates_as_the_positional_index_but_prunes_by_what_the_top_knows() {
    let options = GroupOptions { workers_per_group: 1, ..GroupOptions::default() };
    // A leap over a hole, as in one index; the top knows that no worker has block 3.
    let blocks: Vec<_> = (0..10).map(|block| (70 + block, block + 1)).collect();
    let query: Vec<_> = (1..=10).collect();
    let hole = [store(0, None, &blocks), remove(0, &[73]), store(1, None, &blocks[..4])];
    assert_eq!(truth(&hole, &query), [(0, 3), (1, 4)]);
    assert_eq!(after_concurrent(index(options), &hole, &query), [(0, 10), (1, 4)]);
    let index_with_hole = index(options);
    hole.iter().for_each(|change| index_with_hole.apply(change).unwrap());
    assert_eq!(index_with_hole.find_best(&query, 1).scores, [(1, 4)]);
    let strict = GroupOptions { inner: Options { strict: true, ..Options::default() }, ..options };
    assert_eq!(after_concurrent(index(strict), &hole, &query), truth(&hole, &query));
}

#[test]
fn options_that_cannot_be_are_refused() {
    let default = GroupOptions::default();
    let refused = |options| GroupedIndex::new(options).unwrap_err();
    let inner = Options { jump_size: 0, ..Options::default() };
    assert_eq!(refused(GroupOptions { workers_per_group: 0, ..default }), InvalidOption::GroupSize);
    assert_eq!(refused(GroupOptions { sparse: SparsePositions::Every(0), ..default }), InvalidOption::SparseStep);
    assert_eq!(refused(GroupOptions { inner, ..default }), InvalidOption::JumpSize);
    let index = index(default);
    assert_eq!(index.store(7, Some(BlockHash(1)), &[BlockHash(2)], &[3]).unwrap_err().code(), "unknown_parent");
    assert_eq!(index.store(7, None, &[BlockHash(2)], &[]).unwrap_err().code(), "length_mismatch");
    index.store(7, None, &[], &[]).unwrap();
    index.remove(7, &[BlockHash(1), BlockHash(2)]);
    let stats = index.stats();
    assert_eq!((stats.workers, stats.refused, stats.unknown_removals), (0, 2, 2));
}

/// Changes workers of one group on different threads: the groups' reports to the top stay in order.
#[test]
fn the_top_is_right_after_a_load() {
    for (seed, options) in (0..).zip(forms(true)) {
        let stream = stream(Family { orphans: false, ..STRICT }, Names::Own, seed, 500);
        let pool = EventPool::new(index(options), 3);
        check_under_load(&pool, &stream, 3, false);
        stream.queries.iter().for_each(|query| _ = check_best(pool.index(), query, 2));
    }
    // The same few blocks over and over by workers of one group.
    let index = index(GroupOptions { sparse: SparsePositions::Every(1), ..GroupOptions::default() });
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let index = &index;
            scope.spawn(move || {
                let mut random = Random(u64::from(worker));
                for _ in 0..3000 {
                    let to = 1 + random.index(3) as u64;
                    let blocks: Vec<_> = (1..=to).map(|block| (block, block)).collect();
                    index.apply(&store(worker, None, &blocks)).unwrap();
                    if random.chance(60) {
                        index.clear(worker);
                    }
                }
            });
        }
    });
    check_best(&index, &[1, 2, 3], 3);
    (0..4).for_each(|worker| index.drop_worker(worker));
    assert_eq!((index.find_best(&[1, 2, 3], 3).candidates, index.stats().entries), (0, 0));
}
