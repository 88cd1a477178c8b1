//! Faults: the reasons why an event cannot be read.

use super::msgpack::MsgpackError;
use crate::error::Reason;

/// Reason why an event cannot be read.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Not even its end can be found.
    Broken(MsgpackError),
    /// The event means nothing.
    Event(Reason, String),
}

impl From<MsgpackError> for Fault {
    fn from(broken: MsgpackError) -> Self {
        Self::Broken(broken)
    }
}
