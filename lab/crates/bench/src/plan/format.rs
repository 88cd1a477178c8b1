//! The format of a plan's file: a head of fixed size, the columns one after another, a checksum; all little endian.
//!
//! ```text
//! "KVAPLAN\0"  version u32  workers u32  block size u32  0 u32  ops u64  contents u64  removed u64  meta bytes u64
//! times  starts  parents  contents  names  removed  (u64 each)   workers  lengths  (u32)   kinds (u8)   meta (UTF-8)
//! XXH3-128 of all that u128
//! ```
//!
//! The format has no options, so equal plans are equal bytes.

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::Xxh3Default;

use super::columns::Columns;

pub(super) const MAGIC: [u8; 8] = *b"KVAPLAN\0";
pub(super) const VERSION: u32 = 1;
pub(super) const HEAD: usize = 56;
pub(super) const CHECKSUM: usize = 16;
/// Number of bytes converted at once.
pub(super) const CHUNK: usize = 1 << 16;

/// The XXH3-128 of a plan file's contents before its checksum.
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
