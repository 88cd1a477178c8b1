//! Why an event cannot be read.

use super::msgpack::Broken;
use crate::error::Reason;

/// Why an event cannot be read.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Not even its end can be found.
    Broken(Broken),
    /// It means nothing.
    Event(Reason, String),
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}
