//! Missing batches.

use super::{Bench, a};
use crate::State;

#[test]
fn fills_a_gap_from_the_replay() {
    let mut bench = Bench::at_nine();
    bench.lives([12], a).did(&["ask 9"]).is(State::Gap).holds(0..10);
    bench.lives([13], a).replies([9, 10], a).is(State::Gap).replies([11], a).is(State::Live).holds(0..14);
    bench.replies([12, 13], a).end().is(State::Live).holds(0..14).partial(false);
    assert_eq!((bench.machine.counts.gaps, bench.machine.counts.resets), (1, 0));
    assert_eq!(bench.machine.counts.recovered_batches, 2);
}

#[test]
fn a_late_batch_closes_a_gap() {
    let mut bench = Bench::at_nine();
    bench.lives([11, 12, 10], a).is(State::Live).holds(0..13).did(&["ask 9"]);
    bench.replies(9..13, a).end().is(State::Live).holds(0..13);
    assert_eq!((bench.machine.counts.gaps, bench.machine.counts.recovered_batches), (1, 1));
}

#[test]
fn a_gap_that_the_replay_has_forgotten_costs_the_holdings() {
    let mut bench = Bench::at_nine();
    bench.lives([15], a).replies([12], a).did(&["ask 9", "clear"]).is(State::Gap);
    bench.replies(13..16, a).end().is(State::Live).partial(true).holds(12..16);
    let counts = bench.machine.counts;
    assert_eq!((counts.truncated_replays, counts.lost_batches, counts.resets), (1, 2, 1));
}

#[test]
fn a_replay_that_begins_right_behind_the_last_batch_proves_nothing() {
    let mut bench = Bench::at_nine();
    bench.lives([12], a).replies([10, 11, 12], a).end().is(State::Live).partial(true).holds(10..13);
    bench.did(&["ask 9", "clear"]);
}

#[test]
fn retries_a_gap_and_gives_it_up() {
    let mut bench = Bench::at_nine();
    bench.lives([12], a).pass(8.0);
    bench.did(&["ask 9", "cancel", "ask 9", "cancel", "ask 9", "cancel", "clear"]);
    bench.is(State::Live).partial(true).holds([12]);
    assert_eq!((bench.machine.counts.lost_batches, bench.machine.counts.resets), (2, 1));
}

#[test]
fn a_gap_is_asked_for_although_a_probe_is_out() {
    let mut bench = Bench::at_nine();
    bench.pass(5.1).did(&["ask 9"]).lives([10, 12], a).did(&["cancel", "ask 10"]);
}

#[test]
fn a_hole_within_a_replay_is_asked_for_again() {
    let mut bench = Bench::new(true);
    bench.connected().replies([0, 1, 4], a).end().is(State::Gap).holds([0, 1]);
    bench.pass(0.3).did(&["ask 0", "ask 1"]).replies([1, 2, 3], a).is(State::Live).holds(0..5);
}

#[test]
fn without_replay_disorder_has_a_moment() {
    let mut bench = Bench::at_nine_without_replay();
    bench.lives([11], a).is(State::Gap).pass(0.05).lives([10], a).is(State::Live).holds(0..12).partial(false);
}

#[test]
fn without_replay_a_gap_costs_the_holdings() {
    let mut bench = Bench::at_nine_without_replay();
    bench.lives([11, 12, 15], a).is(State::Gap).pass(0.11).did(&["clear"]).is(State::Gap).holds([11, 12]);
    bench.pass(0.11).did(&["clear"]).is(State::Live).partial(true).holds([15]);
    assert_eq!(bench.machine.counts.lost_batches, 3);
}

#[test]
fn a_full_buffer_forgets_the_newest_and_asks_for_them() {
    let mut bench = Bench::new(true);
    bench.connected().lives(5..20, a);
    assert_eq!((bench.machine.waiting(), bench.machine.counts.overflowed_batches), (8, 7));
    bench.replies(0..5, a).did(&["ask 0"]).end().is(State::Gap).holds(0..13).did(&["ask 12"]);
    bench.replies(12..19, a).is(State::Gap).replies([19], a).is(State::Live).holds(0..20);
}
