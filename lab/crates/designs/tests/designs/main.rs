//! Tests of the index designs against the reference, on random streams of the kinds that each design handles exactly.
//! The tests of rungs 1, 3, 4, 5 and 7 of the ladder are in this file.

mod actor;
mod check;
mod grouped;
mod open;
mod pool;
mod positional;
mod streams;

use kvatlas_designs::block_index::BlockIndexRung;
use kvatlas_designs::concurrent::ConcurrentRadixTree;
use kvatlas_designs::inverted::InvertedIndex;
use kvatlas_designs::nested::NestedMap;
use kvatlas_designs::pool::EventPool;
use kvatlas_designs::radix::RadixTree;
use kvatlas_designs::{Change, ConcurrentDesign, Scores};
use kvatlas_index::View;

use crate::check::{
    EXACT, Promise, after_concurrent, after_local, check_concurrent, check_local, check_under_load, remove, store,
    truth,
};
use crate::streams::{Family, Names, stream, streams};

#[test]
fn inverted_is_exact_on_well_behaved_streams() {
    for strict in [false, true] {
        check_local(|| InvertedIndex::new(strict), EXACT, streams(Family::WELL_BEHAVED, 0..60));
    }
}

#[test]
fn inverted_is_exact_without_what_it_says() {
    // Holes, duplicates and unknown names are handled correctly.
    let family = Family { conflation: false, orphans: false, replaced: false, aliases: false, ..Family::ANYTHING };
    check_local(|| InvertedIndex::new(false), EXACT, streams(family, 0..60));
}

#[test]
fn inverted_strict_is_exact_on_any_stream() {
    check_local(|| InvertedIndex::new(true), EXACT, streams(Family::ANYTHING, 0..240));
}

#[test]
fn inverted_deviates_as_it_says_and_strict_mends_it() {
    for (what, changes, query, wrong, right) in deviations() {
        assert_eq!(truth(&changes, &query), right, "{what}");
        assert_eq!(after_local(InvertedIndex::new(false), &changes, &query), wrong, "{what}");
        assert_eq!(after_local(InvertedIndex::new(true), &changes, &query), right, "{what}");
    }
}

#[test]
fn block_index_is_exact_on_any_stream() {
    check_concurrent(
        BlockIndexRung::new,
        EXACT,
        streams(Family::WELL_BEHAVED, 0..60).chain(streams(Family::ANYTHING, 0..300)),
    );
}

#[test]
fn block_index_answers_in_levels_or_in_scores() {
    for (top, spelled_out) in [(BlockIndexRung::levels(), false), (BlockIndexRung::new(), true)] {
        top.apply(&store(3, None, &[(71, 1), (72, 2)])).unwrap();
        top.apply(&store(5, None, &[(71, 1)])).unwrap();
        let mut scores = vec![];
        assert_eq!(top.answer(&[1, 2, 3], &mut scores), 2);
        assert_eq!(scores, if spelled_out { vec![(3, 2), (5, 1)] } else { vec![] });
        assert_eq!(top.answer(&[9], &mut scores), 0);
        assert_eq!(top.index().find(&[1]).depth(View::Device), 1);
    }
}

