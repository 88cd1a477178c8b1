//! Events of a type that is not known here.
//!
//! Such an event may have removed anything, so what was applied before is forgotten. An engine of a newer version may
//! send one each second, though, and mean something harmless; then the stream would read and forget without end. So after
//! a few of them within a while nothing is forgotten any more, and nothing is trusted either, until none has come for as
//! long.

use std::time::Duration;

use super::{Effects, Machine};

/// Number of batches with events of unknown types, each soon after the one before, that cost what was applied before.
const FORGIVEN: u32 = 3;
/// Longest time between two batches with events of unknown types: those further apart do not count together.
const WHILE: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct UnknownEvents {
    /// Batches with such events, each soon after the one before.
    count: u32,
    at: Duration,
    /// True if something that is applied came before a batch with events of unknown types.
    open: bool,
}

impl UnknownEvents {
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Notes that nothing is held any more.
    pub(super) fn cleared(&mut self) {
        self.open = false;
    }

    /// Time at which events of unknown types no longer count, unless another one comes.
    pub(super) fn until(&self) -> Option<Duration> {
        self.open.then(|| self.at + WHILE)
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// A batch was applied, but for events of unknown types. True if that costs what is held.
    pub(super) fn is_costly(&mut self, now: Duration) -> bool {
        let seen = &mut self.unknown_events;
        let again = seen.count > 0 && now <= seen.at + WHILE;
        (seen.count, seen.at) = (if again { seen.count.saturating_add(1) } else { 1 }, now);
        seen.open = seen.count > FORGIVEN;
        !seen.open
    }

    /// Forgets what is held for the last time, once no event of an unknown type has come for long.
    pub(super) fn end_strange(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if self.unknown_events.until().is_some_and(|at| at <= now) {
            self.lose(self.next(), fx);
            self.heal_at = None;
        }
    }
}
