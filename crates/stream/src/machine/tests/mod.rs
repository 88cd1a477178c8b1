//! Tests of each transition of the stream machine by itself, and of engines that restart. The module `model` tests the
//! machine against a model of an engine.

mod beginning;
mod connections;
mod model;
mod truth;

use std::time::Duration;

use super::{Effects, Machine, MachineConfig, Verdict};
use crate::State;

/// Record of the machine's requested actions, as text, and of the batches whose blocks are held.
#[derive(Default)]
struct Log {
    did: Vec<String>,
    held: Vec<u64>,
}

impl Effects<Vec<u8>> for Log {
    fn apply(&mut self, seq: u64, payload: &Vec<u8>, _: bool) -> Verdict {
        let verdict = match payload[0] {
            b'x' => return Verdict::Refused,
            b'p' => Verdict::Partial,
            b'c' => Verdict::Cleared,
            b's' => Verdict::UnknownEvents,
            _ => Verdict::Whole,
        };
        self.held.push(seq);
        verdict
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

/// Stream machine under test, with its clock and the record of its actions.
struct Bench {
    machine: Machine<Vec<u8>>,
    log: Log,
    now: Duration,
}

/// Makes a batch that an engine publishes before its first restart.
fn a(seq: u64) -> Vec<u8> {
    format!("a{seq}").into_bytes()
}

/// Makes a batch that an engine publishes after its first restart.
fn b(seq: u64) -> Vec<u8> {
    format!("b{seq}").into_bytes()
}

/// Makes a batch that cannot be decoded and may have removed blocks.
fn unreadable(seq: u64) -> Vec<u8> {
    format!("x{seq}").into_bytes()
}

/// Makes a batch with a store event that cannot be decoded.
fn with_unreadable_store(seq: u64) -> Vec<u8> {
    format!("p{seq}").into_bytes()
}

/// Makes a batch that clears all blocks.
fn clearing(seq: u64) -> Vec<u8> {
    format!("c{seq}").into_bytes()
}

/// Returns the service's default settings of a stream machine, but with buffers for few batches.
fn config() -> MachineConfig {
    MachineConfig {
        stale_after: Duration::from_secs(30),
        probe_interval: Duration::from_secs(5),
        replay_timeout: Duration::from_secs(2),
        replay_total_timeout: Duration::from_secs(300),
        replay_attempts: 3,
        reorder_grace: Duration::from_millis(100),
        reconnect_min: Duration::from_millis(100),
        reconnect_max: Duration::from_secs(5),
        buffer_batches: 8,
        buffer_bytes: 256 << 20,
        all_buffer_bytes: 2 << 30,
    }
}

impl Bench {
    fn new(replay: bool) -> Self {
        let machine = Machine::new(config(), Default::default(), replay, Default::default(), Duration::ZERO);
        Self { machine, log: Log::default(), now: Duration::ZERO }
    }

    /// Creates a connected machine that has read batches 0 to 8 in a replay, and batch 9 both live and in a replay.
    fn at_nine() -> Self {
        let mut bench = Self::new(true);
        bench.connected().replies(0..9, a).end().lives([9], a);
        bench.settled();
        bench
    }

    /// Creates a connected machine for an engine without a replay socket, with batches 0 to 9 applied.
    fn at_nine_without_replay() -> Self {
        let mut bench = Self::new(false);
        bench.connected().lives(0..10, a);
        assert!(bench.machine.trusted() && !bench.machine.partial());
        bench
    }

    /// Answers the replay request that the machine makes soon after becoming live.
    fn settled(&mut self) {
        self.pass(0.5).replies([9], a).end();
        assert!(self.machine.trusted() && !self.machine.is_unproven());
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

    /// Advances the clock by some seconds, and calls the machine's `tick` whenever it is due.
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
