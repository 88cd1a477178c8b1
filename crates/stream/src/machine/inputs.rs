//! Inputs of a stream machine (connections, batches, answers and the passing of time), the goals of a stream, the
//! transitions between goals, and the states reported for them.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::batches::{Question, StoredBatch};
use super::proofs::Life;
use super::{Effects, HEAL_MAX, Machine, SOON};
use crate::{Outcome, State};

impl<P: AsRef<[u8]>> Machine<P> {
    /// Handles that the live socket, over which new batches arrive, has connected to the engine and subscribed.
    pub fn connected(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if self.goal != Goal::Connect {
            return;
        }
        self.counts.reconnects += u64::from(self.ever_connected);
        self.ever_connected = true;
        self.heard = now;
        (self.highest, self.dead) = (None, false);
        self.life.connected();
        self.silence.connected();
        self.probe_at = Some(now + SOON);
        match self.last {
            None => self.read_whole(now, fx),
            Some(_) => self.verify(now, fx),
        }
    }

    /// Handles the loss of the live socket's connection. Batches that wait for earlier ones are dropped, because a
    /// replay sends them again.
    pub fn disconnected(&mut self, fx: &mut impl Effects<P>) {
        self.waiting.clear();
        self.owed = None;
        self.forget_ask(fx);
        let last = self.last.and_then(|last| Some((last, self.recent.hash(last)?)));
        self.life.disconnected(last.filter(|_| self.can_replay));
        self.doubt.disconnected();
        self.rivalry.disconnected(self.can_replay);
        self.silence.connected();
        self.goal = Goal::Connect;
    }

    /// Handles a batch received over the live connection.
    pub fn live(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        self.connected(now, fx);
        self.note_live_batch(now);
        (self.heard, self.live_heard) = (now, now);
        if self.goal == Goal::Stale {
            self.verify(now, fx);
        }
        if self.goal == Goal::Verify {
            self.wait(seq, StoredBatch { payload, live: true });
            self.go_on_unverified(now, fx);
        } else {
            self.place(now, seq, payload, fx);
        }
    }

    /// Handles a batch received in answer to a replay request.
    pub fn reply(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        let Some(ask) = &mut self.ask else { return };
        self.heard = now;
        (self.keeps, self.dead) = (true, false);
        self.silence.note_answer();
        ask.deadline = (now + self.config.replay_timeout).min(ask.limit);
        let begins = !std::mem::replace(&mut ask.answered, true);
        ask.highest = ask.highest.max(Some(seq));
        let (from, past, heal) = (ask.from, ask.past, ask.heal);
        if !self.is_proof(seq, xxh3_64(payload.as_ref())) {
            return self.other_life(now, fx);
        }
        if begins && self.open {
            // The question may be older than the batches that were given up since.
            self.owed = self.owed.max(self.floor.checked_sub(1).filter(|known| *known >= seq));
            self.floor = seq;
        }
        if begins && heal {
            match self.last {
                None => self.partial = seq > 0,
                // The engine's buffer reaches back no further than the holdings.
                Some(_) if self.first <= seq => self.heal_at = None,
                Some(_) => return self.start_over(fx),
            }
        } else if begins && !self.open && self.begins_late(seq, from, past) {
            if self.live_catches_up() {
                // The engine is far ahead of the batches read here, and the live connection is bringing them.
                self.owed = self.owed.max(Some(seq));
                self.forget_ask(fx);
                if self.goal == Goal::Live {
                    self.goal = Goal::Gap;
                    (self.attempts, self.limit) = (0, Some(now + self.config.replay_total_timeout));
                }
                self.ask_at = Some(now + SOON);
                return;
            }
            // Without the last batch nothing proves that the answer follows it.
            self.counts.truncated_replays += 1;
            self.heal_at = None;
            self.end_restored(Outcome::TurnedOver);
            self.lose(seq, fx);
        }
        if begins && self.last.is_none() && self.goal == Goal::Live {
            // More batches follow.
            (self.goal, self.limit) = (Goal::Whole, Some(now + self.config.replay_total_timeout));
        }
        if self.last.is_some_and(|last| seq <= last) {
            if self.recent.hash(seq).is_some_and(|hash| hash != xxh3_64(payload.as_ref())) {
                self.other_life(now, fx);
            }
        } else if self.has_turn(seq) {
            if let Some(ask) = &mut self.ask {
                ask.useful = true;
            }
            self.counts.recovered_batches += u64::from(self.goal == Goal::Gap || self.goal == Goal::Live);
            self.attempts = 0;
            self.apply(now, seq, &payload, false, fx);
            self.drain(now, fx);
        } else {
            self.wait(seq, StoredBatch { payload, live: false });
            self.missing(now, fx);
        }
    }

    /// Handles the end of the answer to a replay request.
    pub fn reply_end(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        let Some(ask) = self.ask.take() else { return };
        self.heard = now;
        self.dead = false;
        self.silence.note_answer();
        self.short = ask.known > ask.highest;
        if ask.lacks_proof() && (self.keeps || self.goal == Goal::Verify) {
            return self.other_life(now, fx); // The engine has neither the last batch nor any after it.
        }
        self.admit_suspect(now);
        match self.goal {
            Goal::Connect | Goal::Live => {}
            Goal::Whole | Goal::Verify | Goal::Stale | Goal::Gap => {
                let known = std::mem::replace(&mut self.goal, Goal::Gap) == Goal::Gap;
                self.drain(now, fx);
                self.counts.gaps += u64::from(self.goal == Goal::Gap && !known);
                if self.goal == Goal::Gap && self.ask.is_none() {
                    self.try_again(now, &ask, false, fx);
                }
            }
        }
    }

