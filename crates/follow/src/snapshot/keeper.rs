//! The thread that writes a snapshot at each interval, and the copying of all streams.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::xxh3_64;

use super::disk::Directory;
use super::format::{Encoder, Head, KeyspaceCopy, SnapshotSize};
use super::pending::Origin;
use super::{LastWrite, Snapshots, Source};
use crate::error::Error;
use kvatlas_stream::Skip;

/// Longest wait for the copy of a stream, which is left out after it.
const LONGEST: Duration = Duration::from_secs(60);

/// Thread of a service's directory of snapshots: loads the snapshot there, then writes others until it is stopped.
pub(crate) struct Keeper {
    stop: Sender<Option<Instant>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Start`] if the thread cannot be started.
    pub(crate) fn start(
        snapshots: Arc<Snapshots>,
        source: Arc<dyn Source>,
        directory: Directory,
    ) -> Result<Self, Error> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("kvatlas-snapshot".to_owned());
        let thread = thread.spawn(move || keep(&snapshots, &*source, &directory, &stopped)).map_err(|error| {
            Error::Start { message: format!("cannot start the thread that writes snapshots: {error}") }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Stops the thread. `until`: deadline for copying streams for a last snapshot; none to write no snapshot.
    pub(crate) fn stop(mut self, until: Option<Instant>) {
        let _ = self.stop.send(until);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that writes snapshots has failed");
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Without waiting for the thread.
        let _ = self.stop.send(None);
    }
}

fn keep(snapshots: &Snapshots, source: &dyn Source, directory: &Directory, stopped: &Receiver<Option<Instant>>) {
    load(snapshots, directory);
    snapshots.loaded(source);
    loop {
        let last = match stopped.recv_timeout(snapshots.config.every) {
            Err(RecvTimeoutError::Timeout) => None,
            Ok(Some(until)) => Some(until),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
        };
        // Nothing is lost by a write that is left out; much is if a file that is to be read is replaced by nothing.
        if !snapshots.is_loading() {
            write(snapshots, source, directory, last);
        }
        if last.is_some() {
            return;
        }
    }
}

fn load(snapshots: &Snapshots, directory: &Directory) {
    let file = directory.file().display().to_string();
    let read = directory
        .read(snapshots.config.max_bytes)
        .map_err(|error| Error::Snapshot { message: format!("{file}: {error}") });
    let loaded = read.and_then(|bytes| match bytes {
        Some(bytes) => {
            let read = || snapshots.read(&bytes, Origin { kind: "disk", file: file.clone() }).map(drop);
            // What is wrong with a file must not end the thread: whoever waits for it would wait for ever.
            guarded(read).unwrap_or_else(|| Err(Error::Snapshot { message: format!("{file}: {FAULT}") }))
        }
        None => Ok(()),
    });
    if let Err(error) = loaded {
        snapshots.counts.refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let aside = directory.put_aside();
        tracing::error!(%error, aside = %aside.display(), "a snapshot cannot be used; the service starts without it");
    }
}

fn write(snapshots: &Snapshots, source: &dyn Source, directory: &Directory, until: Option<Instant>) {
    let begun = Instant::now();
    let mut skipped = [0; Skip::ALL.len()];
    let written = directory.replace(|out| {
        let write = || snapshots.write(source, out, until, &mut skipped);
        guarded(write).unwrap_or_else(|| Err(io::Error::other(FAULT)))
    });
    let took = begun.elapsed();
    match written {
        Ok(written) => {
            let at = SystemTime::now();
            snapshots.counts.wrote(LastWrite { written, skipped, took, ended: Instant::now(), at });
            let SnapshotSize { bytes, streams, blocks, distinct, .. } = written;
            let left_out: u64 = skipped.iter().sum();
            tracing::info!(bytes, streams, left_out, blocks, distinct, took_ms = took.as_millis() as u64, "snapshot");
        }
        Err(error) => {
            let file = directory.file();
            let message = format!("cannot write {}: {error}; the one before it stays", file.display());
            tracing::error!(message, "a snapshot could not be written");
            snapshots.counts.failed(message);
        }
    }
}

/// Message in place of a panic's.
const FAULT: &str = "an internal error, whose place is in the log";

/// Result of `work`; none if it panicked, which is logged by the panic itself.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

impl Snapshots {
    /// Writes all streams as they are now, and the loaded streams that still wait to be registered.
    pub(super) fn write<W: Write>(
        &self,
        source: &dyn Source,
        out: W,
        until: Option<Instant>,
        skipped: &mut [u64; Skip::ALL.len()],
    ) -> io::Result<(W, SnapshotSize)> {
        let _one = self.copying.lock();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = xxh3_64(format!("{} {}", std::process::id(), now.as_nanos()).as_bytes());
        let kvatlas = env!("CARGO_PKG_VERSION").to_owned();
        let mut encoder = Encoder::new(out, &Head { created: now.as_secs_f64(), kvatlas, id })?;
        let keyspaces = source.keyspaces();
        for keyspace in &keyspaces {
            let mut copy = KeyspaceCopy::default();
            for stream in keyspace.streams() {
                let asked = Instant::now();
                let wait = until.map_or(LONGEST, |until| until.saturating_duration_since(asked).min(LONGEST));
                match stream.copies().copy(wait) {
                    Ok(stream) => copy.stream(stream, false)?,
                    Err(why) => skipped[why as usize] += 1,
                }
            }
            let waiting = self.pending.lock().copies(&keyspace.model, &keyspace.routing_group, keyspace.block_size);
            waiting.into_iter().try_for_each(|stream| copy.stream(stream, true))?;
            keyspace.pools().into_iter().for_each(|pool| copy.pool(pool));
            let waiting = self.pending.lock().pools(&keyspace.model, &keyspace.routing_group, keyspace.block_size);
            waiting.into_iter().for_each(|pool| copy.pool(pool));
            if !copy.is_empty() {
                encoder.keyspace(&keyspace.model, &keyspace.routing_group, keyspace.block_size, &copy)?;
            }
        }
        let waiting = self.pending.lock().keyspaces();
        for (model, routing_group, block_size) in waiting {
            let is_known = keyspaces
                .iter()
                .any(|it| (&*it.model, &*it.routing_group, it.block_size) == (&*model, &*routing_group, block_size));
            if !is_known {
                let mut copy = KeyspaceCopy::default();
                let streams = self.pending.lock().copies(&model, &routing_group, block_size);
                streams.into_iter().try_for_each(|stream| copy.stream(stream, true))?;
                let pools = self.pending.lock().pools(&model, &routing_group, block_size);
                pools.into_iter().for_each(|pool| copy.pool(pool));
                encoder.keyspace(&model, &routing_group, block_size, &copy)?;
            }
        }
        encoder.end()
    }
}
