//! Tests of rung 3, and of the errors that it makes.

use kvatlas_designs::inverted::InvertedIndex;

use crate::check::{EXACT, after_local, check_local, truth};
use crate::nested::deviations;
use crate::streams::{Family, streams};

#[test]
fn is_exact_on_well_behaved_streams() {
    for strict in [false, true] {
        check_local(|| InvertedIndex::new(strict), EXACT, streams(Family::WELL_BEHAVED, 0..60));
    }
}

#[test]
fn is_exact_without_what_it_says() {
    // Holes, duplicates and unknown names are all right.
    let family = Family { conflation: false, orphans: false, replaced: false, aliases: false, ..Family::ANYTHING };
    check_local(|| InvertedIndex::new(false), EXACT, streams(family, 0..60));
}

#[test]
fn strict_is_exact_on_any_stream() {
    check_local(|| InvertedIndex::new(true), EXACT, streams(Family::ANYTHING, 0..240));
}

#[test]
fn deviates_as_it_says_and_strict_mends_it() {
    for (what, changes, query, wrong, right) in deviations() {
        assert_eq!(truth(&changes, &query), right, "{what}");
        assert_eq!(after_local(InvertedIndex::new(false), &changes, &query), wrong, "{what}");
        assert_eq!(after_local(InvertedIndex::new(true), &changes, &query), right, "{what}");
    }
}
