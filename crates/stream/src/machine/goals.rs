//! Goals of a stream, the way from one to the next, and the state that they are reported as.

use std::time::Duration;

use super::batches::StoredBatch;
use super::proofs::Life;
use super::{Effects, Machine};
use crate::State;

/// Next thing that a stream needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// A live connection.
    Connect,
    /// Proof that the engine is still the one whose batches were applied.
    Verify,
    /// All batches that the replay socket has.
    Whole,
    /// The batches between the last one and the waiting ones.
    Gap,
    /// Nothing: batches are applied as they come.
    Live,
    /// A sign of life.
    Stale,
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Reads all batches from the beginning. Nothing is held.
    pub(super) fn read_whole(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        (self.goal, self.partial, self.open) = (Goal::Whole, false, false);
        self.begin_asking(now, fx);
    }

    /// Verifies that the engine is still the same, and reads the batches published meanwhile.
    pub(super) fn verify(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        self.goal = Goal::Verify;
        self.begin_asking(now, fx);
    }

    pub(super) fn begin_asking(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        (self.attempts, self.limit) = (0, Some(now + self.config.replay_total_timeout));
        if self.can_ask() { self.ask_for_goal(now, fx) } else { self.give_up(now, fx) }
    }

    pub(super) fn go_live(&mut self) {
        (self.goal, self.attempts, self.ask_at, self.limit) = (Goal::Live, 0, None, None);
    }

    /// Handles an answer that shows another life of the engine than the applied batches'.
    pub(super) fn other_life(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if matches!(self.goal, Goal::Live | Goal::Gap) {
            self.note_contradiction(now, false);
        }
        self.begin_other_life(fx);
    }

    /// Begins another epoch over a new connection, as the old one may still bring batches of the old life.
    pub(super) fn begin_other_life(&mut self, fx: &mut impl Effects<P>) {
        self.new_epoch(fx);
        self.rivalry.disconnected(self.can_replay);
        self.goal = Goal::Connect;
        fx.reconnect();
    }

    pub(super) fn new_epoch(&mut self, fx: &mut impl Effects<P>) {
        self.counts.epochs += 1;
        self.forget_all(fx);
        self.forget_ask(fx);
        self.recent.clear();
        self.waiting.clear();
        self.life = Life::default();
        (self.accounted, self.floor, self.owed, self.short) = (0, 0, None, false);
        (self.heal_at, self.partial, self.open, self.dead) = (None, false, false, false);
    }

    /// Reads all batches anew over new connections, so that the life of each is certain.
    pub(super) fn start_over(&mut self, fx: &mut impl Effects<P>) {
        self.forget_all(fx);
        self.forget_ask(fx);
        self.waiting.clear();
        (self.life, self.owed, self.heal_at) = (Life::default(), None, None);
        self.rivalry.disconnected(self.can_replay);
        self.goal = Goal::Connect;
        fx.reconnect();
    }

    /// Goes on without the missing batches, after the last retry or without a replay socket.
    pub(super) fn give_up(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        self.limit = None;
        self.give_restored_up(fx);
        match (self.goal, self.last) {
            (Goal::Whole, None) => {
                (self.open, self.floor, self.partial) = (true, 0, true);
                self.heal_later(now);
                self.go_live();
                self.drain(now, fx);
            }
            (Goal::Whole | Goal::Verify, _) => {
                if self.goal == Goal::Whole {
                    self.heal_later(now);
                }
                (self.goal, self.attempts) = (Goal::Verify, self.config.replay_attempts);
                self.go_on_unverified(now, fx);
            }
            (Goal::Gap, _) if self.is_behind() => self.begin_other_life(fx),
            (Goal::Gap, _) => {
                self.heal_later(now);
                if let Some(seq) = self.waiting.first().or(self.owed.map(|owed| owed.saturating_add(1))) {
                    self.lose(seq, fx);
                }
                self.go_live();
                self.drain(now, fx);
            }
            (Goal::Connect | Goal::Live | Goal::Stale, _) => {}
        }
    }

    /// True if the engine's answer ends before the missing batches: they were of a former life.
    fn is_behind(&self) -> bool {
        self.short && self.waiting.is_empty() && self.owed.is_some() && self.highest < self.owed
    }

    /// Decides by the next batch whether the engine is the same, without an answer: it is taken for one of the same life
    /// if its number follows.
    pub(super) fn go_on_unverified(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        while self.goal == Goal::Verify && self.attempts >= self.config.replay_attempts {
            let Some((seq, StoredBatch { payload, .. })) = self.waiting.pop_first() else { return };
            if self.same_as_applied(seq, &payload) {
                self.counts.duplicate_batches += 1;
                continue;
            }
            if seq >= self.next() {
                self.counts.unverified_reconnects += 1;
                self.unverified = self.last.is_some();
                self.go_live();
            }
            if seq > self.next() {
                self.lose(seq, fx);
                self.heal_later(now);
            }
            self.place(now, seq, payload, fx);
            self.drain(now, fx);
        }
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// True if the applied batches are what the engine has announced.
    pub fn trusted(&self) -> bool {
        let is_certain = !self.doubt.is_open() && !self.unknown_events.is_open() && !self.is_contested();
        self.goal == Goal::Live && is_certain && !self.silence.is_open()
    }

    /// True if batches of several lives keep coming over one connection.
    pub fn is_mixed(&self) -> bool {
        self.doubt.is_strong()
    }

    /// The state of the stream.
    pub fn state(&self, now: Duration) -> State {
        match self.goal {
            Goal::Verify | Goal::Whole | Goal::Gap | Goal::Live if self.doubt.is_open() || self.is_contested() => {
                State::Conflict
            }
            Goal::Connect if self.ever_connected && self.silent_too_long(now) => State::Stale,
            Goal::Connect | Goal::Verify => State::Connecting,
            Goal::Whole => State::Replaying,
            Goal::Gap => State::Gap,
            Goal::Live if self.unknown_events.is_open() => State::Unreadable,
            Goal::Live if self.silence.is_open() => State::Stale,
            Goal::Live => State::Live,
            Goal::Stale => State::Stale,
        }
    }
}
