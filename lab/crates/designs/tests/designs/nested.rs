//! Tests of rung 1, and of its deviations.

use kvatlas_designs::nested::NestedMap;
use kvatlas_designs::{Change, Scores};

use crate::check::{EXACT, after_local, check_local, remove, store, truth};
use crate::streams::{Family, streams};

/// A deviation: its name, the changes before it, the query, the answer, and the true answer.
pub(crate) type Deviation = (&'static str, Vec<Change>, Vec<u64>, Scores, Scores);

/// The deviations common to rungs 1 and 3, each with its smallest example.
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
