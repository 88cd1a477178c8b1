//! Treatment of a received batch, which is applied, kept for later, dropped as a duplicate, or begins a new epoch (the
//! time between two restarts of the engine); and replay requests: which batches are requested, when, and how often.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::inputs::Goal;
use super::{Effects, Machine, Verdict};

/// Batch that waits until missing earlier batches have been applied.
#[derive(Debug)]
pub(super) struct StoredBatch<P> {
    pub(super) payload: P,
    /// True if the batch was received over the live connection, and not in a replay.
    pub(super) live: bool,
}

impl<P: AsRef<[u8]>> AsRef<[u8]> for StoredBatch<P> {
    fn as_ref(&self) -> &[u8] {
        self.payload.as_ref()
    }
}

/// Maximum distance, in batches, by which batches on a live connection may arrive out of order.
const DISORDER: u64 = 16;

impl<P: AsRef<[u8]>> Machine<P> {
    /// Processes a batch of the live connection: applies it, keeps it for later, drops it, or begins a new epoch
    /// (engine restart) with it.
    pub(super) fn place(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        let new_here = self.highest.is_none_or(|highest| seq > highest);
        if new_here {
            self.highest = Some(seq);
        }
        if self.last.is_some_and(|last| seq <= last) {
            let known = self.recent.hash(seq);
            if self.same_as_applied(seq, &payload) {
                self.counts.duplicate_batches += u64::from(!new_here);
            } else if known.is_none() && new_here && self.goal != Goal::Verify {
                // A replay was ahead of the live socket.
            } else if known.is_none() && self.goal != Goal::Verify && self.is_late(seq) {
                // It was given up before it came.
            } else if known.is_none() && self.can_ask() && self.goal != Goal::Verify {
                self.doubt.suspect(seq);
                self.verify(now, fx);
            } else {
                self.begin_epoch(now, seq, payload, fx);
            }
        } else if self.has_turn(seq) {
            self.counts.recovered_batches += u64::from(self.goal == Goal::Gap);
            self.apply(now, seq, &payload, true, fx);
            self.drain(now, fx);
        } else if !self.open {
            self.wait(seq, StoredBatch { payload, live: true });
            self.missing(now, fx);
        } else if seq.saturating_add(DISORDER) < self.floor {
            self.begin_epoch(now, seq, payload, fx);
        }
        // Else it was given up before it came, and the blocks that it stores may have been removed since.
    }

    /// Begins a new epoch (time between two restarts of the engine) with a batch of the live connection that the engine
    /// must have published after a restart.
    fn begin_epoch(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        if self.goal != Goal::Verify {
            self.note_contradiction(now, true);
        }
        if self.can_ask() {
            return self.begin_other_life(fx);
        }
        self.new_epoch(fx);
        self.read_whole(now, fx);
        self.place(now, seq, payload, fx);
    }

    /// Applies the waiting batches that are next in order. If any batch still waits afterwards, earlier batches are
    /// missing.
    pub(super) fn drain(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        while let Some(seq) = self.waiting.first().filter(|seq| *seq <= self.next() || self.open) {
            let Some((_, StoredBatch { payload, live })) = self.waiting.pop_first() else { break };
            if self.has_turn(seq) {
                self.apply(now, seq, &payload, live, fx);
            } else if self.recent.hash(seq).is_some() && !self.same_as_applied(seq, &payload) {
                return self.begin_epoch(now, seq, payload, fx);
            }
        }
        if !self.waiting.is_empty() || self.owed.is_some() {
            self.missing(now, fx);
        } else if self.goal == Goal::Gap {
            self.go_live();
        }
    }

    /// Begins to fill a gap, because an earlier batch is missing or a batch cannot be decoded.
    pub(super) fn missing(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        match self.goal {
            Goal::Live => {
                (self.goal, self.attempts) = (Goal::Gap, 0);
                self.limit = Some(now + self.config.replay_total_timeout);
                self.counts.gaps += 1;
            }
            // The answer has come, and shows that more is missing.
            Goal::Gap if self.waiting.is_empty() && self.ask.is_none() && self.ask_at.is_none() => {
                self.attempts += 1;
                if self.attempts >= self.config.replay_attempts {
                    return self.give_up(now, fx);
                }
            }
            _ => return,
        }
        if !self.can_ask() {
            self.ask_at = Some(now + self.config.reorder_grace);
        } else if self.ask.as_ref().is_none_or(|ask| !ask.answered) {
            self.ask_for_goal(now, fx);
        }
    }

