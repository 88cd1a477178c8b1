//! Silence of a busy engine: when it is asked, and what becomes of no answer.

use std::time::Duration;

use super::Machine;
use super::state::{Goal, Question};

impl<P: AsRef<[u8]>> Machine<P> {
    /// The shortest pause.
    fn pause(&self) -> Duration {
        self.config.probe_interval / 5
    }

    /// A live batch has come. To be called before the time of the last one is forgotten.
    pub(super) fn no_hush(&mut self, now: Duration) {
        let pauses = now.saturating_sub(self.live_heard) > self.pause();
        self.silence.note_batch(pauses);
    }

    fn was_busy(&self) -> bool {
        self.goal == Goal::Live && self.silence.was_busy()
    }

    /// When the engine is to be asked because it has fallen silent: once a silence.
    pub(super) fn hush_due(&self) -> Option<Duration> {
        let asked = self.asked >= self.live_heard || self.ask.is_some() || self.ask_at.is_some();
        (self.was_busy() && self.can_ask() && !asked).then(|| self.live_heard + self.pause())
    }

    /// A question was not answered in time.
    pub(super) fn note_no_answer(&mut self, now: Duration, ask: &Question) {
        if !ask.answered && self.was_busy() && self.asked >= self.live_heard && self.silence.begin() {
            self.probe_at = Some(now + self.pause());
        }
    }
}
