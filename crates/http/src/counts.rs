//! Counts of connections, and of streams that were reset.

use std::sync::atomic::AtomicU64;

/// Counts of connections.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) begun: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) stalled_streams: AtomicU64,
    /// Connections without a key that were closed because they opened too many streams, and because they did not take an
    /// answer.
    pub(crate) stranger_streams: AtomicU64,
    pub(crate) unread_answers: AtomicU64,
}
