//! Tests of the positional index: its properties in each of its forms, and each of its known errors with the smallest
//! example.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvatlas_designs::pool::EventPool;
use kvatlas_designs::positional::{InvalidOption, Layout, Options, PositionalIndexer, Search, StoredBlock};
use kvatlas_designs::{Change, ConcurrentDesign, Refusal, Scores};
use kvatlas_index::BlockHash;

use crate::check::{EXACT, Promise, after_concurrent, check_concurrent, check_under_load, remove, store, truth};
use crate::streams::{Family, Names, Random, mix, stream as stream_of, streams};

/// Properties of a design that refuses blocks without their parent, and otherwise keeps all blocks and has nothing left
/// in the end.
pub(crate) const REFUSES_ORPHANS: Promise = Promise { refuses_orphans: true, ..EXACT };

/// Family of streams that a strict positional index handles exactly: all but block hashes that change their meaning and
/// several block hashes of a worker for one block.
pub(crate) const STRICT: Family = Family { replaced: false, aliases: false, ..Family::ANYTHING };

/// Family of streams that the positional index without `strict` handles exactly.
const LAZY: Family = Family { conflation: false, holes: false, replaced: false, ..Family::ANYTHING };

/// Block hashes of the query's blocks, as an engine may choose them.
fn names(range: std::ops::Range<u64>) -> Vec<BlockHash> {
    range.map(|number| BlockHash(mix(number))).collect()
}

fn index(options: Options) -> PositionalIndexer {
    PositionalIndexer::new(options).unwrap()
}

fn all_forms(strict: bool) -> impl Iterator<Item = Options> {
    let searches = [Search::Jump, Search::Bisect];
    let layouts = [Layout::Map, Layout::Arrays];
    searches.into_iter().flat_map(move |search| {
        layouts.into_iter().flat_map(move |layout| {
            [1, 2, 8, 32, 64, usize::MAX].map(|jump_size| Options { jump_size, search, layout, strict })
        })
    })
}

#[test]
fn every_form_is_exact_on_well_behaved_streams() {
    // Different streams for each form, since the reference takes most of the time.
    for (form, options) in (0..).zip(all_forms(false).chain(all_forms(true))) {
        check_concurrent(|| index(options), REFUSES_ORPHANS, streams(Family::WELL_BEHAVED, form * 3..form * 3 + 3));
    }
}

#[test]
fn every_form_is_exact_without_what_the_idea_gets_wrong() {
    for (form, options) in (0..).zip(all_forms(false)) {
        check_concurrent(|| index(options), REFUSES_ORPHANS, streams(LAZY, form * 6..form * 6 + 6));
    }
}

#[test]
fn strict_is_exact_with_holes_and_equal_contents() {
    for (form, options) in (0..).zip(all_forms(true)) {
        check_concurrent(|| index(options), REFUSES_ORPHANS, streams(STRICT, form * 12..form * 12 + 12));
    }
}

#[test]
fn without_leaps_holes_are_seen() {
    let family = Family { holes: true, aliases: false, ..LAZY };
    for layout in [Layout::Map, Layout::Arrays] {
        let options = Options { jump_size: 1, layout, ..Options::default() };
        check_concurrent(|| index(options), REFUSES_ORPHANS, streams(family, 0..60));
    }
}

/// Applies streams of any kind: no panic may occur, every block hash must be counted, and nothing may be left in the
/// end.
#[test]
fn nothing_is_left_of_any_stream() {
    for options in all_forms(false).chain(all_forms(true)) {
        for stream in streams(Family::ANYTHING, 0..10) {
            let index = index(options);
            for change in &stream.changes {
                let _ = index.apply(change);
            }
            for query in &stream.queries {
                let scores = index.find_matches(query);
                assert!(scores.iter().all(|&(_, depth)| depth > 0 && depth as usize <= query.len()));
            }
            for (worker, name) in index.holdings() {
                index.apply_removed(worker, &[name]);
            }
            let stats = index.stats();
            assert_eq!((stats.blocks, stats.entries), (0, 0), "seed {} {options:?}", stream.seed);
        }
    }
}

