//! Tests of the beginning of a stream, and of blocks restored from a snapshot, which are proved before they are trusted
//! and cleared if they cannot be proved.

use xxhash_rust::xxh3::xxh3_64;

use super::Bench;
use super::a;
use super::b;
use crate::{Mark, Outcome, Skip, State};

#[test]
fn nothing_is_asked_before_the_subscription() {
    Bench::new(true).pass(60.0).did(&[]).is(State::Connecting);
}

#[test]
fn reads_everything_first() {
    let mut bench = Bench::new(true);
    bench.connected().did(&["ask 0"]).is(State::Replaying);
    bench.lives([3, 4], a).replies(0..4, a).is(State::Replaying).holds(0..5);
    bench.end().is(State::Live).partial(false).holds(0..5);
    bench.lives([5], a).holds(0..6);
}

#[test]
fn a_live_batch_is_a_connection() {
    Bench::new(true).lives([0], a).did(&["ask 0"]).is(State::Replaying).holds([0]);
}

#[test]
fn an_engine_that_published_nothing_is_whole() {
    let mut bench = Bench::new(true);
    bench.connected().end().is(State::Live).partial(false);
    bench.lives([0, 1], a).holds([0, 1]).is(State::Live).partial(false);
}

#[test]
fn asks_soon_again_for_what_came_before_the_subscription_worked() {
    let mut bench = Bench::new(true);
    bench.connected().replies([0, 1], a).end().did(&["ask 0"]);
    bench.pass(0.4).did(&[]).pass(0.2).did(&["ask 1"]);
    bench.replies([1, 2], a).end().is(State::Live).holds([0, 1, 2]);
    assert_eq!(bench.machine.counts.recovered_batches, 1);
}

#[test]
fn a_replay_that_begins_late_is_partial() {
    let mut bench = Bench::new(true);
    bench.connected().replies(50..53, a).end().is(State::Live).partial(true).holds(50..53).did(&["ask 0"]);
    assert_eq!(bench.machine.counts.truncated_replays, 1);
    assert_eq!((bench.machine.counts.resets, bench.machine.counts.lost_batches), (0, 50));
    bench.lives([53], a).holds(50..54);
}

#[test]
fn an_empty_replay_buffer_is_partial_if_something_was_published() {
    let mut bench = Bench::new(true);
    bench.connected().lives([7, 8], a).end().is(State::Gap).did(&["ask 0"]);
    bench.pass(0.3).end().pass(0.5).end().is(State::Live).partial(true).holds([7, 8]);
}

#[test]
fn an_empty_answer_may_be_older_than_the_first_batch() {
    let mut bench = Bench::new(true);
    bench.connected().lives([1], a).end().is(State::Gap).pass(0.3).replies([0], a).is(State::Live).holds([0, 1]);
}

#[test]
fn without_replay_begins_with_the_first_batch() {
    let mut bench = Bench::new(false);
    bench.connected().did(&[]).is(State::Live).partial(true);
    bench.lives([7, 8], a).is(State::Live).partial(true).holds([7, 8]);
    let mut bench = Bench::new(false);
    bench.connected().lives([0, 1], a).is(State::Live).partial(false).holds([0, 1]);
}

#[test]
fn a_dead_replay_is_given_up() {
    let mut bench = Bench::new(true);
    bench.connected().lives([7, 8], a).is(State::Replaying).holds([]);
    bench.pass(1.9).did(&["ask 0"]).pass(0.2).did(&["cancel"]).pass(0.2).did(&["ask 0"]);
    bench.pass(7.0).is(State::Live).holds([7, 8]).partial(true);
    bench.pass(22.0).is(State::Stale);
    assert!(bench.machine.counts.failed_replays > 3);
    bench.holds([7, 8]).partial(true);
}

#[test]
fn a_dead_replay_does_not_stop_the_live_stream() {
    let mut bench = Bench::new(true);
    bench.connected();
    for seq in 7..40 {
        bench.lives([seq], a).pass(0.5);
    }
    // While there was hope the buffer forgot some; later it does not wait for the replay any more.
    assert!(bench.machine.counts.overflowed_batches > 0);
    bench.is(State::Live).partial(true);
    let first = bench.log.held[0];
    bench.holds(first..40);
    bench.lives([41], a).is(State::Gap).pass(0.11).is(State::Live).holds([41]);
}

#[test]
fn a_replay_that_returns_makes_it_whole() {
    let mut bench = Bench::new(true);
    bench.connected().lives([3], a).pass(7.0).is(State::Live).partial(true).holds([3]);
    bench.lives([4], a).pass(4.8).lives([5], a);
    assert!(bench.log.did.ends_with(&["ask 0".to_owned()]), "{:?}", bench.log.did);
    bench.is(State::Live).holds(3..6);
    bench.log.did.clear();
    bench.replies([0], a).did(&["clear", "cancel", "reconnect"]).is(State::Connecting).holds([]);
    bench.connected().did(&["ask 0"]).is(State::Replaying);
    bench.lives([6], a).replies(0..6, a).end().is(State::Live).partial(false).holds(0..7);
}

#[test]
fn a_replay_that_returns_to_one_that_holds_nothing_is_read_to_its_end_first() {
    for from in [0, 3] {
        let mut bench = Bench::new(true);
        bench.connected().pass(8.0).is(State::Live).partial(true).holds([]);
        bench.pass(5.0).replies([from], a).is(State::Replaying);
        bench.replies(from + 1..8, a).is(State::Replaying).end().is(State::Live).partial(from > 0).holds(from..8);
    }
}

#[test]
fn a_replay_that_returns_with_no_more_than_is_known_changes_nothing() {
    let mut bench = Bench::new(true);
    bench.connected().lives([3], a).pass(7.0).lives([4], a).pass(4.8).lives([5], a);
    bench.log.did.clear();
    bench.replies(4..6, a).end().is(State::Live).partial(true).holds(3..6).did(&[]);
    for seq in 6..20 {
        bench.lives([seq], a).pass(4.0);
    }
    bench.did(&[]);
}

#[test]
fn a_replay_that_breaks_off_is_taken_up_where_it_ended() {
    let mut bench = Bench::new(true);
    bench.connected().replies(0..4, a).pass(2.05).did(&["ask 0", "cancel"]).is(State::Replaying);
    bench.pass(0.2).did(&["ask 3"]).replies(3..6, a).end().is(State::Live).partial(false).holds(0..6);
}

#[test]
fn a_replay_that_stays_broken_off_is_gone_on_with_only_if_the_next_number_comes() {
    let mut bench = Bench::new(true);
    bench.connected().replies(0..4, a).pass(20.0).is(State::Connecting);
    bench.lives([4], a).is(State::Live).holds(0..5);
    let mut bench = Bench::new(true);
    bench.connected().replies(0..4, a).pass(20.0).lives([6], a).is(State::Live).partial(true).holds([6]);
}

/// Creates a machine that is not connected, with batches 0 to 9 restored from a snapshot; these are from before the
/// engine's first restart.
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
