//! `GET /snapshot`: a snapshot in memory, for other services to read in parts.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Snapshots;
use super::counts::Skip;
use super::encode::Written;
use crate::fleet::Fleet;
use crate::state::lock;

/// Whoever begins to read gets one that is no older.
const FRESH: Duration = Duration::from_secs(5);
/// One that nobody has read any of for so long is dropped.
const UNREAD: Duration = Duration::from_secs(30);
/// Most of it is hashes, which nothing makes smaller.
const LEVEL: i32 = 1;

/// A snapshot, compressed.
#[derive(Debug)]
pub(crate) struct Spooled {
    pub(crate) id: u64,
    pub(crate) bytes: Bytes,
    begun: Instant,
    made: Instant,
    read: Mutex<Instant>,
}

impl Spooled {
    /// From a place on, so many bytes at most. None behind the end.
    pub(crate) fn part(&self, from: usize, most: usize) -> Option<Bytes> {
        *lock(&self.read) = Instant::now();
        let end = from.checked_add(most).map_or(self.bytes.len(), |end| end.min(self.bytes.len()));
        (from < self.bytes.len()).then(|| self.bytes.slice(from..end))
    }
}

/// The last one that was asked for.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    state: Mutex<State>,
    made: Notify,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Arc<Spooled>>,
    making: bool,
    error: Option<String>,
}

impl Snapshots {
    /// The snapshot of this identifier, if it is still there, or else a new one; `fresh`: no older than this call. Waits for that no longer than `wait`; none
    /// if it is not there by then: ask again.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub(crate) async fn spooled(
        self: &Arc<Self>,
        fleet: &Arc<Fleet>,
        id: Option<u64>,
        fresh: bool,
        wait: Duration,
    ) -> Result<Option<Arc<Spooled>>, String> {
        let asked = Instant::now();
        let until = tokio::time::Instant::from_std(asked + wait);
        let is_fresh = |last: &Spooled| if fresh { last.begun >= asked } else { last.made.elapsed() < FRESH };
        loop {
            let made = self.spool.made.notified();
            tokio::pin!(made);
            made.as_mut().enable();
            {
                let mut state = lock(&self.spool.state);
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                if let Some(last) = &state.last
                    && (id == Some(last.id) || is_fresh(last))
                {
                    return Ok(Some(last.clone()));
                }
                if !std::mem::replace(&mut state.making, true) {
                    self.make(fleet.clone());
                }
            }
            if tokio::time::timeout_at(until, made).await.is_err() {
                return Ok(None);
            }
        }
    }

    fn make(self: &Arc<Self>, fleet: Arc<Fleet>) {
        let snapshots = self.clone();
        tokio::spawn(async move {
            let making = snapshots.clone();
            let made = tokio::task::spawn_blocking(move || making.packed(&fleet)).await;
            let made = made.unwrap_or_else(|_| Err("a snapshot could not be made: an internal error".to_owned()));
            {
                let mut state = lock(&snapshots.spool.state);
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
                let mut state = lock(&snapshots.spool.state);
                let Some(last) = &state.last else { return };
                if lock(&last.read).elapsed() > UNREAD {
                    state.last = None;
                    return;
                }
            }
        });
    }

    fn packed(&self, fleet: &Fleet) -> Result<Spooled, String> {
        let begun = Instant::now();
        let (bytes, _) = self.compressed(fleet)?;
        let id = xxhash_rust::xxh3::xxh3_64(&bytes);
        let now = Instant::now();
        Ok(Spooled { id, bytes: bytes.into(), begun, made: now, read: Mutex::new(now) })
    }

    /// All streams as they are now, compressed. Waits for their tasks.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub(crate) fn compressed(&self, fleet: &Fleet) -> Result<(Vec<u8>, Written), String> {
        let cannot = |error: std::io::Error| format!("a snapshot could not be made: {error}");
        let encoder = zstd::Encoder::new(Vec::new(), LEVEL).map_err(cannot)?;
        let mut skipped = [0; Skip::ALL.len()];
        let (encoder, written) = self.write(fleet, encoder, None, &mut skipped).map_err(cannot)?;
        Ok((encoder.finish().map_err(cannot)?, written))
    }
}