    /// Applies the batch that is next in order to the held blocks, and acts on the outcome.
    pub(super) fn apply(&mut self, now: Duration, seq: u64, payload: &P, live: bool, fx: &mut impl Effects<P>) {
        let verdict = fx.apply(seq, payload, live);
        if verdict == Verdict::Refused {
            return self.refused(now, seq, live, fx);
        }
        if verdict == Verdict::UnknownEvents && self.unknown_events.add(now) {
            // Its own blocks go as well, and the engine would send it again the same way.
            (self.last, self.heal_at) = (Some(seq), None);
            return self.lose(seq.saturating_add(1), fx);
        }
        if self.last.is_none() {
            self.first = seq;
            self.partial &= seq > 0;
        }
        match verdict {
            Verdict::Cleared => {
                (self.partial, self.unverified, self.heal_at) = (false, false, None);
                self.unknown_events.clear();
            }
            Verdict::Partial | Verdict::UnknownEvents => self.partial = true,
            Verdict::Whole | Verdict::Refused => {}
        }
        self.count_lost(seq);
        self.accounted = self.accounted.max(seq.saturating_add(1));
        self.open = false;
        self.last = Some(seq);
        self.owed = self.owed.filter(|owed| *owed > seq);
        let hash = xxh3_64(payload.as_ref());
        self.recent.insert(seq, hash);
        if live {
            self.note_sample(now, seq, hash);
        }
    }

    /// Handles a batch that cannot be decoded and may have removed blocks. Requests the batch again if the replay
    /// socket may still have it undamaged; else clears the held blocks.
    fn refused(&mut self, now: Duration, seq: u64, live: bool, fx: &mut impl Effects<P>) {
        if live && self.last.is_some() && self.can_ask() {
            self.owed = self.owed.max(Some(seq));
            self.missing(now, fx);
        } else {
            self.lose(seq.saturating_add(1), fx);
            if live {
                self.heal_later(now);
            } else {
                self.heal_at = None; // Its replay was no better.
            }
        }
    }

    /// Keeps a batch until the batches before it have been applied.
    pub(super) fn wait(&mut self, seq: u64, batch: StoredBatch<P>) {
        let forgotten = self.waiting.insert(seq, batch);
        self.counts.overflowed_batches += forgotten.batches;
        self.owed = self.owed.max(forgotten.highest);
    }

    /// True if a batch may be one from before the first applied batch that arrives late, after it was given up as
    /// missing.
    fn is_late(&self, seq: u64) -> bool {
        seq < self.first && seq.saturating_add(DISORDER) > self.first
    }

    /// True if the live connection will bring the missing batches, so that no replay is needed. This requires that the
    /// engine has proved to be the same as before, that no live batch waits for an earlier one, and that a live batch
    /// has arrived since the last replay request.
    pub(super) fn live_catches_up(&self) -> bool {
        let reads = matches!(self.goal, Goal::Live | Goal::Gap);
        reads && self.waiting.is_empty() && self.live_heard > self.asked && self.life.before().is_none()
    }

    /// True if the batch with the sequence number `seq` is the next one to be applied.
    pub(super) fn has_turn(&self, seq: u64) -> bool {
        if self.open { seq >= self.floor } else { seq == self.next() }
    }

    pub(super) fn next(&self) -> u64 {
        self.last.map_or(0, |last| last.saturating_add(1))
    }

    pub(super) fn same_as_applied(&self, seq: u64, payload: &P) -> bool {
        self.recent.hash(seq) == Some(xxh3_64(payload.as_ref()))
    }

    /// Gives up the missing batches with sequence numbers below `seq`, and clears the held blocks.
    pub(super) fn lose(&mut self, seq: u64, fx: &mut impl Effects<P>) {
        self.count_lost(seq);
        if self.last.is_some() {
            // The batches applied after them are to be read again.
            self.owed = self.owed.max(self.last);
            self.counts.resets += 1;
            self.forget_all(fx);
        }
        self.owed = self.owed.filter(|owed| *owed >= seq);
        (self.open, self.floor, self.partial) = (true, seq, true);
    }

    /// Counts the batches with sequence numbers below `seq` that have not arrived as lost.
    fn count_lost(&mut self, seq: u64) {
        if seq > self.accounted {
            self.counts.lost_batches += seq - self.accounted;
            self.counts.gaps += u64::from(self.goal != Goal::Gap);
            self.accounted = seq;
        }
    }
}

