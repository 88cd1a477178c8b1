//! Directory of snapshots: one file, replaced as a whole, of one service.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::read_file;
use crate::error::Error;

const FILE: &str = "kvatlas.snapshot";
const UNFINISHED: &str = "kvatlas.snapshot.tmp";
const DAMAGED: &str = "kvatlas.snapshot.damaged";
const LOCK: &str = "lock";
/// Mode of the files: only the service's user may read and write them.
const OURS: u32 = 0o600;

/// A directory that is locked for this service.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Locked file. The system ends the lock with the process.
    _lock: File,
}

impl Directory {
    /// Creates the directory if there is none, and locks it.
    ///
    /// # Errors
    /// [`Error::Start`] if it cannot be created, or another service has locked it.
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

    /// Reads the snapshot, of up to `most` bytes; none if there is none yet.
    pub(crate) fn read(&self, most: u64) -> io::Result<Option<Vec<u8>>> {
        match read_file(&self.file(), most) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Renames a file that cannot be used, so that it can be examined. Returns its new path.
    pub(crate) fn put_aside(&self) -> PathBuf {
        let aside = self.path.join(DAMAGED);
        let _ = fs::rename(self.file(), &aside);
        aside
    }

    /// Replaces the snapshot with the output of `write`. If that fails, the old one stays.
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
