//! Messages of a log, as they are read.

use std::time::Duration;

use bytes::Bytes;

/// Without a message, until the connection is looked at.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// A message of the log.
pub(super) struct LogMessage<'a> {
    pub(super) subject: &'a str,
    pub(super) payload: Bytes,
    pub(super) sequence: u64,
    /// Number of messages behind it, about.
    pub(super) pending: u64,
    /// Seconds since it was published, if clocks are equal; 0 if that is not known.
    pub(super) age: u64,
}