#[test]
fn deviates_by_lazy_hashes_and_strict_mends_it() {
    // (1, X = 9) is held, but after A = 1; the query is B = 2, X.
    let lone = [store(0, None, &[(71, 2)]), store(0, None, &[(72, 1), (73, 9)])];
    assert_eq!(truth(&lone, &[2, 9]), [(0, 1)]);
    for options in all_forms(false) {
        assert_eq!(after_concurrent(index(options), &lone, &[2, 9]), [(0, 2)], "{options:?}");
    }
    // Once a worker holds X after B, the two are separated, and stay so.
    let several = [&lone[..], &[store(1, None, &[(71, 2), (74, 9)]), remove(1, &[74])]].concat();
    for options in all_forms(false) {
        assert_eq!(after_concurrent(index(options), &several, &[2, 9]), [(0, 1), (1, 1)]);
    }
    // Whole sets are compared: an equal number of other holders of X has no effect on worker 0.
    let others = [store(0, None, &[(71, 1)]), store(1, None, &[(72, 2), (73, 9)])];
    for options in all_forms(false).chain(all_forms(true)) {
        assert_eq!(after_concurrent(index(options), &others, &[1, 9]), truth(&others, &[1, 9]), "{options:?}");
    }
    for options in all_forms(true) {
        assert_eq!(after_concurrent(index(options), &lone, &[2, 9]), [(0, 1)], "{options:?}");
    }
}

#[test]
fn deviates_by_leaps_over_holes_and_strict_mends_it() {
    let blocks: Vec<_> = (0..10).map(|block| (70 + block, block + 1)).collect();
    let query: Vec<_> = (1..=10).collect();
    let hole = [store(0, None, &blocks), remove(0, &[74])];
    assert_eq!(truth(&hole, &query), [(0, 4)]);
    let filled = [&hole[..], &[store(0, Some(73), &[(74, 5)])]].concat();
    for options in all_forms(false) {
        let wrong = if options.jump_size <= 1 || [2, 4].contains(&options.jump_size) { 4 } else { 10 };
        assert_eq!(after_concurrent(index(options), &hole, &query), [(0, wrong)], "{options:?}");
        assert_eq!(after_concurrent(index(options), &filled, &query), [(0, 10)], "{options:?}");
    }
    for options in all_forms(true) {
        assert_eq!(after_concurrent(index(options), &hole, &query), [(0, 4)], "{options:?}");
        assert_eq!(after_concurrent(index(options), &filled, &query), [(0, 10)], "{options:?}");
        // A hole ends when nothing continues it any more; the place can then be used by others.
        let ended = [&hole[..], &[remove(0, &[75, 79, 78, 77, 76]), remove(0, &[73])]].concat();
        assert_eq!(after_concurrent(index(options), &ended, &query), [(0, 3)], "{options:?}");
    }
}

#[test]
fn deviates_by_refusing_orphans() {
    let index = index(Options::default());
    let blocks = [StoredBlock { block_hash: BlockHash(72), content_hash: 2 }];
    let refusal = index.apply_stored(0, &blocks, Some(BlockHash(71))).unwrap_err();
    assert_eq!(refusal, Refusal::UnknownParent { worker: 0, parent: BlockHash(71) });
    assert_eq!(refusal.code(), "unknown_parent");
    assert_eq!((index.stats().workers, index.stats().refused, index.stats().blocks), (0, 1, 0));
    // The reference keeps the orphan, which counts once the parent is there.
    let late = [store(0, Some(71), &[(72, 2)]), store(0, None, &[(71, 1)])];
    assert_eq!(truth(&late, &[1, 2]), [(0, 2)]);
    late.iter().for_each(|change| _ = index.apply(change));
    assert_eq!(index.find_matches(&[1, 2]), [(0, 1)]);
}

#[test]
fn deviates_where_descendants_do_not_move() {
    // Name 71 changes its meaning from 1 to 9, and 72 was announced as continuing 71.
    let changes = [store(0, None, &[(71, 1), (72, 2)]), store(0, None, &[(71, 9)])];
    assert_eq!((truth(&changes, &[1, 2]), truth(&changes, &[9, 2])), (vec![], vec![(0, 2)]));
    for options in all_forms(true) {
        assert_eq!(after_concurrent(index(options), &changes, &[1, 2]), []);
        assert_eq!(after_concurrent(index(options), &changes, &[9, 2]), [(0, 1)], "2 was stored after 1");
    }
}

