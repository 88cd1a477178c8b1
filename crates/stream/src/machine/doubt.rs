//! Batches of one connection that contradict each other.
//!
//! An engine behind a proxy may restart and show it by its numbers alone; that happens once. Two publishers on one
//! endpoint show it again and again, and whatever is applied between is a mixture. So nothing is trusted for a while
//! after a contradiction, and each one that follows soon makes that longer.

use std::time::Duration;

use super::{HEAL_MAX, Machine};

/// Number of contradictions soon after one another from which on they are not restarts.
const STRONG: u32 = 3;
/// Time without a contradiction after which the next one is the first again.
const SOON_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Contradictions soon after one another.
    count: u32,
    at: Duration,
    until: Option<Duration>,
    /// A number below the last one, too old to tell by itself whether it is of another life.
    suspect: Option<u64>,
}

impl Doubt {
    pub(super) fn is_open(&self) -> bool {
        self.until.is_some()
    }

    pub(super) fn is_strong(&self) -> bool {
        self.is_open() && self.count >= STRONG
    }

    pub(super) fn until(&self) -> Option<Duration> {
        self.until
    }

    pub(super) fn pass(&mut self, now: Duration) {
        self.until = self.until.filter(|until| *until > now);
    }

    /// A connection that ends explains a single contradiction: the engine has restarted.
    pub(super) fn disconnected(&mut self) {
        self.suspect = None;
        if self.count <= 1 {
            (self.count, self.until) = (0, None);
        }
    }

    pub(super) fn suspect(&mut self, seq: u64) {
        self.suspect = Some(seq);
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Batches contradict each other. `certain`: those of the live connection, and not one of them and an answer, which
    /// may have been given by the next life.
    pub(super) fn contradicted(&mut self, now: Duration, certain: bool) {
        self.counts.contradictions += 1;
        let doubt = &mut self.doubt;
        let over = doubt.until.unwrap_or(doubt.at) + SOON_AFTER;
        doubt.count = if now > over { 1 } else { doubt.count + 1 };
        doubt.at = now;
        if certain || doubt.count > 1 {
            let wait = self.config.probe_interval * 4u32.saturating_pow((doubt.count - 1).min(8));
            doubt.until = doubt.until.max(Some(now + wait.min(HEAL_MAX)));
        }
    }

    /// The engine is the one whose batches were applied: then a number too old to tell is of another one.
    pub(super) fn admit_suspect(&mut self, now: Duration) {
        if self.doubt.suspect.take().is_some() {
            self.contradicted(now, true);
        }
    }
}
