//! Snapshots that are served to other services (`GET /snapshot`), which download them in parts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::format::SnapshotSize;
use super::{Snapshots, Source};
use kvatlas_stream::Skip;

/// Maximum age of a snapshot in memory that another service may begin to download.
const FRESH: Duration = Duration::from_secs(5);
/// Time without a request for a part after which a snapshot is dropped.
const UNREAD: Duration = Duration::from_secs(30);
/// Level of zstd's compression of a snapshot. The level is low because most of a snapshot is hashes, which cannot be
/// compressed.
const LEVEL: i32 = 1;

/// Compressed snapshot that is kept in memory.
#[derive(Debug)]
pub struct PackedSnapshot {
    /// Identifier of the snapshot.
    pub id: u64,
    /// Compressed bytes of the snapshot.
    pub bytes: Bytes,
    /// Time at which the copying of streams for the snapshot began.
    begun: Instant,
    made: Instant,
    /// Time of the last request for a part of the snapshot.
    read: Mutex<Instant>,
}

/// Cache of the latest snapshot that another service has requested, which it downloads in parts.
#[derive(Debug, Default)]
pub(super) struct SnapshotCache {
    state: Mutex<CacheState>,
    made: Notify,
}

#[derive(Debug, Default)]
struct CacheState {
    last: Option<Arc<PackedSnapshot>>,
    making: bool,
    error: Option<String>,
}

impl Snapshots {
    /// Returns the snapshot with the given identifier, if it is still in memory, or else a new one. Waits for a new one
    /// up to `wait`; `None` if it is not ready by then. If `fresh` is true, copying for the snapshot must have begun
    /// after this call.
    ///
    /// # Errors
    /// The reason why the snapshot cannot be made.
    pub(crate) async fn packed(
        self: &Arc<Self>,
        source: &Arc<dyn Source>,
        id: Option<u64>,
        fresh: bool,
        wait: Duration,
    ) -> Result<Option<Arc<PackedSnapshot>>, String> {
        let asked = Instant::now();
        let until = tokio::time::Instant::from_std(asked + wait);
        let is_fresh = |last: &PackedSnapshot| if fresh { last.begun >= asked } else { last.made.elapsed() < FRESH };
        loop {
            let made = self.cache.made.notified();
            tokio::pin!(made);
            made.as_mut().enable();
            {
                let mut state = self.cache.state.lock();
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                if let Some(last) = &state.last
                    && (id == Some(last.id) || is_fresh(last))
                {
                    *last.read.lock() = Instant::now();
                    return Ok(Some(last.clone()));
                }
                if !std::mem::replace(&mut state.making, true) {
                    self.make(source.clone());
                }
            }
            if tokio::time::timeout_at(until, made).await.is_err() {
                return Ok(None);
            }
        }
    }

    fn make(self: &Arc<Self>, source: Arc<dyn Source>) {
        let snapshots = self.clone();
        tokio::spawn(async move {
            let making = snapshots.clone();
            let made = tokio::task::spawn_blocking(move || making.pack(&*source)).await;
            let made = made.unwrap_or_else(|_| Err("a snapshot could not be made: an internal error".to_owned()));
            {
                let mut state = snapshots.cache.state.lock();
                state.making = false;
                match made {
                    Ok(made) => state.last = Some(Arc::new(made)),
                    Err(error) => state.error = Some(error),
                }
            }
            snapshots.cache.made.notify_waiters();
            // Kept until it was not read for a while.
            loop {
                tokio::time::sleep(UNREAD / 3).await;
                let mut state = snapshots.cache.state.lock();
                let Some(last) = &state.last else { return };
                if last.read.lock().elapsed() > UNREAD {
                    state.last = None;
                    return;
                }
            }
        });
    }

    fn pack(&self, source: &dyn Source) -> Result<PackedSnapshot, String> {
        let begun = Instant::now();
        let (bytes, _) = self.compress(source)?;
        let id = xxhash_rust::xxh3::xxh3_64(&bytes);
        let now = Instant::now();
        Ok(PackedSnapshot { id, bytes: bytes.into(), begun, made: now, read: Mutex::new(now) })
    }

    /// Makes a compressed snapshot of all streams. Waits for the streams' tasks to copy their held blocks.
    ///
    /// # Errors
    /// The reason why the snapshot cannot be made.
    pub(crate) fn compress(&self, source: &dyn Source) -> Result<(Vec<u8>, SnapshotSize), String> {
        let cannot = |error: std::io::Error| format!("a snapshot could not be made: {error}");
        let encoder = zstd::Encoder::new(Vec::new(), LEVEL).map_err(cannot)?;
        let mut skipped = [0; Skip::ALL.len()];
        let (encoder, written) = self.write(source, encoder, None, &mut skipped).map_err(cannot)?;
        Ok((encoder.finish().map_err(cannot)?, written))
    }
}
