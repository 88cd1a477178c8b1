//! [`Counts`]: what the server has done.

use std::sync::atomic::AtomicU64;

/// Counters of the server, since its start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests that got an engine.
    pub picked: AtomicU64,
    /// Requests that the picker refused.
    pub refused: AtomicU64,
    /// Requests refused because their body is larger than the limit.
    pub too_large: AtomicU64,
    /// Requests with a body that got an engine without it: the gateway's mode shows the body too late or in part.
    pub without_body: AtomicU64,
    /// Streams of the gateway that ended before their request got an engine.
    pub left: AtomicU64,
}
