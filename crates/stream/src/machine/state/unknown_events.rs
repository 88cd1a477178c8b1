//! Events of a type that is not known here.
//!
//! Such an event may have removed anything, so what was applied before is forgotten. An engine of a newer version may
//! send one each second, though, and mean something harmless; then the stream would read and forget without end. So after
//! a few of them within a while nothing is forgotten any more, and nothing is trusted either, until none has come for as
//! long.

use std::time::Duration;

/// Number of batches with events of unknown types, each soon after the one before, that cost what was applied before.
const FORGIVEN: u32 = 3;
/// Longest time between two batches with events of unknown types: those further apart do not count together.
const WHILE: Duration = Duration::from_secs(600);

/// Batches with events of unknown types, soon after one another.
#[derive(Debug, Default)]
pub(in crate::machine) struct UnknownEvents {
    /// Batches with such events, each soon after the one before.
    count: u32,
    at: Duration,
    /// True if something that is applied came before a batch with events of unknown types.
    open: bool,
}

impl UnknownEvents {
    pub(in crate::machine) fn is_open(&self) -> bool {
        self.open
    }

    /// Notes that nothing is held any more.
    pub(in crate::machine) fn clear(&mut self) {
        self.open = false;
    }

    /// Time at which events of unknown types no longer count, unless another one comes.
    pub(in crate::machine) fn until(&self) -> Option<Duration> {
        self.open.then(|| self.at + WHILE)
    }

    /// Notes a batch with such events. True if that costs what is held.
    pub(in crate::machine) fn add(&mut self, now: Duration) -> bool {
        let again = self.count > 0 && now <= self.at + WHILE;
        (self.count, self.at) = (if again { self.count.saturating_add(1) } else { 1 }, now);
        self.open = self.count > FORGIVEN;
        !self.open
    }
}
