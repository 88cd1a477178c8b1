//! [`Source`]: whose streams a snapshot is of.

use std::sync::Arc;

use crate::state::Keyspace;

/// Streams of which snapshots are made, and which wait for those that are loaded.
pub(crate) trait Source: Send + Sync {
    /// The keyspaces that the streams feed, by model and routing group.
    fn keyspaces(&self) -> Vec<Arc<Keyspace>>;

    /// Ends a wait of the streams. False if there was none.
    fn release(&self, hold: &str) -> bool;
}
