//! What a stream wants next, and how it comes from one goal to another.

use std::time::Duration;

use super::{Effects, Machine};

/// What a stream wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// A live connection.
    Connect,
    /// To know that the engine is still the one whose batches were applied.
    Verify,
    /// Everything that the replay socket has.
    Whole,
    /// The batches between the last one and those that wait.
    Gap,
    /// Nothing: batches are applied as they come.
    Live,
    /// A sign of life.
    Stale,
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Reads everything from the beginning. Nothing is held.
    pub(super) fn read_whole(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        (self.goal, self.partial, self.open) = (Goal::Whole, false, false);
        self.begin_asking(now, fx);
    }

    /// Makes sure that it is still the same engine, and reads what came meanwhile.
    pub(super) fn verify(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        self.goal = Goal::Verify;
        self.begin_asking(now, fx);
    }

    pub(super) fn begin_asking(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        self.attempts = 0;
        if self.can_ask() { self.ask_for_goal(now, fx) } else { self.give_up(now, fx) }
    }

    pub(super) fn go_live(&mut self, now: Duration) {
        (self.goal, self.attempts, self.ask_at) = (Goal::Live, 0, None);
        if std::mem::take(&mut self.forgot) {
            self.probe_at = Some(now);
        }
    }

    /// Another life of the engine, seen on the replay socket. The live connection may still bring batches of the old
    /// one, so it goes as well.
    pub(super) fn restarted(&mut self, fx: &mut impl Effects<P>) {
        self.new_epoch(fx);
        self.goal = Goal::Connect;
        fx.reconnect();
    }

    pub(super) fn new_epoch(&mut self, fx: &mut impl Effects<P>) {
        self.counts.epochs += 1;
        self.forget_all(fx);
        self.forget_ask(fx);
        self.recent.clear();
        self.waiting.clear();
        (self.heal_at, self.partial, self.open, self.dead) = (None, false, false, false);
    }

    /// Retries are used up, or there is nobody to ask: goes on without.
    pub(super) fn give_up(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        match (self.goal, self.last) {
            (Goal::Whole, None) => {
                (self.open, self.partial) = (true, true);
                self.heal_later(now);
                self.go_live(now);
                self.drain(now, fx);
            }
            (Goal::Whole | Goal::Verify, _) => {
                if self.goal == Goal::Whole {
                    self.heal_later(now);
                }
                (self.goal, self.attempts) = (Goal::Verify, self.config.replay_attempts);
                self.go_on_unverified(now, fx);
            }
            (Goal::Gap, _) => {
                self.heal_later(now);
                if let Some(seq) = self.waiting.first() {
                    self.lose(seq, fx);
                }
                self.go_live(now);
                self.drain(now, fx);
            }
            (Goal::Connect | Goal::Live | Goal::Stale, _) => {}
        }
    }

    /// If nobody can say whether the engine is the same, the next batch must: it is taken for one of the same life if
    /// its number follows.
    pub(super) fn go_on_unverified(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        while self.goal == Goal::Verify && self.attempts >= self.config.replay_attempts {
            let Some((seq, payload)) = self.waiting.pop_first() else { return };
            if self.same_as_applied(seq, &payload) {
                self.counts.duplicate_batches += 1;
                continue;
            }
            if seq >= self.next() {
                self.counts.unverified_reconnects += 1;
                self.go_live(now);
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
