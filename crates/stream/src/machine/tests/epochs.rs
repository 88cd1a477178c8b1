//! Engines that restart.

use super::{Bench, a, b};
use crate::State;

#[test]
fn a_number_with_other_contents_is_a_new_epoch() {
    let mut bench = Bench::at_nine();
    bench.lives([0], b).did(&["clear", "reconnect"]).is(State::Connecting).holds([]);
    bench.connected().did(&["ask 0"]).lives([1], b).replies([0, 1], b).end().holds([0, 1]).partial(false);
    // It would have been strange without a new connection.
    bench.is(State::Conflict).pass(5.1).is(State::Live);
    assert_eq!((bench.machine.counts.epochs, bench.machine.counts.contradictions), (1, 1));
}

#[test]
fn a_number_too_old_to_tell_is_asked_about() {
    let mut bench = Bench::at_nine();
    bench.lives(10..400, a).did(&[]);
    bench.lives([0], a).did(&["ask 399"]).is(State::Connecting);
    bench.replies([399], a).end().is(State::Conflict).holds(0..400).pass(5.1).is(State::Live);
    bench.log.did.clear();
    bench.replies([399], a).end().lives([0], b).did(&["ask 399"]).end().did(&["clear", "reconnect"]).holds([]);
    assert_eq!(bench.machine.counts.epochs, 1);
}

#[test]
fn without_replay_a_number_too_old_to_tell_is_a_new_epoch() {
    let mut bench = Bench::at_nine_without_replay();
    bench.lives(10..400, a).lives([0], b).did(&["clear"]).holds([0]).partial(false);
    bench.is(State::Conflict).pass(5.1).is(State::Live);
}

#[test]
fn a_silent_restart_shows_in_the_next_probe() {
    let mut bench = Bench::at_nine();
    bench.pass(5.1).replies([9], b).did(&["ask 9", "clear", "cancel", "reconnect"]).holds([]);
    let mut bench = Bench::at_nine();
    bench.pass(5.1).end().did(&["ask 9", "clear", "reconnect"]).holds([]);
}

#[test]
fn a_replay_that_keeps_nothing_is_not_a_restart() {
    let mut bench = Bench::new(true);
    bench.connected().end().lives(0..3, a).is(State::Live);
    bench.pass(0.6).end().pass(5.1).end().is(State::Live).holds(0..3).did(&["ask 0", "ask 2", "ask 2"]);
}

#[test]
fn an_epoch_without_replay_answers_is_partial_in_the_end() {
    let mut bench = Bench::at_nine();
    bench.lives([4], b).holds([]).connected().lives([5], b).pass(8.0).is(State::Live).holds([5]).partial(true);
}

#[test]
fn answers_without_a_question_are_nothing() {
    let mut bench = Bench::at_nine();
    bench.replies([10, 9], b).end().is(State::Live).holds(0..10).did(&[]);
}

#[test]
fn enormous_numbers_do_no_harm() {
    let mut bench = Bench::at_nine();
    bench.lives([u64::MAX - 1], a).pass(8.0).is(State::Live).holds([u64::MAX - 1]).partial(true);
    bench.log.did.clear();
    bench.lives([10], a).holds([]).replies(0..10, a).end().holds(0..11).partial(false);
}

#[test]
fn a_probe_is_compared_although_much_came_meanwhile() {
    let mut bench = Bench::at_nine();
    bench.pass(5.1).did(&["ask 9"]).lives(10..400, a).replies([9], b).did(&["clear", "cancel", "reconnect"]);
    let mut bench = Bench::at_nine();
    bench.pass(5.1).did(&["ask 9"]).lives(10..400, a).replies(9..400, a).end().is(State::Live).holds(0..400);
}
