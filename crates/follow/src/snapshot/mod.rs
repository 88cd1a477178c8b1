//! Snapshots: the blocks held by all streams' ranks, saved for a restart of the service, or taken over from another
//! service.
//!
//! A snapshot has for each stream the held blocks of its ranks and the *mark*, the number and hash of the last batch
//! included. Streams are copied at different moments, and each continues from its own mark: when a restored stream
//! connects, it asks its engine for the batches from the mark on. The first of them must equal the marked batch, byte
//! for byte; only then are the restored blocks trusted.
//!
//! ```text
//! stream tasks ──copies──▶ keeper (at each interval) ─▶ format ─▶ disk
//!                          served (GET /snapshot)    ─▶ format ─▶ zstd ─▶ another service
//! disk, or another service ─▶ unpack ─▶ format ─▶ pending ──▶ stream tasks: each takes its own when it begins
//! ```
//!
//! `stream/copier.rs` and `stream/restore.rs` have the parts that run in the streams' tasks.

mod compare;
mod format;
mod keeper;
mod pending;
mod served;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvatlas_stream::Skip;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use self::compare::compare;
pub(crate) use self::format::{read_all, read_file};
pub(crate) use self::keeper::{Directory, Keeper};
pub(crate) use self::pending::{Origin, StreamRestore};
pub use self::served::PackedSnapshot;
pub use kvatlas_stream::Outcome;

use self::format::{SnapshotSize, decode, unpack};
use self::pending::{PendingRestores, RestoreFailure};
use self::served::SnapshotCache;
use crate::config::SnapshotConfig;
use crate::error::Error;
use crate::state::{Keyspace, Stream};

/// Name of the condition that keeps the service from being ready while a snapshot is loaded.
pub(crate) const HOLD: &str = "snapshot";

/// Snapshots of a service: those that are loaded, saved on disk and served to other services.
#[derive(Debug)]
pub struct Snapshots {
    pub(crate) config: SnapshotConfig,
    pub(crate) counts: Counts,
    pending: Mutex<PendingRestores>,
    /// Number of snapshots that have not been loaded yet.
    loading: watch::Sender<usize>,
    cache: SnapshotCache,
    /// Lock that is held while all streams are copied, so that one snapshot is made at a time.
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
            cache: SnapshotCache::default(),
            copying: Mutex::default(),
        }
    }

    /// Returns the number of snapshots that were written to disk since the service began.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.counts.writes.load(Relaxed)
    }

    /// Returns the number of restored streams with this outcome.
    #[must_use]
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.counts.outcome(outcome)
    }

    pub(crate) fn is_loading(&self) -> bool {
        *self.loading.borrow() > 0
    }

    /// Records that one of the expected snapshots has been loaded or is missing. After the last one, snapshots no
    /// longer keep the service from being ready.
    pub(crate) fn loaded(&self, source: &dyn Source) {
        self.loading.send_modify(|left| *left = left.saturating_sub(1));
        if !self.is_loading() {
            source.release(HOLD);
        }
    }

    /// Decodes a snapshot, whose streams then wait for their engines to be registered. Returns the number of streams.
    ///
    /// # Errors
    /// [`Error::Snapshot`] with a description of the fault.
    pub(crate) fn read(&self, bytes: &[u8], origin: Origin) -> Result<u64, Error> {
        let file = origin.file.clone();
        let wrong = |what| Error::Snapshot { message: format!("{file}: {what}") };
        let bytes = unpack(bytes, self.config.max_bytes).map_err(wrong)?;
        let snapshot = decode(&bytes).map_err(wrong)?;
        let (streams, blocks) = self.pending.lock().add(snapshot, origin);
        tracing::info!(file, streams, blocks, "a snapshot is loaded; each stream is checked against its engine");
        Ok(streams)
    }

    /// Removes and returns the saved state of a stream that begins, after waiting until all snapshots are loaded.
    /// `None` if there is none, or it cannot be used, which is counted and logged.
    pub(crate) async fn take(&self, keyspace: &Keyspace, stream: &Stream) -> Option<StreamRestore> {
        let mut loading = self.loading.subscribe();
        // The sender is there as long as this is.
        let _ = loading.wait_for(|left| *left == 0).await;
        let pools = self.pending.lock().take_pools(keyspace);
        if let Some((created, pools)) = pools {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            keyspace.restore_pools(&pools, (now.as_secs_f64() - created).max(0.0));
        }
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

    /// Returns the sequence numbers up to which the NATS log was read, one for each saved stream that is read from the
    /// log. Waits until all snapshots are loaded.
    pub(crate) async fn sequences(&self) -> Vec<u64> {
        let _ = self.loading.subscribe().wait_for(|left| *left == 0).await;
        self.pending.lock().sequences()
    }

    /// Drops saved streams whose engines were not registered within the time `snapshot.keep`.
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

/// Source of the streams in a snapshot. Implemented by the fleet, on which this module does not depend.
pub(crate) trait Source: Send + Sync {
    /// Returns the keyspaces (one index per model and routing group) that have streams, sorted by model and routing
    /// group.
    fn keyspaces(&self) -> Vec<Arc<Keyspace>>;

    /// Releases a hold, a named condition that keeps the service from being ready. Returns false if there was no hold
    /// of this name.
    fn release(&self, hold: &str) -> bool;
}

/// Record of the last snapshot written to disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastWrite {
    pub(crate) written: SnapshotSize,
    /// Number of streams that the snapshot does not contain, for each reason in [`Skip::ALL`].
    pub(crate) skipped: [u64; Skip::ALL.len()],
    pub(crate) took: Duration,
    pub(crate) ended: Instant,
    pub(crate) at: SystemTime,
}

/// Counts of snapshots written and loaded since the service began.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    pub(crate) writes: AtomicU64,
    pub(crate) failed_writes: AtomicU64,
    /// Number of snapshots that could not be loaded.
    pub(crate) refused: AtomicU64,
    last: Mutex<Option<LastWrite>>,
    /// Description of the current problem with the directory of snapshots; `None` if snapshots can be written there.
    error: Mutex<Option<String>>,
}

impl Counts {
    pub(crate) fn ended(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Relaxed)
    }

    pub(crate) fn wrote(&self, last: LastWrite) {
        self.writes.fetch_add(1, Relaxed);
        *self.last.lock() = Some(last);
        *self.error.lock() = None;
    }

    pub(crate) fn failed(&self, error: String) {
        self.failed_writes.fetch_add(1, Relaxed);
        *self.error.lock() = Some(error);
    }

    pub(crate) fn last(&self) -> Option<LastWrite> {
        *self.last.lock()
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }
}