#[test]
fn deviates_where_two_names_stand_at_one_place() {
    // 72 continues 71, which is removed; but 73 is another name of the same block.
    let changes = [store(0, None, &[(71, 1), (72, 2)]), store(0, None, &[(73, 1)]), remove(0, &[71])];
    assert_eq!(truth(&changes, &[1, 2]), [(0, 1)]);
    for options in all_forms(false).chain(all_forms(true)) {
        assert_eq!(after_concurrent(index(options), &changes, &[1, 2]), [(0, 2)]);
        let gone = [&changes[..], &[remove(0, &[73])]].concat();
        assert_eq!(after_concurrent(index(options), &gone, &[1, 2]), []);
    }
}

#[test]
fn a_name_announced_elsewhere_has_moved() {
    for options in all_forms(false).chain(all_forms(true)) {
        let index = index(options);
        // 71 is at position 0, then at position 1 after itself, then at 0 again.
        index.apply(&store(0, None, &[(71, 1)])).unwrap();
        index.apply(&store(0, Some(71), &[(71, 1)])).unwrap();
        assert_eq!(index.find_matches(&[1, 1]), []);
        index.apply(&store(0, None, &[(71, 1)])).unwrap();
        assert_eq!((index.find_matches(&[1]), index.stats().entries), (vec![(0, 1)], 1));
        // Twice at the same place counts once.
        index.apply(&store(0, None, &[(71, 1)])).unwrap();
        index.apply_removed(0, &[BlockHash(71)]);
        assert_eq!((index.find_matches(&[1]), index.stats().entries), (vec![], 0));
    }
}

#[test]
fn calls_by_the_names_of_both_vendors() {
    let index = index(Options { jump_size: 2, ..Options::default() });
    let block = |name, content| StoredBlock { block_hash: BlockHash(name), content_hash: content };
    index.apply_stored(3, &[block(1, 10), block(2, 20)], None).unwrap();
    index.apply_stored(3, &[block(3, 30)], Some(BlockHash(2))).unwrap();
    index.apply_stored(4, &[block(1, 10)], None).unwrap();
    index.apply_stored(4, &[], Some(BlockHash(99))).unwrap();
    let sorted = |mut scores: Scores| {
        scores.sort_unstable();
        scores
    };
    assert_eq!(sorted(index.find_matches(&[10, 20, 30, 40])), [(3, 3), (4, 1)]);
    index.apply_removed(3, &[BlockHash(3), BlockHash(99)]);
    assert_eq!(sorted(index.find_matches(&[10, 20, 30])), [(3, 2), (4, 1)]);
    index.apply_cleared(3);
    index.remove_worker(4);
    assert_eq!(index.find_matches(&[10]), []);
    let stats = index.stats();
    assert_eq!((stats.workers, stats.blocks, stats.entries, stats.unknown_removals), (1, 0, 0, 1));
    assert_eq!(index.options().jump_size, 2);
    let refusal = ConcurrentDesign::store(&index, 0, None, &[BlockHash(1)], &[]).unwrap_err();
    assert_eq!((refusal.code(), index.stats().refused), ("length_mismatch", 1));
    let invalid = PositionalIndexer::new(Options { jump_size: 0, ..Options::default() }).unwrap_err();
    assert_eq!((invalid.code(), invalid), ("invalid_jump_size", InvalidOption::JumpSize));
}

#[test]
fn deep_chains() {
    for options in all_forms(false).chain(all_forms(true)).filter(|options| options.jump_size > 3) {
        let index = index(options);
        for (worker, depth) in [(0, 1_000), (1, 50_000), (2, 49_999), (3, 50_000), (70_000, 33)] {
            let contents: Vec<u64> = (0..depth).map(|block| mix(block + 5)).collect();
            // As one store, and in small stores as engines send them.
            for (at, part) in contents.chunks(if worker == 3 { 7 } else { usize::MAX }).enumerate() {
                let own = names(
                    u64::from(worker) << 32 | (at * 7) as u64..(u64::from(worker) << 32) + (at * 7 + part.len()) as u64,
                );
                let parent = (at > 0).then(|| {
                    names((u64::from(worker) << 32) + at as u64 * 7 - 1..(u64::from(worker) << 32) + at as u64 * 7)[0]
                });
                index.store(worker, parent, &own, part).unwrap();
            }
        }
        let query: Vec<u64> = (0..100_000).map(|block| mix(block + 5)).collect();
        let mut scores = index.find_matches(&query);
        scores.sort_unstable();
        assert_eq!(scores, [(0, 1_000), (1, 50_000), (2, 49_999), (3, 50_000), (70_000, 33)], "{options:?}");
        assert_eq!(index.find_matches(&query[..20_000]).iter().filter(|it| it.1 == 20_000).count(), 3);
    }
}

