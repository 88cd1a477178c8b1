//! Two publishers that are connected under one name.

use super::{Bench, a, b};
use crate::State;

#[test]
fn nothing_is_trusted_while_another_waits() {
    for mut bench in [Bench::at_nine_without_replay(), Bench::at_nine()] {
        assert!(bench.machine.trusted());
        bench.machine.rival();
        bench.is(State::Conflict);
        assert!(!bench.machine.trusted());
        assert_eq!(bench.machine.counts.rivals, 1);
        bench.machine.alone();
        bench.is(State::Live).holds(0..10);
        assert!(bench.machine.trusted());
    }
}

#[test]
fn the_replay_socket_tells_that_the_first_is_the_engine() {
    let mut bench = Bench::at_nine();
    bench.machine.rival();
    bench.pass(1.0).is(State::Conflict).lives([10], a).is(State::Conflict);
    bench.pass(1.0).replies([9, 10], a).end().is(State::Live).holds(0..11);
    assert!(bench.machine.trusted(), "the other one may wait for ever");
    bench.machine.rival();
    assert!(!bench.machine.trusted(), "another one");
}

#[test]
fn without_a_replay_socket_batches_prove_nothing() {
    let mut bench = Bench::at_nine_without_replay();
    bench.machine.rival();
    bench.lives([10, 11], a).pass(5.0).is(State::Conflict).holds(0..12);
    // The first is gone: the other one has its place.
    bench.disconnected().connected();
    bench.machine.alone();
    bench.lives([12], a).is(State::Live).holds(0..13);
    assert!(bench.machine.trusted() && bench.machine.unverified());
}

#[test]
fn who_takes_the_first_ones_place_is_to_be_proven() {
    for (batches, is_engine) in [(a as fn(u64) -> Vec<u8>, true), (b as fn(u64) -> Vec<u8>, false)] {
        let mut bench = Bench::at_nine();
        bench.machine.rival();
        bench.disconnected().connected();
        bench.machine.alone();
        bench.replies([9], a).end().is(State::Live);
        assert!(bench.machine.trusted(), "what is held is what the engine held a moment ago");
        bench.lives([10], batches).is(State::Conflict);
        assert!(!bench.machine.trusted());
        bench.pass(1.0).replies([9, 10], a).end();
        assert_eq!(bench.machine.trusted(), is_engine);
        assert_eq!(bench.machine.counts.epochs, u64::from(!is_engine));
    }
}
