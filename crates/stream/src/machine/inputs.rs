//! Inputs of a machine: the events in the life of a connection, in their order.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::batches::StoredBatch;
use super::goals::Goal;
use super::questions::Question;
use super::{Effects, HEAL_MAX, Machine, SOON};
use crate::Outcome;

impl<P: AsRef<[u8]>> Machine<P> {
    /// The live socket is connected and subscribed.
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

    /// The live socket has lost its connection. Its waiting batches are dropped; the replay brings them again.
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

    /// A batch has come over the live connection.
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

    /// A batch has come in answer to the question.
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

    /// The answer is complete.
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

    /// Time has passed.
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

    /// Time at which `tick` is needed next, if no other input comes.
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
