//! Saving a plan to a file, and loading it.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3Default;

use super::checked::Plan;
use super::columns::Columns;
use super::format::{CHECKSUM, CHUNK, HEAD, MAGIC, Sink, Source, VERSION, write};
use crate::error::Error;

impl Plan {
    /// Writes the plan to a file, which appears under its name only once it is complete.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let io = |source| Error::Io { path: path.display().to_string(), source };
        let mut aside = path.as_os_str().to_owned();
        aside.push(".part");
        let written = (|| {
            let mut sink =
                Sink { out: BufWriter::with_capacity(CHUNK, File::create(&aside)?), sum: Xxh3Default::new() };
            write(&self.columns, &mut sink)?;
            let sum = sink.sum.digest128();
            sink.out.write_all(&sum.to_le_bytes())?;
            sink.out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()?;
            std::fs::rename(&aside, path)
        })();
        written.map_err(|error| {
            // A left-over temporary file is useless; that it may not even exist is not a second error.
            let _ = std::fs::remove_file(&aside);
            io(error)
        })
    }

    /// Reads a plan from a file, and checks it as [`Plan::new`] does.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::File`] if it is not a plan, of another version, truncated or
    /// altered.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.display().to_string(), source };
        let wrong = |what: &str| Error::File { path: path.display().to_string(), what: what.to_owned() };
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut source = Source { input: BufReader::with_capacity(CHUNK, file), sum: Xxh3Default::new() };
        if size < (HEAD + CHECKSUM) as u64 {
            return Err(wrong("is not a plan of kvatlas: too short"));
        }
        let mut head = [0; HEAD];
        source.fill(&mut head).map_err(io)?;
        let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if head[..8] != MAGIC {
            return Err(wrong("is not a plan of kvatlas"));
        }
        if u32_at(8) != VERSION {
            return Err(wrong(&format!("is a plan of version {}; this reads version {VERSION}", u32_at(8))));
        }
        let (ops, contents, removed, meta) = (u64_at(24), u64_at(32), u64_at(40), u64_at(48));
        // Lengths in a damaged head must not be allocated before they are compared with the file's size.
        let wanted = [(ops, 33), (contents, 16), (removed, 8), (meta, 1)]
            .iter()
            .try_fold((HEAD + CHECKSUM) as u64, |sum, &(items, bytes)| {
                items.checked_mul(bytes).and_then(|bytes| bytes.checked_add(sum))
            });
        if wanted != Some(size) {
            return Err(wrong(&format!(
                "is not a complete plan: {size} bytes, but its header announces {}",
                wanted.map_or_else(|| "more than there can be".to_owned(), |bytes| bytes.to_string())
            )));
        }
        let (ops, contents, removed) = (ops as usize, contents as usize, removed as usize);
        let columns = (|| {
            Ok::<_, io::Error>(Columns {
                times: source.numbers(ops, u64::from_le_bytes)?,
                starts: source.numbers(ops, u64::from_le_bytes)?,
                parents: source.numbers(ops, u64::from_le_bytes)?,
                contents: source.numbers(contents, u64::from_le_bytes)?,
                names: source.numbers(contents, u64::from_le_bytes)?,
                removed: source.numbers(removed, u64::from_le_bytes)?,
                workers: source.numbers(ops, u32::from_le_bytes)?,
                lengths: source.numbers(ops, u32::from_le_bytes)?,
                kinds: source.numbers(ops, u8::from_le_bytes)?,
                worker_count: u32_at(12),
                block_size: u32_at(16),
                meta: String::new(),
            })
        })();
        let mut columns = columns.map_err(io)?;
        let meta = source.numbers(meta as usize, u8::from_le_bytes).map_err(io)?;
        let computed = source.sum.digest128();
        let mut sum = [0; CHECKSUM];
        source.input.read_exact(&mut sum).map_err(io)?;
        if u128::from_le_bytes(sum) != computed {
            return Err(wrong("has been altered since it was saved: its checksum does not match"));
        }
        columns.meta = String::from_utf8(meta).map_err(|_| wrong("has a meta that is not UTF-8"))?;
        Self::new(columns).map_err(|error| wrong(&error.to_string()))
    }
}
