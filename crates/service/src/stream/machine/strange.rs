//! Events of a type that is not known here.
//!
//! Such an event may have removed anything, so what was applied before is forgotten. An engine of a newer version may
//! send one each second, though, and mean something harmless; then the stream would read and forget without end. So after
//! a few of them within a while nothing is forgotten any more, and nothing is trusted either, until none has come for as
//! long.

use std::time::Duration;

use super::{Effects, Machine};

/// So many batches with such events cost what was applied before them.
const FORGIVEN: u32 = 3;
/// Those further apart have nothing to do with each other.
const WHILE: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Strange {
    /// Batches with such events, each soon after the one before.
    count: u32,
    at: Duration,
    /// Whether something that is applied came before one of them.
    open: bool,
}

impl Strange {
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Nothing is held any more.
    pub(super) fn cleared(&mut self) {
        self.open = false;
    }

    /// When it is over.
    pub(super) fn until(&self) -> Option<Duration> {
        self.open.then(|| self.at + WHILE)
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// A batch was applied, but for events of unknown types. True if that costs what is held.
    pub(super) fn is_costly(&mut self, now: Duration) -> bool {
        let strange = &mut self.strange;
        let again = strange.count > 0 && now <= strange.at + WHILE;
        (strange.count, strange.at) = (if again { strange.count.saturating_add(1) } else { 1 }, now);
        strange.open = strange.count > FORGIVEN;
        !strange.open
    }

    /// None has come for long: what is held is forgotten for the last time.
    pub(super) fn end_strange(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if self.strange.until().is_some_and(|at| at <= now) {
            self.lose(self.next(), fx);
            self.heal_at = None;
        }
    }
}
