//! Makes snapshots for other services, when they ask.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::encode::SnapshotSize;
use super::spool::SnapshotFile;
use super::{Snapshots, Source};
use kvatlas_stream::Skip;

/// Whoever begins to read gets one that is no older.
const FRESH: Duration = Duration::from_secs(5);
/// One that nobody has read any of for so long is dropped.
const UNREAD: Duration = Duration::from_secs(30);
/// Most of it is hashes, which nothing makes smaller.
const LEVEL: i32 = 1;

impl Snapshots {
    /// The snapshot of this identifier, if it is still there, or else a new one; `fresh`: no older than this call. It is
    /// waited for no longer than `wait`. None: it is not there by then, and may be asked for again.
    ///
    /// # Errors
    /// The reason why the snapshot cannot be made.
    pub(crate) async fn spool(
        self: &Arc<Self>,
        source: &Arc<dyn Source>,
        id: Option<u64>,
        fresh: bool,
        wait: Duration,
    ) -> Result<Option<Arc<SnapshotFile>>, String> {
        let asked = Instant::now();
        let until = tokio::time::Instant::from_std(asked + wait);
        let is_fresh = |last: &SnapshotFile| if fresh { last.begun >= asked } else { last.made.elapsed() < FRESH };
        loop {
            let made = self.spool.made.notified();
            tokio::pin!(made);
            made.as_mut().enable();
            {
                let mut state = self.spool.state.lock();
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
                let mut state = snapshots.spool.state.lock();
                state.making = false;
                match made {
                    Ok(made) => state.last = Some(Arc::new(made)),
                    Err(error) => state.error = Some(error),
                }
            }
            snapshots.spool.made.notify_waiters();
            // Until nobody reads it any more.
            loop {
                tokio::time::sleep(UNREAD / 3).await;
                let mut state = snapshots.spool.state.lock();
                let Some(last) = &state.last else { return };
                if last.read.lock().elapsed() > UNREAD {
                    state.last = None;
                    return;
                }
            }
        });
    }

    fn pack(&self, source: &dyn Source) -> Result<SnapshotFile, String> {
        let begun = Instant::now();
        let (bytes, _) = self.compress(source)?;
        let id = xxhash_rust::xxh3::xxh3_64(&bytes);
        let now = Instant::now();
        Ok(SnapshotFile { id, bytes: bytes.into(), begun, made: now, read: Mutex::new(now) })
    }

    /// All streams as they are now, compressed. Waits for their tasks.
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
