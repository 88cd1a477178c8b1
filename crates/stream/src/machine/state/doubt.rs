//! Batches of one connection that contradict each other.
//!
//! An engine behind a proxy may restart and show it by its numbers alone; that happens once. Two publishers on one
//! endpoint show it again and again, and whatever is applied between is a mixture. So nothing is trusted for a while
//! after a contradiction, and each one that follows soon makes that longer.

use std::time::Duration;

use crate::machine::config::HEAL_MAX;

/// Number of contradictions soon after one another from which on they are not restarts.
const STRONG: u32 = 3;
/// Time without a contradiction after which the next one is the first again.
const SOON_AFTER: Duration = Duration::from_secs(60);

/// Doubt in a stream whose batches contradict each other, and until when it lasts.
#[derive(Debug, Default)]
pub(in crate::machine) struct Doubt {
    /// Contradictions soon after one another.
    count: u32,
    at: Duration,
    until: Option<Duration>,
    /// A number below the last one, too old to tell by itself whether it is of another life.
    suspect: Option<u64>,
}

impl Doubt {
    pub(in crate::machine) fn is_open(&self) -> bool {
        self.until.is_some()
    }

    pub(in crate::machine) fn is_strong(&self) -> bool {
        self.is_open() && self.count >= STRONG
    }

    pub(in crate::machine) fn until(&self) -> Option<Duration> {
        self.until
    }

    pub(in crate::machine) fn pass(&mut self, now: Duration) {
        self.until = self.until.filter(|until| *until > now);
    }

    /// A connection that ends explains a single contradiction: the engine has restarted.
    pub(in crate::machine) fn disconnected(&mut self) {
        self.suspect = None;
        if self.count <= 1 {
            (self.count, self.until) = (0, None);
        }
    }

    pub(in crate::machine) fn suspect(&mut self, seq: u64) {
        self.suspect = Some(seq);
    }

    /// Notes that batches contradict each other. `certain`: those of the live connection. `pause`: how long nothing is
    /// trusted after the first such contradiction.
    pub(in crate::machine) fn contradict(&mut self, now: Duration, certain: bool, pause: Duration) {
        let over = self.until.unwrap_or(self.at) + SOON_AFTER;
        self.count = if now > over { 1 } else { self.count + 1 };
        self.at = now;
        if certain || self.count > 1 {
            let wait = pause * 4u32.saturating_pow((self.count - 1).min(8));
            self.until = self.until.max(Some(now + wait.min(HEAL_MAX)));
        }
    }

    /// Forgets the number that could not be told. True if there was one.
    pub(in crate::machine) fn take_suspect(&mut self) -> bool {
        self.suspect.take().is_some()
    }
}