#[test]
fn keeps_a_workers_order_under_load() {
    let stream = stream_of(Family::WELL_BEHAVED, Names::Alike, 7, 1000);
    for options in all_forms(false).filter(|options| options.jump_size > 3) {
        check_under_load(&EventPool::new(index(options), 3), &stream, 3, true);
    }
    // With holes an answer may never have been true while they come and go; in the end it is exact.
    let mixed = stream_of(Family { orphans: false, ..STRICT }, Names::Own, 11, 600);
    for options in all_forms(true).filter(|options| options.jump_size > 3) {
        check_under_load(&EventPool::new(index(options), 3), &mixed, 3, false);
    }
}

/// Looks up a worker whose depth grows and shrinks between two values, while other workers come and go: its depth must
/// never lie outside these values.
#[test]
fn answers_stay_between_what_was_true() {
    for options in all_forms(false).chain(all_forms(true)).filter(|options| options.jump_size > 2) {
        let index = Arc::new(index(options));
        let query: Vec<u64> = (0..120).map(|block| mix(block + 77)).collect();
        let (steady, deepest) = (40, 100);
        let own = names(0..query.len() as u64);
        index.store(0, None, &own[..steady], &query[..steady]).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut scores, mut looked) = (Scores::new(), 0);
                while !done.load(Ordering::Relaxed) || looked == 0 {
                    index.find(&query, &mut scores);
                    let steady_one =
                        scores.iter().filter(|&&(worker, _)| worker == 0).map(|&(_, depth)| depth as usize);
                    let depths: Vec<usize> = steady_one.collect();
                    assert!(matches!(depths[..], [depth] if (steady..=deepest).contains(&depth)), "{depths:?}");
                    looked += 1;
                }
            });
            let grower = scope.spawn(|| {
                let mut random = Random(3);
                for _ in 0..300 {
                    let to = steady + 1 + random.index(deepest - steady);
                    index.store(0, Some(own[steady - 1]), &own[steady..to], &query[steady..to]).unwrap();
                    let evicted: Vec<_> = own[steady..to].iter().rev().copied().collect();
                    index.apply_removed(0, &evicted);
                }
            });
            let others = scope.spawn(|| {
                for round in 0..100 {
                    for worker in 1..20 {
                        let to = 1 + (round * 7 + worker as usize * 13) % query.len();
                        index.store(worker, None, &own[..to], &query[..to]).unwrap();
                        if round % 3 == 0 { index.remove_worker(worker) } else { index.apply_cleared(worker) }
                    }
                }
            });
            grower.join().unwrap();
            others.join().unwrap();
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(index.find_matches(&query), [(0, steady as u32)]);
    }
}

/// Changes one worker from several threads, which is not the intended use but must not corrupt the index.
#[test]
fn one_worker_from_many_threads_loses_nothing() {
    let index = Arc::new(index(Options { strict: true, ..Options::default() }));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let index = Arc::clone(&index);
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..2000 {
                    let block = random.index(6) as u64;
                    match random.index(4) {
                        0 => _ = index.apply(&remove(0, &[block])),
                        1 if block == 0 => index.remove_worker(0),
                        _ => _ = index.apply(&store(0, block.checked_sub(1), &[(block, block + 10)])),
                    }
                }
            });
        }
    });
    let blocks = index.stats().blocks;
    assert_eq!(index.stats().entries, blocks);
    index.apply(&Change::Drop { worker: 0 }).unwrap();
    assert_eq!((index.stats().workers, index.stats().entries), (0, 0));
}
