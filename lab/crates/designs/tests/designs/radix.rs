//! Tests of the radix trees of rungs 4 and 5, which are exact except for orphans, second names and moving names.

use kvatlas_designs::concurrent::ConcurrentRadixTree;
use kvatlas_designs::pool::EventPool;
use kvatlas_designs::radix::RadixTree;

use crate::check::{
    Promise, after_concurrent, after_local, check_concurrent, check_local, check_under_load, remove, store, truth,
};
use crate::streams::{Family, Names, stream, streams};

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
