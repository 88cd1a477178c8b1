//! The limits of a connection.

use std::time::Duration;

/// The time limits of a connection's phases, and the size limits of a head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) idle: Duration,
    pub(crate) request: Duration,
    pub(crate) write: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) max_head: usize,
    pub(crate) max_headers: usize,
    /// True if a client that ends what it sends in the middle of an answer has left, as clients do. Else it gets the rest.
    pub(crate) late_end_is_leaving: bool,
}
