//! Snapshots: what the index holds, kept over a restart of the service, or taken over from another one.
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

mod compare;
mod config;
mod counts;
mod decode;
mod disk;
mod encode;
mod keeper;
mod meanings;
mod offer;
mod pending;
mod saved;
mod source;
mod spool;
#[cfg(test)]
mod tests;
mod unpack;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tokio::sync::watch;

pub use self::compare::compare;
pub use self::config::SnapshotConfig;
pub(crate) use self::counts::{Counts, LastWrite};
pub(crate) use self::disk::Directory;
pub(crate) use self::keeper::Keeper;
pub(crate) use self::meanings::Meanings;
pub(crate) use self::pending::{Origin, StreamRestore};
pub(crate) use self::saved::{RankBlocks, RankHead, SavedRank, StreamCopy, StreamHead, UnnamedProofs};
pub(crate) use self::source::Source;
pub use self::spool::SnapshotFile;
pub(crate) use self::spool::Spool;
pub(crate) use self::unpack::{read_all, read_file};
pub use kvatlas_stream::Outcome;

use self::decode::decode;
use self::pending::{PendingRestores, RestoreFailure};
use self::unpack::unpack;
use crate::error::Error;
use crate::state::{Keyspace, Stream};

/// The name of what readiness waits for while a snapshot is loaded.
pub(crate) const HOLD: &str = "snapshot";

/// The snapshots of a service.
#[derive(Debug)]
pub struct Snapshots {
    pub(crate) config: SnapshotConfig,
    pub(crate) counts: Counts,
    pending: Mutex<PendingRestores>,
    /// Number of snapshots that are being loaded still.
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
    pub(crate) fn loaded(&self, source: &dyn Source) {
        self.loading.send_modify(|left| *left = left.saturating_sub(1));
        if !self.is_loading() {
            source.release(HOLD);
        }
    }

    /// Reads a snapshot, whose streams then wait to be taken.
    ///
    /// # Errors
    /// [`Error::Snapshot`]: what is wrong with it.
    pub(crate) fn read(&self, bytes: &[u8], origin: Origin) -> Result<u64, Error> {
        let file = origin.file.clone();
        let wrong = |what| Error::Snapshot { message: format!("{file}: {what}") };
        let bytes = unpack(bytes, self.config.max_bytes).map_err(wrong)?;
        let snapshot = decode(&bytes).map_err(wrong)?;
        let (streams, blocks) = self.pending.lock().add(snapshot, origin);
        tracing::info!(file, streams, blocks, "a snapshot is loaded; each stream is checked against its engine");
        Ok(streams)
    }

    /// Takes what a snapshot has of a stream that begins, once all are loaded. What cannot be used is counted and said.
    pub(crate) async fn take(&self, keyspace: &Keyspace, stream: &Stream) -> Option<StreamRestore> {
        let mut loading = self.loading.subscribe();
        // The sender is there as long as this is.
        let _ = loading.wait_for(|left| *left == 0).await;
        let taken = self.pending.lock().take(keyspace, stream)?;
        match taken {
            Ok(restoring) => Some(restoring),
            Err(RestoreFailure { outcome, dictionary }) => {
                self.counts.ended(outcome);
                dictionary.iter().for_each(|dictionary| keyspace.teach(dictionary));
                let (worker, rank) = (&*stream.worker, stream.registration.rank);
                let why = outcome.name();
                tracing::warn!(worker, rank, why, "what a snapshot has of the stream cannot be used and is dropped");
                None
            }
        }
    }

    /// The places up to which a log was read for each stream of a snapshot that came by it. Waits until all are loaded.
    pub(crate) async fn sequences(&self) -> Vec<u64> {
        let _ = self.loading.subscribe().wait_for(|left| *left == 0).await;
        self.pending.lock().sequences()
    }

    /// Drops what no stream has come for, after the time that it is kept.
    pub(crate) async fn expire(self: Arc<Self>) {
        let mut loading = self.loading.subscribe();
        let _ = loading.wait_for(|left| *left == 0).await;
        tokio::time::sleep(self.config.keep).await;
        let left = self.pending.lock().drain();
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