    /// Performs all actions of the machine that are due at time `now`: ends waits, makes replay requests, and detects
    /// silence.
    pub fn tick(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        self.doubt.pass(now);
        self.end_unknown_events(now, fx);
        if self.limit_due().is_some_and(|at| at <= now) {
            self.counts.failed_replays += u64::from(self.ask.is_some());
            self.forget_ask(fx);
            self.give_up(now, fx);
        }
        if let Some(ask) = self.ask.take_if(|ask| ask.deadline <= now) {
            self.counts.failed_replays += 1;
            fx.cancel();
            self.note_no_answer(now, &ask);
            if matches!(self.goal, Goal::Whole | Goal::Verify | Goal::Gap) {
                self.try_again(now, &ask, !ask.answered, fx);
            }
        }
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = None;
            if self.can_ask() { self.ask_for_goal(now, fx) } else { self.give_up(now, fx) }
        }
        let silent = self.can_replay && self.silent_too_long(now);
        if silent && matches!(self.goal, Goal::Live | Goal::Verify) {
            self.goal = Goal::Stale;
        }
        if self.heal_due().is_some_and(|at| at <= now) {
            self.heal_at = Some(now + self.heal_wait);
            self.heal_wait = (self.heal_wait * 2).min(HEAL_MAX);
            let past = self.last.and_then(|last| Some((last, self.recent.hash(last)?)));
            self.send(now, Question { heal: true, ..self.question(0, past, self.life.sample()) }, fx);
        } else if self.probe_due().is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.ask_for_goal(now, fx);
        }
    }

    /// Returns the time at which [`tick`](Self::tick) must be called next, if no other input comes before; `None` if no
    /// call is needed.
    pub fn wake(&self, now: Duration) -> Option<Duration> {
        let can_be_stale = match self.goal {
            Goal::Connect => self.ever_connected,
            Goal::Live | Goal::Verify => self.can_replay,
            Goal::Whole | Goal::Gap | Goal::Stale => false,
        };
        let stale = (can_be_stale && !self.silent_too_long(now))
            .then(|| self.heard + self.config.stale_after + Duration::from_millis(1));
        let deadline = self.ask.as_ref().map(|ask| ask.deadline);
        let limits = [self.limit_due(), self.doubt.until(), self.unknown_events.until()];
        [deadline, self.ask_at, stale, self.probe_due(), self.heal_due()].into_iter().chain(limits).flatten().min()
    }
}

/// Goal of a stream: the next thing it needs in order to follow its engine exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The stream needs a live connection to the engine.
    Connect,
    /// The stream needs proof that the engine has not restarted since the applied batches.
    Verify,
    /// The stream needs all batches that the engine's replay socket has.
    Whole,
    /// The stream needs the missing batches between the last applied one and the waiting ones.
    Gap,
    /// The stream needs nothing: live batches are applied as they arrive.
    Live,
    /// The stream needs any message from the engine, which has been silent for too long.
    Stale,
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Requests all batches that the engine can resend, from the first on, because no blocks are held.
    pub(super) fn read_whole(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        (self.goal, self.partial, self.open) = (Goal::Whole, false, false);
        self.begin_asking(now, fx);
    }

    /// Requests proof that the engine has not restarted, together with the batches published since the last applied
    /// one.
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

    /// Handles a replay answer which shows that the engine has restarted since the applied batches.
    pub(super) fn other_life(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if matches!(self.goal, Goal::Live | Goal::Gap) {
            self.note_contradiction(now, false);
        }
        self.begin_other_life(fx);
    }

    /// Begins a new epoch (after a restart of the engine) over a new connection, because the old connection may still
    /// deliver batches from before the restart.
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

    /// Reads all batches again over new connections, so that all of them certainly belong to the same run of the
    /// engine.
    pub(super) fn start_over(&mut self, fx: &mut impl Effects<P>) {
        self.forget_all(fx);
        self.forget_ask(fx);
        self.waiting.clear();
        (self.life, self.owed, self.heal_at) = (Life::default(), None, None);
        self.rivalry.disconnected(self.can_replay);
        self.goal = Goal::Connect;
        fx.reconnect();
    }

    /// Continues without the missing batches, because the last retry has failed or there is no replay socket.
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

    /// True if the engine's replay ends before the missing batches. The engine must then have sent them before its last
    /// restart.
    fn is_behind(&self) -> bool {
        self.short && self.waiting.is_empty() && self.owed.is_some() && self.highest < self.owed
    }

    /// Decides by the next live batch if the engine is the same as before, after no replay answer came: it counts as
    /// the same if the batch's sequence number follows the last applied one.
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
    /// True if the applied batches are exactly those that the engine has published.
    pub fn trusted(&self) -> bool {
        let is_certain = !self.doubt.is_open() && !self.unknown_events.is_open() && !self.is_contested();
        self.goal == Goal::Live && is_certain && !self.silence.is_open()
    }

    /// True if batches of several publishers, or from before and after a restart, keep arriving over one connection.
    pub fn is_mixed(&self) -> bool {
        self.doubt.is_strong()
    }

    /// Returns the state that is reported for the stream.
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
