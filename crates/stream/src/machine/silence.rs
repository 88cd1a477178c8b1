//! A busy stream that falls silent.
//!
//! Silence alone says little: most engines have nothing to do now and then. One that publishes several batches a second
//! and stops without a word either has nothing to do any more or hangs. So it is asked at once, and not trusted if it
//! does not answer in time, provided that it has answered before by the same connection. The next word from it is enough
//! to trust it again: the connection is still the same, so it is the same engine.

use std::time::Duration;

use super::Machine;
use super::goals::Goal;
use super::questions::Ask;

/// Number of batches in a row, without a pause between them, that are a load.
const BUSY: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Live batches in a row, without a pause.
    run: u32,
    /// True if the replay socket has answered since the live one was connected.
    answers: bool,
    /// True if the engine stopped in the middle of its load, and does not answer.
    open: bool,
}

impl Silence {
    pub(super) fn connected(&mut self) {
        *self = Self::default();
    }

    pub(super) fn answered(&mut self) {
        (self.answers, self.open) = (true, false);
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// The shortest pause.
    fn pause(&self) -> Duration {
        self.config.probe_interval / 5
    }

    /// A live batch has come. To be called before the time of the last one is forgotten.
    pub(super) fn no_hush(&mut self, now: Duration) {
        let pauses = now.saturating_sub(self.live_heard) > self.pause();
        self.silence.run = if pauses { 1 } else { self.silence.run.saturating_add(1) };
        self.silence.open = false;
    }

    fn was_busy(&self) -> bool {
        self.goal == Goal::Live && self.silence.answers && self.silence.run >= BUSY
    }

    /// When the engine is to be asked because it has fallen silent: once a silence.
    pub(super) fn hush_due(&self) -> Option<Duration> {
        let asked = self.asked >= self.live_heard || self.ask.is_some() || self.ask_at.is_some();
        (self.was_busy() && self.can_ask() && !asked).then(|| self.live_heard + self.pause())
    }

    /// A question was not answered in time.
    pub(super) fn not_answered(&mut self, now: Duration, ask: &Ask) {
        if !ask.answered && self.was_busy() && self.asked >= self.live_heard && !self.silence.open {
            self.silence.open = true;
            self.probe_at = Some(now + self.pause());
        }
    }
}
