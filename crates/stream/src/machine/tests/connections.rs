//! Lost connections.

use super::{Bench, a, b};
use crate::State;

#[test]
fn a_lost_connection_is_verified_before_anything_is_applied() {
    let mut bench = Bench::at_nine();
    bench.disconnected().is(State::Connecting).did(&[]);
    bench.connected().did(&["ask 9"]).is(State::Connecting);
    bench.lives([10, 11], a).holds(0..10);
    bench.replies([9, 10, 11], a).is(State::Connecting).end().is(State::Live).holds(0..12).partial(false);
    assert_eq!((bench.machine.counts.reconnects, bench.machine.counts.resets), (1, 0));
}

#[test]
fn what_was_lost_between_two_connections_is_read() {
    let mut bench = Bench::at_nine();
    bench.disconnected().connected().lives([13], a).replies(9..13, a).end().is(State::Live).holds(0..14);
}

#[test]
fn a_restart_between_two_connections_is_a_new_epoch() {
    let mut bench = Bench::at_nine();
    bench.disconnected().connected().lives([10], b).replies([9], b);
    bench.did(&["ask 9", "clear", "cancel", "reconnect"]).is(State::Connecting).holds([]);
    bench.connected().did(&["ask 0"]).lives([11], b).replies(0..11, b).end().is(State::Live).holds(0..12);
    assert_eq!(bench.machine.counts.epochs, 1);
    bench.partial(false);
}

#[test]
fn an_engine_that_restarted_and_published_less_is_a_new_epoch() {
    let mut bench = Bench::at_nine();
    bench.disconnected().connected().end().did(&["ask 9", "clear", "reconnect"]).holds([]);
    bench.connected().replies(0..3, b).end().is(State::Live).holds(0..3).partial(false);
}

#[test]
fn what_waited_on_a_lost_connection_is_forgotten() {
    let mut bench = Bench::at_nine();
    bench.lives([12], a).disconnected().did(&["ask 9", "cancel"]);
    assert_eq!(bench.machine.waiting(), 0);
}

#[test]
fn a_replay_that_a_lost_connection_interrupts_goes_on() {
    let mut bench = Bench::new(true);
    bench.connected().replies(0..3, a).disconnected().connected().did(&["ask 0", "cancel", "ask 2"]);
    bench.replies(2..6, a).end().is(State::Live).holds(0..6).partial(false);
}

#[test]
fn without_replay_the_next_number_verifies_a_connection() {
    let mut bench = Bench::at_nine_without_replay();
    bench.disconnected().connected().is(State::Connecting).lives([9], a).is(State::Connecting);
    bench.lives([10], a).is(State::Live).holds(0..11).partial(false);
    assert_eq!((bench.machine.counts.unverified_reconnects, bench.machine.counts.duplicate_batches), (1, 1));
}

#[test]
fn without_replay_a_higher_number_costs_the_holdings() {
    let mut bench = Bench::at_nine_without_replay();
    bench.disconnected().connected().lives([12, 13], a).did(&["clear"]).is(State::Live).holds([12, 13]).partial(true);
    assert_eq!(bench.machine.counts.lost_batches, 2);
}

#[test]
fn without_replay_a_lower_number_is_a_new_epoch() {
    let mut bench = Bench::at_nine_without_replay();
    bench.disconnected().connected().lives([3, 4], b).did(&["clear"]).is(State::Live).holds([3, 4]).partial(true);
    assert_eq!(bench.machine.counts.epochs, 1);
    let mut bench = Bench::at_nine_without_replay();
    bench.disconnected().connected().lives([0, 1], b).is(State::Live).holds([0, 1]).partial(false);
}

#[test]
fn a_dead_replay_leaves_it_to_the_next_batch_whether_the_engine_is_the_same() {
    let mut bench = Bench::at_nine();
    bench.disconnected().connected().lives([10], a).pass(3.0).is(State::Connecting).holds(0..10);
    bench.pass(5.0).is(State::Live).holds(0..11);
    assert_eq!(bench.machine.counts.unverified_reconnects, 1);
    let mut bench = Bench::at_nine();
    bench.disconnected().connected().pass(8.0).is(State::Connecting).lives([1], b).holds([]).is(State::Replaying);
    bench.pass(8.0).is(State::Live).holds([1]).partial(true);
}
