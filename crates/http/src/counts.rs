//! Counts of connections, and of streams that were reset.

use std::sync::atomic::AtomicU64;

/// Counts of connections.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) begun: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) stalled_streams: AtomicU64,
}
