//! What the index holds, kept over a restart of the service, or taken over from another one.
//!
//! A snapshot has, for each stream, what its ranks hold and its *mark*: the last batch that is in it, by number and hash.
//! Each stream is as it was at one moment of its own, different streams at different moments: every one goes on from its
//! own mark. A stream that is followed anew asks its engine for the batches from the mark on. The first of them must be the
//! marked one, byte for byte; only then what the snapshot had is trusted.
//!
//! ```text
//! stream tasks ──copies──▶ keeper (every so often) ─▶ encode ─▶ disk
//!                          spool  (GET /snapshot)  ─▶ encode ─▶ zstd ─▶ another service
//! disk, or another service ─▶ decode ─▶ pending ──▶ stream tasks: each takes its own when it begins
//! ```
//!
//! `stream/copier.rs` and `stream/restore.rs` have the stream tasks' part.

mod bytes;
mod compare;
mod counts;
mod decode;
mod disk;
mod encode;
mod keeper;
mod meanings;
mod pending;
mod saved;
mod spool;
#[cfg(test)]
mod tests;
mod unpack;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;

pub use self::compare::compare;
pub use self::counts::Outcome;
pub(crate) use self::counts::{Counts, LastWrite, Skip};
pub(crate) use self::disk::Directory;
pub(crate) use self::keeper::Keeper;
pub(crate) use self::meanings::Meanings;
pub(crate) use self::pending::{Origin, Restoring};
pub(crate) use self::saved::{Dictionary, Mark, RankBlocks, RankHead, SavedRank, StreamCopy, StreamHead, Unknown};
pub(crate) use self::spool::{Spool, Spooled};
pub(crate) use self::unpack::{read_all, read_file};

use self::decode::decode;
use self::pending::{Pending, Unusable};
use self::unpack::unpacked;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::state::{Keyspace, Stream, lock};

/// What readiness waits for while a snapshot is loaded.
pub(crate) const HOLD: &str = "snapshot";

/// How snapshots are kept.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotConfig {
    /// Where; none for no snapshots on disk.
    pub dir: Option<std::path::PathBuf>,
    /// From the end of one to the beginning of the next.
    #[serde(with = "crate::config::seconds")]
    pub every: Duration,
    /// How long what was loaded waits for its streams to be registered.
    #[serde(with = "crate::config::seconds")]
    pub keep: Duration,
    /// Whether streams wait for a snapshot of another service, or word that there is none: see
    /// [`Service::load_snapshot`](crate::Service::load_snapshot).
    pub from_peer: bool,
    /// Bytes that one may have, as it comes and unpacked.
    pub max_bytes: u64,
}

impl Default for SnapshotConfig {
    fn default() -> Self {
        Self {
            dir: None,
            every: Duration::from_secs(60),
            keep: Duration::from_secs(300),
            from_peer: false,
            max_bytes: 1 << 30,
        }
    }
}

/// The snapshots of a service.
#[derive(Debug)]
pub struct Snapshots {
    pub(crate) config: SnapshotConfig,
    pub(crate) counts: Counts,
    pending: Mutex<Pending>,
    /// So many are being loaded still.
    loading: watch::Sender<usize>,
    spool: Spool,
    /// One copy of all streams at a time.
    copying: Mutex<()>,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self::new(SnapshotConfig::default())
    }
}

impl Snapshots {
    pub(crate) fn new(config: SnapshotConfig) -> Self {
        let loading = usize::from(config.dir.is_some()) + usize::from(config.from_peer);
        Self {
            config,
            counts: Counts::default(),
            pending: Mutex::default(),
            loading: watch::Sender::new(loading),
            spool: Spool::default(),
            copying: Mutex::default(),
        }
    }

    /// Snapshots written to disk since the service began.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.counts.writes.load(Relaxed)
    }

    /// Streams of which a snapshot had blocks, and of which this became.
    #[must_use]
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.counts.outcome(outcome)
    }

    pub(crate) fn is_loading(&self) -> bool {
        *self.loading.borrow() > 0
    }

    /// One of those that are waited for is loaded, or there is none.
    pub(crate) fn loaded(&self, fleet: &Fleet) {
        self.loading.send_modify(|left| *left = left.saturating_sub(1));
        if !self.is_loading() {
            fleet.release(HOLD);
        }
    }

    /// Reads a snapshot, whose streams then wait to be taken.
    ///
    /// # Errors
    /// [`Error::Snapshot`]: what is wrong with it.
    pub(crate) fn read(&self, bytes: &[u8], origin: Origin) -> Result<u64, Error> {
        let file = origin.file.clone();
        let wrong = |what| Error::Snapshot { message: format!("{file}: {what}") };
        let bytes = unpacked(bytes, self.config.max_bytes).map_err(wrong)?;
        let snapshot = decode(&bytes).map_err(wrong)?;
        let (streams, blocks) = lock(&self.pending).add(snapshot, origin);
        tracing::info!(file, streams, blocks, "a snapshot is loaded; each stream is checked against its engine");
        Ok(streams)
    }

    /// What a snapshot has of a stream that begins, once all are loaded. What cannot be used is counted and said.
    pub(crate) async fn take(&self, keyspace: &Keyspace, stream: &Stream) -> Option<Restoring> {
        let mut loading = self.loading.subscribe();
        // The sender is there as long as this is.
        let _ = loading.wait_for(|left| *left == 0).await;
        let taken = lock(&self.pending).take(keyspace, stream)?;
        match taken {
            Ok(restoring) => Some(restoring),
            Err(Unusable { outcome, dictionary }) => {
                self.counts.ended(outcome);
                dictionary.iter().for_each(|dictionary| keyspace.teach(dictionary));
                let (worker, rank) = (&*stream.worker, stream.registration.rank);
                let why = outcome.name();
                tracing::warn!(worker, rank, why, "what a snapshot has of the stream cannot be used and is dropped");
                None
            }
        }
    }

    /// How far a log was read for each stream of a snapshot that came by it. Waits until all are loaded.
    pub(crate) async fn sequences(&self) -> Vec<u64> {
        let _ = self.loading.subscribe().wait_for(|left| *left == 0).await;
        lock(&self.pending).sequences()
    }

    /// Drops what no stream has come for, after the time that it is kept.
    pub(crate) async fn expire(self: Arc<Self>) {
        let mut loading = self.loading.subscribe();
        let _ = loading.wait_for(|left| *left == 0).await;
        tokio::time::sleep(self.config.keep).await;
        let left = lock(&self.pending).drain();
        if left.is_empty() {
            return;
        }
        let blocks: u64 = left.iter().map(|(_, blocks)| blocks).sum();
        left.iter().for_each(|_| self.counts.ended(Outcome::NotRegistered));
        let workers = left.iter().take(8).map(|(worker, _)| worker.as_str()).collect::<Vec<_>>().join(", ");
        tracing::warn!(
            streams = left.len(),
            blocks,
            workers,
            seconds = self.config.keep.as_secs_f64(),
            "dropped what snapshots had of streams that were not registered in time (snapshot.keep)"
        );
    }
}