/// Replay request to the engine, with the progress of its answer.
#[derive(Debug)]
pub(super) struct Question {
    /// Sequence number of the first batch that the replay request asks for.
    pub(super) from: u64,
    /// Sequence number and hash of an applied batch that the answer must contain as proof that the engine has not
    /// restarted; `None` if no proof is required, or once the answer has contained the batch.
    pub(super) past: Option<(u64, u64)>,
    /// Sequence number and hash of a live batch that the answer must contain as proof that both sockets belong to one
    /// engine; `None` if no proof is required, or once the answer has contained the batch.
    pub(super) live: Option<(u64, u64)>,
    /// True if the request is meant to complete a partial stream, which continues to apply live batches meanwhile.
    pub(super) heal: bool,
    /// True once a batch of the answer to the replay request has arrived.
    pub(super) answered: bool,
    /// Highest sequence number of any received batch when the request was made; `None` if there was none.
    pub(super) known: Option<u64>,
    /// Highest sequence number in the answer to the replay request so far; `None` before the first batch.
    pub(super) highest: Option<u64>,
    /// True if the answer to the replay request has contained a missing batch.
    pub(super) useful: bool,
    /// Time by which the next batch of the answer to the replay request must arrive.
    pub(super) deadline: Duration,
    /// Time at which the wait for the answer to the replay request ends, even if batches still arrive.
    pub(super) limit: Duration,
}

impl Question {
    /// True if the completed answer is empty although it must contain a batch as proof. A longer answer may be cut by a
    /// full socket, so only the beginning of an answer is certain.
    pub(super) fn lacks_proof(&self) -> bool {
        !self.answered && (self.past.is_some() || self.live.is_some())
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    pub(super) fn can_ask(&self) -> bool {
        self.can_replay && !self.dead
    }

    pub(super) fn ask_for_goal(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        let ask = match self.last {
            Some(last) => {
                let past = self.life.before().or(self.recent.hash(last).map(|hash| (last, hash)));
                let live = self.life.sample();
                let from = [past, live].into_iter().flatten().map(|(seq, _)| seq).min();
                self.question(from.unwrap_or(last), past, live)
            }
            None => self.question(0, None, self.life.sample()),
        };
        self.send(now, ask, fx);
    }

    pub(super) fn question(&self, from: u64, past: Option<(u64, u64)>, live: Option<(u64, u64)>) -> Question {
        let (deadline, limit) = (Duration::ZERO, Duration::ZERO);
        let known = self.owed.max(self.last);
        Question {
            from,
            past,
            live,
            heal: false,
            answered: false,
            known,
            highest: None,
            useful: false,
            deadline,
            limit,
        }
    }

    pub(super) fn send(&mut self, now: Duration, ask: Question, fx: &mut impl Effects<P>) {
        self.forget_ask(fx);
        self.counts.replays += 1;
        self.asked = now;
        fx.ask(ask.from);
        let limit = now + self.config.replay_total_timeout;
        self.ask = Some(Question { deadline: (now + self.config.replay_timeout).min(limit), limit, ..ask });
    }

    pub(super) fn forget_ask(&mut self, fx: &mut impl Effects<P>) {
        self.ask_at = None;
        if self.ask.take().is_some() {
            fx.cancel();
        }
    }

    /// Schedules another replay request, or gives up after too many, when the last answer had no batch or too few.
    /// `unheard` is true if there was no answer at all.
    pub(super) fn try_again(&mut self, now: Duration, ask: &Question, unheard: bool, fx: &mut impl Effects<P>) {
        self.attempts += u32::from(!ask.useful);
        if self.attempts >= self.config.replay_attempts {
            self.dead |= unheard;
            return self.give_up(now, fx);
        }
        let pause = self.config.reconnect_min * 2u32.saturating_pow(self.attempts.min(16));
        self.ask_at = Some(now + pause.min(self.config.reconnect_max));
    }

    pub(super) fn heal_later(&mut self, now: Duration) {
        if self.can_replay {
            self.heal_at = Some(now + self.heal_wait);
        }
    }

    /// Returns the time of the next periodic replay request, made although no batch is known to be missing; `None` if
    /// none is due.
    pub(super) fn probe_due(&self) -> Option<Duration> {
        let idle = self.can_replay && self.ask.is_none() && self.ask_at.is_none();
        // A stream that brings batches needs no questions, except to prove its life and that the replay socket answers.
        let quiet = !self.dead && !self.is_unproven();
        let since = if quiet { self.heard.max(self.asked) } else { self.asked };
        let due = since + self.config.probe_interval;
        let due = self.probe_at.unwrap_or(due).min(due);
        (idle && self.goal != Goal::Connect).then(|| self.silence_due().map_or(due, |silence| due.min(silence)))
    }

    /// Returns the time at which the stream continues without the missing batches; `None` if it does not wait for
    /// missing batches.
    pub(super) fn limit_due(&self) -> Option<Duration> {
        self.limit.filter(|_| matches!(self.goal, Goal::Whole | Goal::Verify | Goal::Gap))
    }

    pub(super) fn heal_due(&self) -> Option<Duration> {
        self.heal_at.filter(|_| self.goal == Goal::Live && self.ask.is_none() && self.partial)
    }

    pub(super) fn silent_too_long(&self, now: Duration) -> bool {
        now.saturating_sub(self.heard) > self.config.stale_after
    }
}
