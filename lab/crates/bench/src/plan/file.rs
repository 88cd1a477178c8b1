//! Saving and loading of a plan's file: a header of fixed size, the columns one after another, and a checksum; all
//! little endian.
//!
//! ```text
//! "KVAPLAN\0"  version u32  workers u32  block size u32  0 u32  ops u64  contents u64  removed u64  meta bytes u64
//! times  starts  parents  contents  names  removed  (u64 each)   workers  lengths  (u32)   kinds (u8)   meta (UTF-8)
//! XXH3-128 of all that u128
//! ```
//!
//! The format has no options, so equal plans have equal bytes.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3Default;

use super::Columns;
use super::checked::Plan;
use crate::error::Error;

pub(super) const MAGIC: [u8; 8] = *b"KVAPLAN\0";
pub(super) const VERSION: u32 = 1;
pub(super) const HEAD: usize = 56;
pub(super) const CHECKSUM: usize = 16;
/// Number of bytes of a plan's columns that are converted at once when a plan file is written or read.
pub(super) const CHUNK: usize = 1 << 16;

/// Checksum of a plan: the XXH3-128 of its file's contents before the checksum.
pub(super) fn checksum(columns: &Columns) -> u128 {
    let mut sink = Sink { out: io::sink(), sum: Xxh3Default::new() };
    // A sink cannot fail.
    let _ = write(columns, &mut sink);
    sink.sum.digest128()
}

pub(super) fn write(c: &Columns, sink: &mut Sink<impl Write>) -> io::Result<()> {
    sink.put(&MAGIC)?;
    for number in [VERSION, c.worker_count, c.block_size, 0] {
        sink.put(&number.to_le_bytes())?;
    }
    for length in [c.times.len(), c.contents.len(), c.removed.len(), c.meta.len()] {
        sink.put(&(length as u64).to_le_bytes())?;
    }
    for column in [&c.times, &c.starts, &c.parents, &c.contents, &c.names, &c.removed] {
        sink.numbers(column, |number| number.to_le_bytes())?;
    }
    for column in [&c.workers, &c.lengths] {
        sink.numbers(column, |number| number.to_le_bytes())?;
    }
    sink.put(&c.kinds)?;
    sink.put(c.meta.as_bytes())
}

pub(super) struct Sink<W> {
    pub(super) out: W,
    pub(super) sum: Xxh3Default,
}

impl<W: Write> Sink<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.out.write_all(bytes)
    }

    pub(super) fn numbers<T: Copy, const N: usize>(
        &mut self,
        numbers: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(CHUNK);
        for chunk in numbers.chunks(CHUNK / N) {
            buffer.clear();
            chunk.iter().for_each(|&number| buffer.extend_from_slice(&bytes(number)));
            self.put(&buffer)?;
        }
        Ok(())
    }
}

pub(super) struct Source<R> {
    pub(super) input: R,
    pub(super) sum: Xxh3Default,
}

impl<R: Read> Source<R> {
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.input.read_exact(bytes)?;
        self.sum.update(bytes);
        Ok(())
    }

    pub(super) fn numbers<T, const N: usize>(
        &mut self,
        count: usize,
        number: impl Fn([u8; N]) -> T,
    ) -> io::Result<Vec<T>> {
        let mut numbers = Vec::with_capacity(count);
        let mut buffer = vec![0; CHUNK / N * N];
        while numbers.len() < count {
            let bytes = &mut buffer[..(CHUNK / N).min(count - numbers.len()) * N];
            self.fill(bytes)?;
            let (items, _) = bytes.as_chunks::<N>();
            numbers.extend(items.iter().map(|&item| number(item)));
        }
        Ok(numbers)
    }
}

impl Plan {
    /// Writes the plan to a file, which appears under its name only when complete.
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

    /// Reads a plan from a file, and checks it like [`Plan::new`].
    ///
    /// # Errors [`Error::Io`] if the file cannot be read, [`Error::File`] if it is not a plan, has another version, or
    /// is truncated or altered.
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
