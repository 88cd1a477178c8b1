//! Tests of lost connections, of two publishers connected with one topic, of missing batches, and of a live stream.

use super::Bench;
use super::a;
use super::b;
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
