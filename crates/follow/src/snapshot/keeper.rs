//! Thread that periodically copies all streams and writes a snapshot, and the directory of snapshots, which belongs to
//! one service and has one snapshot file that is replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvatlas_stream::Skip;
use xxhash_rust::xxh3::xxh3_64;

use super::format::{Encoder, Head, KeyspaceCopy, SnapshotSize};
use super::pending::Origin;
use super::{LastWrite, Snapshots, Source, read_file};
use crate::error::Error;

/// Maximum wait for the copy of one stream, after which the stream is left out of the snapshot.
const LONGEST: Duration = Duration::from_secs(60);

/// Thread that loads the snapshot in a service's directory, and then writes new snapshots until stopped.
pub(crate) struct Keeper {
    stop: Sender<Option<Instant>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread that loads the last snapshot from disk and writes new ones.
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

    /// Stops the thread. `until` is the deadline for copying streams into a last snapshot; `None` to write none.
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

/// Message that is shown, instead of the panic's own message, after the thread of snapshots has panicked.
const FAULT: &str = "an internal error, whose place is in the log";

/// Calls `work` and returns its result; `None` if `work` panicked. The panic's message has been logged by then.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

impl Snapshots {
    /// Writes a snapshot of all streams in their current state, and of loaded streams that still wait to be registered.
    /// `until` is the deadline for copying; `skipped` receives the numbers of streams left out, by reason.
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

const FILE: &str = "kvatlas.snapshot";
const UNFINISHED: &str = "kvatlas.snapshot.tmp";
const DAMAGED: &str = "kvatlas.snapshot.damaged";
const LOCK: &str = "lock";
/// Permissions of snapshot files: only the service's user may read and write them.
const OURS: u32 = 0o600;

/// Directory of a service's snapshots, locked against other services.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Lock file of the directory. The operating system releases the lock when the process ends.
    _lock: File,
}

impl Directory {
    /// Opens the directory of snapshots, which is created if it does not exist, and locks it against other services.
    ///
    /// # Errors
    /// [`Error::Start`] if the directory cannot be created, or another service has locked it.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let shown = path.display();
        let cannot = |error: io::Error| Error::Start {
            message: format!("snapshot.dir: cannot use {shown}: {error}; give a directory that can be written to"),
        };
        // What is held, by whom, and under which cache salts, is nobody else's.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(cannot)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(OURS);
        let mut lock = options.open(path.join(LOCK)).map_err(cannot)?;
        if let Err(error) = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(cannot(error.into()));
            }
            let mut owner = String::new();
            let _ = lock.read_to_string(&mut owner);
            let message = format!(
                "snapshot.dir: {shown} is in use by another kvatlas (process {}): give each a directory of its own",
                owner.trim()
            );
            return Err(Error::Start { message });
        }
        // For whoever is refused.
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(cannot)?;
        let _ = fs::remove_file(path.join(UNFINISHED));
        // A version before this one let everybody read them.
        for file in [FILE, DAMAGED, LOCK] {
            match fs::set_permissions(path.join(file), fs::Permissions::from_mode(OURS)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(file, %error, "others may read this file of snapshot.dir, and that cannot be changed");
                }
                _ => {}
            }
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.path.join(FILE)
    }

    /// Reads the snapshot file in the directory; `None` if there is none yet. Fails if the file has more than `most`
    /// bytes.
    pub(crate) fn read(&self, most: u64) -> io::Result<Option<Vec<u8>>> {
        match read_file(&self.file(), most) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Renames a snapshot file that cannot be used, so that it is kept for examination. Returns the new path.
    pub(crate) fn put_aside(&self) -> PathBuf {
        let aside = self.path.join(DAMAGED);
        let _ = fs::rename(self.file(), &aside);
        aside
    }

    /// Replaces the snapshot file by the output of `write`. If writing fails, the old file is kept.
    pub(crate) fn replace<T>(
        &self,
        write: impl FnOnce(BufWriter<File>) -> io::Result<(BufWriter<File>, T)>,
    ) -> io::Result<T> {
        let unfinished = self.path.join(UNFINISHED);
        let replaced = (|| {
            let file = OpenOptions::new().write(true).create(true).truncate(true).mode(OURS).open(&unfinished)?;
            let file = BufWriter::with_capacity(1 << 20, file);
            let (file, result) = write(file)?;
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            fs::rename(&unfinished, self.file())?;
            // The new name must be on disk, too.
            File::open(&self.path)?.sync_all()?;
            Ok(result)
        })();
        if replaced.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        replaced
    }
}
