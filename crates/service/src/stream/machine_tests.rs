//! Each transition of the machine by itself.

use std::time::Duration;

use super::machine::{Effects, Machine};
use crate::config::StreamConfig;
use crate::state::State;

/// What the machine did, as text, and what is held.
#[derive(Default)]
struct Log {
    did: Vec<String>,
    held: Vec<u64>,
}

impl Effects<Vec<u8>> for Log {
    fn apply(&mut self, seq: u64, _: &Vec<u8>, _: bool) {
        self.held.push(seq);
    }
    fn clear(&mut self) {
        self.did.push("clear".to_owned());
        self.held.clear();
    }
    fn ask(&mut self, from: u64) {
        self.did.push(format!("ask {from}"));
    }
    fn cancel(&mut self) {
        self.did.push("cancel".to_owned());
    }
    fn reconnect(&mut self) {
        self.did.push("reconnect".to_owned());
    }
}

/// A machine with its clock.
struct Bench {
    machine: Machine<Vec<u8>>,
    log: Log,
    now: Duration,
}

/// A batch of the first life of an engine.
fn a(seq: u64) -> Vec<u8> {
    format!("a{seq}").into_bytes()
}

/// Of the second.
fn b(seq: u64) -> Vec<u8> {
    format!("b{seq}").into_bytes()
}

fn config() -> StreamConfig {
    StreamConfig { buffer_batches: 8, ..StreamConfig::default() }
}

impl Bench {
    fn new(replay: bool) -> Self {
        let machine = Machine::new(&config(), replay, Default::default(), Duration::ZERO);
        Self { machine, log: Log::default(), now: Duration::ZERO }
    }

    /// Connected, batches 0 to 9 read from the replay socket, live.
    fn at_nine() -> Self {
        let mut bench = Self::new(true);
        bench.connected().replies(0..10, a).end();
        bench.settled();
        bench
    }

    /// Connected without replay, with batches 0 to 9.
    fn at_nine_without_replay() -> Self {
        let mut bench = Self::new(false);
        bench.connected().lives(0..10, a);
        assert!(bench.machine.trusted() && !bench.machine.partial());
        bench
    }

    /// Lets the question right after the beginning pass.
    fn settled(&mut self) {
        self.pass(0.5).replies([9], a).end();
        assert!(self.machine.trusted());
        self.log.did.clear();
    }

    fn connected(&mut self) -> &mut Self {
        self.machine.connected(self.now, &mut self.log);
        self
    }

    fn disconnected(&mut self) -> &mut Self {
        self.machine.disconnected(&mut self.log);
        self
    }

    fn lives(&mut self, seqs: impl IntoIterator<Item = u64>, life: fn(u64) -> Vec<u8>) -> &mut Self {
        for seq in seqs {
            self.machine.live(self.now, seq, life(seq), &mut self.log);
        }
        self
    }

    fn replies(&mut self, seqs: impl IntoIterator<Item = u64>, life: fn(u64) -> Vec<u8>) -> &mut Self {
        for seq in seqs {
            self.machine.reply(self.now, seq, life(seq), &mut self.log);
        }
        self
    }

    fn end(&mut self) -> &mut Self {
        self.machine.reply_end(self.now, &mut self.log);
        self
    }

    /// Time passes, and the machine is called whenever it wants to be.
    fn pass(&mut self, seconds: f64) -> &mut Self {
        let until = self.now + Duration::from_secs_f64(seconds);
        let mut calls = 0;
        while let Some(at) = self.machine.wake(self.now).filter(|at| *at <= until) {
            assert!(at > self.now || calls < 100, "the machine wants to be called again and again at {:?}", self.now);
            calls += 1;
            self.now = self.now.max(at);
            self.machine.tick(self.now, &mut self.log);
        }
        self.now = until;
        self.machine.tick(until, &mut self.log);
        self
    }

    #[track_caller]
    fn did(&mut self, expected: &[&str]) -> &mut Self {
        assert_eq!(std::mem::take(&mut self.log.did), expected);
        self
    }

    #[track_caller]
    fn holds(&mut self, expected: impl IntoIterator<Item = u64>) -> &mut Self {
        assert_eq!(self.log.held, expected.into_iter().collect::<Vec<_>>());
        self
    }

    #[track_caller]
    fn is(&mut self, state: State) -> &mut Self {
        assert_eq!(self.machine.state(self.now), state);
        assert_eq!(self.machine.trusted(), state == State::Live);
        self
    }

    #[track_caller]
    fn partial(&mut self, expected: bool) -> &mut Self {
        assert_eq!(self.machine.partial(), expected);
        self
    }
}

// ---- the beginning ----

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
    assert_eq!((bench.machine.counts.resets, bench.machine.counts.lost_batches), (0, 0));
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
    bench.replies([0], a).is(State::Replaying).holds([0]);
    bench.lives([6], a).replies(1..6, a).end().is(State::Live).partial(false).holds(0..7);
}

#[test]
fn a_replay_that_returns_to_one_that_holds_nothing_is_read_to_its_end_first() {
    for from in [0, 3] {
        let mut bench = Bench::new(true);
        bench.connected().pass(8.0).is(State::Live).partial(true).holds([]);
        bench.pass(6.0).replies([from], a).is(State::Replaying);
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

// ---- live ----

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

// ---- gaps ----

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
    bench.replies(0..5, a).end().is(State::Live).holds(0..13);
    bench.log.did.clear();
    bench.pass(0.0).did(&["ask 12"]).replies(12..20, a).end().holds(0..20);
}

// ---- connections ----

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

// ---- epochs ----

#[test]
fn a_number_with_other_contents_is_a_new_epoch() {
    let mut bench = Bench::at_nine();
    bench.lives([0], b).did(&["clear", "ask 0"]).is(State::Replaying).holds([0]);
    bench.lives([1], b).replies([0, 1], b).end().is(State::Live).holds([0, 1]).partial(false);
    assert_eq!(bench.machine.counts.epochs, 1);
}

#[test]
fn a_number_too_old_to_tell_is_asked_about() {
    let mut bench = Bench::at_nine();
    bench.lives(10..400, a).did(&[]);
    bench.lives([0], a).did(&["ask 399"]).is(State::Connecting);
    bench.replies([399], a).end().is(State::Live).holds(0..400);
    bench.lives([0], b).did(&["ask 399"]).end().did(&["clear", "reconnect"]).holds([]);
    assert_eq!(bench.machine.counts.epochs, 1);
}

#[test]
fn without_replay_a_number_too_old_to_tell_is_a_new_epoch() {
    let mut bench = Bench::at_nine_without_replay();
    bench.lives(10..400, a).lives([0], b).did(&["clear"]).is(State::Live).holds([0]).partial(false);
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
    bench.lives([4], b).is(State::Replaying).holds([]).pass(8.0).is(State::Live).holds([4]).partial(true);
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
    bench.lives([10], a).is(State::Replaying).replies(0..11, a).end().is(State::Live).holds(0..11).partial(false);
}

#[test]
fn a_probe_is_compared_although_much_came_meanwhile() {
    let mut bench = Bench::at_nine();
    bench.pass(5.1).did(&["ask 9"]).lives(10..400, a).replies([9], b).did(&["clear", "cancel", "reconnect"]);
    let mut bench = Bench::at_nine();
    bench.pass(5.1).did(&["ask 9"]).lives(10..400, a).replies(9..400, a).end().is(State::Live).holds(0..400);
}
