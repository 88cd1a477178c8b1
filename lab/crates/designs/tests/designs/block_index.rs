//! Tests of rung 7.

use kvatlas_designs::ConcurrentDesign;
use kvatlas_designs::block_index::BlockIndexRung;
use kvatlas_index::View;

use crate::check::{EXACT, check_concurrent, store};
use crate::streams::{Family, streams};

#[test]
fn is_exact_on_any_stream() {
    check_concurrent(
        BlockIndexRung::new,
        EXACT,
        streams(Family::WELL_BEHAVED, 0..60).chain(streams(Family::ANYTHING, 0..300)),
    );
}

#[test]
fn answers_in_levels_or_in_scores() {
    for (top, spelled_out) in [(BlockIndexRung::levels(), false), (BlockIndexRung::new(), true)] {
        top.apply(&store(3, None, &[(71, 1), (72, 2)])).unwrap();
        top.apply(&store(5, None, &[(71, 1)])).unwrap();
        let mut scores = vec![];
        assert_eq!(top.answer(&[1, 2, 3], &mut scores), 2);
        assert_eq!(scores, if spelled_out { vec![(3, 2), (5, 1)] } else { vec![] });
        assert_eq!(top.answer(&[9], &mut scores), 0);
        assert_eq!(top.match_only(&[1]).depth(View::Device), 1);
    }
}
