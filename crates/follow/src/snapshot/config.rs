//! Settings of snapshots.

use std::time::Duration;

use serde::Deserialize;

/// Settings for keeping snapshots.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotConfig {
    /// The directory of snapshots; none for no snapshots on disk.
    pub dir: Option<std::path::PathBuf>,
    /// Time from the end of one snapshot to the beginning of the next.
    #[serde(with = "kvatlas_settings::seconds")]
    pub every: Duration,
    /// Time for which what was loaded waits for its streams to be registered.
    #[serde(with = "kvatlas_settings::seconds")]
    pub keep: Duration,
    /// True if streams wait for a snapshot of another service, or word that there is none: see
    /// [`Follower::load_snapshot`](crate::Follower::load_snapshot).
    pub from_peer: bool,
    /// Bytes that one may have, as it comes and unpacked.
    pub max_bytes: u64,
}
