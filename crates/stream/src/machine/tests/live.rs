//! A stream that is live.

use super::{Bench, a};
use crate::State;

#[test]
fn takes_each_batch_once() {
    let mut bench = Bench::at_nine();
    bench.lives([10, 10, 11, 5, 11], a).holds(0..12).is(State::Live).did(&[]);
    assert_eq!(bench.machine.counts.duplicate_batches, 3);
}

#[test]
fn a_live_socket_behind_the_replay_repeats_nothing() {
    let mut bench = Bench::new(true);
    bench.connected().replies(0..1000, a).end();
    bench.lives(100..1002, a).is(State::Live).holds(0..1002);
    assert_eq!((bench.machine.counts.duplicate_batches, bench.machine.counts.replays), (0, 1));
}

#[test]
fn asks_after_silence_and_takes_what_was_lost_at_the_end() {
    let mut bench = Bench::at_nine();
    bench.pass(4.9).did(&[]).pass(0.2).did(&["ask 9"]).is(State::Live);
    bench.replies([9, 10], a).is(State::Live).end().is(State::Live).holds(0..11);
    bench.pass(4.0).lives([11], a).pass(4.0).did(&[]);
}

#[test]
fn an_idle_engine_that_answers_is_never_stale() {
    let mut bench = Bench::at_nine();
    for _ in 0..30 {
        bench.pass(5.0).did(&["ask 9"]).replies([9], a).end().is(State::Live);
    }
}

#[test]
fn a_replay_that_begins_ahead_of_a_backlog_is_no_loss() {
    let mut bench = Bench::at_nine();
    bench.pass(5.1).did(&["ask 9"]);
    // The engine has published faster than is read here: its buffer begins at 20, and the live connection is at 10.
    bench.pass(0.1).lives([10], a).replies([20], a).did(&["cancel"]).is(State::Gap).holds(0..11);
    bench.lives(11..20, a).is(State::Gap).lives(20..30, a).is(State::Live).holds(0..30);
    bench.pass(1.1).did(&["ask 29"]).replies([29], a).end().is(State::Live).partial(false);
}

#[test]
fn a_replay_that_begins_late_is_a_loss_where_nothing_comes_live() {
    let mut bench = Bench::at_nine();
    bench.pass(5.1).did(&["ask 9"]).pass(0.1).replies([20], a);
    assert_eq!((bench.machine.counts.truncated_replays, bench.machine.counts.lost_batches), (1, 10));
}

#[test]
fn silence_is_stale() {
    let mut bench = Bench::at_nine();
    bench.pass(29.0).is(State::Live).pass(2.0).is(State::Stale);
    bench.log.did.clear();
    bench.pass(10.0);
    assert!(bench.log.did.contains(&"ask 9".to_owned()), "it goes on asking: {:?}", bench.log.did);
}

#[test]
fn an_answer_ends_staleness() {
    let mut bench = Bench::at_nine();
    bench.pass(35.2).is(State::Stale).replies([9, 10], a).is(State::Stale).end().is(State::Live).holds(0..11);
}

#[test]
fn a_batch_ends_staleness_once_the_engine_is_known_to_be_the_same() {
    let mut bench = Bench::at_nine();
    bench.pass(31.0).is(State::Stale);
    bench.log.did.clear();
    bench.lives([10], a).is(State::Connecting).holds(0..10);
    bench.replies([9, 10], a).end().is(State::Live).holds(0..11);
}

#[test]
fn without_replay_a_connection_is_a_sign_of_life() {
    let mut bench = Bench::at_nine_without_replay();
    bench.pass(600.0).is(State::Live).did(&[]);
    bench.disconnected().is(State::Stale);
}

#[test]
fn without_replay_a_lost_connection_becomes_stale() {
    let mut bench = Bench::at_nine_without_replay();
    bench.disconnected().is(State::Connecting).pass(29.0).is(State::Connecting).pass(2.0).is(State::Stale);
}
