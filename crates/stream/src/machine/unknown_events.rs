//! The end of a time in which events of unknown types came.

use std::time::Duration;

use super::{Effects, Machine};

impl<P: AsRef<[u8]>> Machine<P> {
    /// Forgets what is held for the last time, once no event of an unknown type has come for long.
    pub(super) fn end_strange(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if self.unknown_events.until().is_some_and(|at| at <= now) {
            self.lose(self.next(), fx);
            self.heal_at = None;
        }
    }
}
