//! What the replay socket is asked, when, and how often.

use std::time::Duration;

use super::goals::Goal;
use super::{Effects, Machine};

/// A question on its way.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) from: u64,
    /// The hash that batch `from` must have.
    pub(super) expect: Option<u64>,
    /// Asked in order to make a partial stream whole, which goes on meanwhile.
    pub(super) heal: bool,
    pub(super) answered: bool,
    /// Whether it brought anything that was missing.
    pub(super) useful: bool,
    pub(super) deadline: Duration,
}

impl<P: AsRef<[u8]>> Machine<P> {
    pub(super) fn can_ask(&self) -> bool {
        self.can_replay && !self.dead
    }

    pub(super) fn ask_for_goal(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        let ask = match self.last {
            Some(last) => self.question(last, self.recent.hash(last)),
            None => self.question(0, None),
        };
        self.send(now, ask, fx);
    }

    pub(super) fn question(&self, from: u64, expect: Option<u64>) -> Ask {
        Ask { from, expect, heal: false, answered: false, useful: false, deadline: Duration::ZERO }
    }

    pub(super) fn send(&mut self, now: Duration, ask: Ask, fx: &mut impl Effects<P>) {
        self.forget_ask(fx);
        self.counts.replays += 1;
        self.asked = now;
        fx.ask(ask.from);
        self.ask = Some(Ask { deadline: now + self.config.replay_timeout, ..ask });
    }

    pub(super) fn forget_ask(&mut self, fx: &mut impl Effects<P>) {
        self.ask_at = None;
        if self.ask.take().is_some() {
            fx.cancel();
        }
    }

    /// A question has brought nothing, or not all. `unheard`: not even an answer.
    pub(super) fn try_again(&mut self, now: Duration, ask: &Ask, unheard: bool, fx: &mut impl Effects<P>) {
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

    /// When the engine is to be asked, although nothing is known to be missing.
    pub(super) fn probe_due(&self) -> Option<Duration> {
        let idle = self.can_replay && self.ask.is_none() && self.ask_at.is_none();
        let due = self.heard.max(self.asked) + self.config.probe_interval;
        (idle && self.goal != Goal::Connect).then(|| self.probe_at.unwrap_or(due).min(due))
    }

    pub(super) fn heal_due(&self) -> Option<Duration> {
        self.heal_at.filter(|_| self.goal == Goal::Live && self.ask.is_none() && self.partial)
    }

    pub(super) fn silent_too_long(&self, now: Duration) -> bool {
        now.saturating_sub(self.heard) > self.config.stale_after
    }
}