/// A known error of a design: its name, the changes before the query, the query, the wrong answer, and the true answer.
pub(crate) type Deviation = (&'static str, Vec<Change>, Vec<u64>, Scores, Scores);

/// Known errors common to rungs 1 and 3 of the ladder, each with its smallest example.
pub(crate) fn deviations() -> Vec<Deviation> {
    let prompts = vec![store(0, None, &[(71, 1), (72, 2)]), store(0, None, &[(73, 3), (74, 4)])];
    let orphan = vec![store(0, Some(71), &[(72, 2)])];
    let hole = vec![store(0, None, &[(71, 1), (72, 2), (73, 1), (74, 2)]), remove(0, &[73])];
    let renamed = vec![store(0, None, &[(71, 1), (72, 2)]), store(0, None, &[(71, 3)]), store(0, None, &[(73, 1)])];
    let aliases = vec![store(0, None, &[(71, 1), (72, 2)]), store(0, None, &[(73, 1)]), remove(0, &[71])];
    vec![
        ("another prefix", prompts, vec![1, 4], vec![(0, 2)], vec![(0, 1)]),
        ("repetition", vec![store(0, None, &[(71, 1)])], vec![1, 1, 1], vec![(0, 3)], vec![(0, 1)]),
        ("orphan", orphan, vec![2], vec![(0, 1)], vec![]),
        ("hole", hole, vec![1, 2, 1, 2], vec![(0, 4)], vec![(0, 2)]),
        ("new meaning", renamed, vec![1, 2], vec![(0, 2)], vec![(0, 1)]),
        ("second name", aliases, vec![1, 2], vec![(0, 2)], vec![(0, 1)]),
    ]
}

#[test]
fn is_exact_on_well_behaved_streams() {
    for strict in [false, true] {
        check_local(|| NestedMap::new(strict), EXACT, streams(Family::WELL_BEHAVED, 0..60));
    }
}

#[test]
fn is_exact_without_what_it_says() {
    // Holes, duplicates and unknown names are handled correctly.
    let family = Family { conflation: false, orphans: false, replaced: false, aliases: false, ..Family::ANYTHING };
    check_local(|| NestedMap::new(false), EXACT, streams(family, 0..60));
}

#[test]
fn strict_is_exact_on_any_stream() {
    check_local(|| NestedMap::new(true), EXACT, streams(Family::ANYTHING, 0..240));
}

#[test]
fn deviates_as_it_says_and_strict_mends_it() {
    for (what, changes, query, wrong, right) in deviations() {
        assert_eq!(truth(&changes, &query), right, "{what}");
        assert_eq!(after_local(NestedMap::new(false), &changes, &query), wrong, "{what}");
        assert_eq!(after_local(NestedMap::new(true), &changes, &query), right, "{what}");
    }
}

const PROMISE: Promise = Promise { refuses_orphans: true, tidy: true };

const PROMISED: Family =
    Family { conflation: true, holes: true, duplicates: true, unknown: true, ..Family::WELL_BEHAVED };

#[test]
fn well_behaved_streams() {
    check_local(RadixTree::new, PROMISE, streams(Family::WELL_BEHAVED, 0..60));
    check_concurrent(ConcurrentRadixTree::new, PROMISE, streams(Family::WELL_BEHAVED, 0..60));
}

#[test]
fn holes_duplicates_and_unknown_names() {
    check_local(RadixTree::new, PROMISE, streams(PROMISED, 0..80));
    check_concurrent(ConcurrentRadixTree::new, PROMISE, streams(PROMISED, 0..80));
}

#[test]
fn refuses_orphans_and_nothing_else() {
    let family = Family { orphans: true, ..PROMISED };
    check_local(RadixTree::new, PROMISE, streams(family, 0..80));
    check_concurrent(ConcurrentRadixTree::new, PROMISE, streams(family, 0..80));
}

#[test]
fn deviation_two_names_for_one_position_are_one_block() {
    let changes =
        [store(0, None, &[(71, 1)]), store(0, None, &[(81, 1)]), store(0, Some(71), &[(72, 2)]), remove(0, &[71])];
    assert_eq!(truth(&changes, &[1, 2]), [(0, 1)]);
    assert_eq!(after_local(RadixTree::new(), &changes, &[1, 2]), [(0, 2)]);
    assert_eq!(after_concurrent(ConcurrentRadixTree::new(), &changes, &[1, 2]), [(0, 2)]);
}

#[test]
fn deviation_a_name_announced_elsewhere_moves_alone() {
    let changes = [store(0, None, &[(71, 1), (72, 2)]), store(0, None, &[(71, 9)])];
    assert_eq!(truth(&changes, &[9, 2]), [(0, 2)]);
    assert_eq!(after_local(RadixTree::new(), &changes, &[9, 2]), [(0, 1)]);
    assert_eq!(after_concurrent(ConcurrentRadixTree::new(), &changes, &[9, 2]), [(0, 1)]);
}

#[test]
fn under_load() {
    for seed in 0..3 {
        let stream = stream(Family::WELL_BEHAVED, Names::Alike, seed, 2000);
        check_under_load(&EventPool::new(ConcurrentRadixTree::new(), 3), &stream, 3, true);
    }
    let stream = stream(PROMISED, Names::Alike, 9, 2000);
    check_under_load(&EventPool::new(ConcurrentRadixTree::new(), 3), &stream, 3, false);
}
