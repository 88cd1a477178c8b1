//! Questions to the replay socket: what it is asked, when, and how often.

use std::time::Duration;

use super::goals::Goal;
use super::{Effects, Machine};

/// A question to the replay socket, and the progress of its answer.
#[derive(Debug)]
pub(super) struct Question {
    /// First batch asked for.
    pub(super) from: u64,
    /// Batches that the answer must contain, by number and hash: one applied before, and one of the live connection.
    pub(super) past: Option<(u64, u64)>,
    pub(super) live: Option<(u64, u64)>,
    /// True if the question is to make a partial stream whole; the stream goes on meanwhile.
    pub(super) heal: bool,
    /// True once a batch of the answer has come.
    pub(super) answered: bool,
    /// Highest sequence number known when the question was asked.
    pub(super) known: Option<u64>,
    /// Highest sequence number of the answer.
    pub(super) highest: Option<u64>,
    /// True if the answer brought a missing batch.
    pub(super) useful: bool,
    /// Time by which the next batch of the answer must come.
    pub(super) deadline: Duration,
    /// Time at which the question ends, even if batches still come.
    pub(super) limit: Duration,
}

impl Question {
    /// True if the complete answer is empty although it must contain a batch. (A full socket may cut a longer answer, so only
    /// its beginning is certain.)
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

    /// Asks again later, or gives up, after a question that brought nothing or too little. `unheard`: there was no answer.
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

    /// Time of the next question to an engine of which nothing is known to be missing.
    pub(super) fn probe_due(&self) -> Option<Duration> {
        let idle = self.can_replay && self.ask.is_none() && self.ask_at.is_none();
        // A stream that brings batches needs no questions, except to prove its life and that the replay socket answers.
        let quiet = !self.dead && !self.is_unproven();
        let since = if quiet { self.heard.max(self.asked) } else { self.asked };
        let due = since + self.config.probe_interval;
        let due = self.probe_at.unwrap_or(due).min(due);
        (idle && self.goal != Goal::Connect).then(|| self.silence_due().map_or(due, |silence| due.min(silence)))
    }

    /// Time at which the stream goes on without the missing batches.
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
