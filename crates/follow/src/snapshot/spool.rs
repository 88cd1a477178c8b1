//! A snapshot in memory, for other services to read in parts: the last one that was asked for.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A snapshot, compressed.
#[derive(Debug)]
pub struct SnapshotFile {
    /// A number that no other snapshot has.
    pub id: u64,
    /// The snapshot itself.
    pub bytes: Bytes,
    pub(super) begun: Instant,
    pub(super) made: Instant,
    pub(super) read: Mutex<Instant>,
}

/// The last one that was asked for.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    pub(super) state: Mutex<State>,
    pub(super) made: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) last: Option<Arc<SnapshotFile>>,
    pub(super) making: bool,
    pub(super) error: Option<String>,
}
