//! Tests that what a snapshot had is proved before it is trusted, and forgotten if it is not.

use xxhash_rust::xxh3::xxh3_64;

use super::{Bench, a, b};
use crate::State;
use crate::{Mark, Outcome, Skip};

/// A machine that is not connected, with batches 0 to 9 of the first life out of a snapshot.
fn restored() -> Bench {
    let mut bench = Bench::new(true);
    bench.log.held = (0..10).collect();
    bench.machine.restore(Mark { seq: 9, hash: xxh3_64(&a(9)) }, 0, false);
    bench
}

#[test]
fn the_marked_batch_proves_it() {
    let mut bench = restored();
    bench.is(State::Connecting).connected().did(&["ask 9"]).is(State::Connecting);
    bench.lives([12], a).holds(0..10);
    bench.replies([9], a);
    assert_eq!(bench.machine.take_restored(), Some(Outcome::Kept));
    assert_eq!(bench.machine.take_restored(), None, "it is told once");
    bench.replies(10..12, a).end().is(State::Live).holds(0..13).partial(false);
    assert_eq!(
        (bench.machine.counts.resets, bench.machine.counts.epochs, bench.machine.counts.lost_batches),
        (0, 0, 0)
    );
}

#[test]
fn another_batch_under_the_number_is_another_life() {
    let mut bench = restored();
    bench.connected().replies([9], b).did(&["ask 9", "clear", "cancel", "reconnect"]).holds([]);
    assert_eq!(bench.machine.take_restored(), Some(Outcome::Restarted));
    bench.connected().did(&["ask 0"]).replies(0..11, b).end().is(State::Live).holds(0..11).partial(false);
}

#[test]
fn an_engine_that_has_not_come_so_far_is_another_life() {
    let mut bench = restored();
    bench.connected().end().did(&["ask 9", "clear", "reconnect"]).holds([]);
    assert_eq!(bench.machine.take_restored(), Some(Outcome::Restarted));
}

#[test]
fn a_buffer_that_does_not_reach_back_costs_it() {
    let mut bench = restored();
    bench.connected().replies(12..20, a).did(&["ask 9", "clear"]).end().is(State::Live).holds(12..20).partial(true);
    assert_eq!(bench.machine.take_restored(), Some(Outcome::TurnedOver));
    assert_eq!((bench.machine.counts.truncated_replays, bench.machine.counts.lost_batches), (1, 2));
}

#[test]
fn a_number_that_follows_proves_nothing() {
    let mut bench = restored();
    bench.connected().lives([10], a).pass(3.0).holds(0..10).is(State::Connecting);
    // Nobody answers.
    bench.pass(6.0).is(State::Live).holds([10]).partial(true);
    assert_eq!(bench.machine.take_restored(), Some(Outcome::NoAnswer));
    assert_eq!(bench.machine.counts.unverified_reconnects, 0);
}

#[test]
fn a_connection_that_is_lost_in_between_changes_nothing() {
    let mut bench = restored();
    bench.connected().lives([10], a).disconnected().holds(0..10).is(State::Connecting);
    assert_eq!(bench.machine.mark(), Ok(Mark { seq: 9, hash: xxh3_64(&a(9)) }), "as good as it was");
    bench.connected().replies([9, 10], a).end().is(State::Live).holds(0..11);
    assert_eq!(bench.machine.take_restored(), Some(Outcome::Kept));
}

#[test]
fn only_what_is_proved_has_a_mark() {
    let mut bench = Bench::at_nine();
    assert_eq!(bench.machine.mark(), Ok(Mark { seq: 9, hash: xxh3_64(&a(9)) }));
    assert_eq!(bench.machine.reach(), (0, false));
    // Taken for the same engine by its number alone.
    bench.disconnected().connected().lives([10], a).pass(8.0).is(State::Live).holds(0..11);
    assert_eq!(bench.machine.mark(), Err(Skip::Unproven));
    assert_eq!(Bench::new(true).machine.mark(), Err(Skip::Nothing));
}
