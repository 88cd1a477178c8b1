//! The rungs of the ladder against the reference, on random streams of the kinds that each promises to get right. The tests
//! of rungs 3 and 7 are in this file.

mod actor;
mod check;
mod grouped;
mod nested;
mod open;
mod pool;
mod positional;
mod radix;
mod streams;

use kvatlas_designs::ConcurrentDesign;
use kvatlas_designs::block_index::BlockIndexRung;
use kvatlas_designs::inverted::InvertedIndex;
use kvatlas_index::View;

use crate::check::{EXACT, after_local, check_concurrent, check_local, store, truth};
use crate::nested::deviations;
use crate::streams::{Family, streams};

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
