//! The way of a stream from one goal to the next.

use std::time::Duration;

use super::state::{Goal, Life, StoredBatch};
use super::{Effects, Machine};

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
        (self.attempts, self.limit) = (0, Some(now + self.config.replay_total_timeout));
        if self.can_ask() { self.ask_for_goal(now, fx) } else { self.give_up(now, fx) }
    }

    pub(super) fn go_live(&mut self) {
        (self.goal, self.attempts, self.ask_at, self.limit) = (Goal::Live, 0, None, None);
    }

    /// An answer shows another life of the engine than the one whose batches were applied.
    pub(super) fn other_life(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if matches!(self.goal, Goal::Live | Goal::Gap) {
            self.note_contradiction(now, false);
        }
        self.begin_other_life(fx);
    }

    /// The live connection may still bring batches of the old life, so it goes as well.
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

    /// Reads everything anew, by new connections, so that there is no doubt what is of which life.
    pub(super) fn start_over(&mut self, fx: &mut impl Effects<P>) {
        self.forget_all(fx);
        self.forget_ask(fx);
        self.waiting.clear();
        (self.life, self.owed, self.heal_at) = (Life::default(), None, None);
        self.rivalry.disconnected(self.can_replay);
        self.goal = Goal::Connect;
        fx.reconnect();
    }

    /// Retries are used up, or there is nobody to ask: goes on without.
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

    /// True if the engine has not come as far as what is missing, as it shows: then that was of a former life.
    fn is_behind(&self) -> bool {
        self.short && self.waiting.is_empty() && self.owed.is_some() && self.highest < self.owed
    }

    /// If nobody can say whether the engine is the same, the next batch must: it is taken for one of the same life if
    /// its number follows.
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
