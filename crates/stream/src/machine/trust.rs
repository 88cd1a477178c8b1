//! State of a stream as it is told to others, and whether what is held of it is trusted.

use std::time::Duration;

use super::Machine;
use super::state::Goal;
use crate::State;

impl<P: AsRef<[u8]>> Machine<P> {
    /// True if what is applied is what the engine has announced.
    pub fn trusted(&self) -> bool {
        let is_certain = !self.doubt.is_open() && !self.unknown_events.is_open() && !self.is_contested();
        self.goal == Goal::Live && is_certain && !self.silence.is_open()
    }

    /// True if batches of several lives keep coming by one connection.
    pub fn is_mixed(&self) -> bool {
        self.doubt.is_strong()
    }

    /// The state of the stream.
    pub fn state(&self, now: Duration) -> State {
        match self.goal {
            Goal::Verify | Goal::Whole | Goal::Gap | Goal::Live if self.doubt.is_open() || self.is_contested() => {
                State::Conflict
            }
            Goal::Connect if self.ever_connected && self.silent_too_long(now) => State::Stale,
            Goal::Connect | Goal::Verify => State::Connecting,
            Goal::Whole => State::Replaying,
            Goal::Gap => State::Gap,
            Goal::Live if self.unknown_events.is_open() => State::Unreadable,
            Goal::Live if self.silence.is_open() => State::Stale,
            Goal::Live => State::Live,
            Goal::Stale => State::Stale,
        }
    }
}
