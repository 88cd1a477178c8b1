//! Numbers and sections as bytes.
//!
//! Numbers of fixed width are little endian; varints have seven bits in a byte, the lowest first, and the highest bit of
//! every byte but the last is set.

use kvatlas_index::BlockHash;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of a section besides its payload: kind, length, checksum.
pub(super) const FRAME: usize = 1 + 8 + 8;

/// What is wrong with some bytes.
pub(super) type Wrong = String;

pub(super) fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn hashes(out: &mut Vec<u8>, names: &[BlockHash]) {
    names.iter().for_each(|name| out.extend_from_slice(&name.0.to_le_bytes()));
}

pub(super) fn numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// The length in front of a text.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// What comes before and after a section's payload.
pub(super) fn frame(kind: u8, payload: &[u8]) -> ([u8; 9], [u8; 8]) {
    let mut head = [kind; 9];
    head[1..].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    (head, sum(&head, payload).to_le_bytes())
}

fn sum(head: &[u8; 9], payload: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&xxh3_64(head).to_le_bytes());
    sum.update(&xxh3_64(payload).to_le_bytes());
    sum.digest()
}

/// A section's kind and payload.
pub(super) fn section<'a>(from: &mut &'a [u8]) -> Result<(u8, &'a [u8]), Wrong> {
    let cut = || "it is cut off".to_owned();
    let (head, rest) = from.split_first_chunk::<9>().ok_or_else(cut)?;
    let mut length = [0; 8];
    length.copy_from_slice(&head[1..]);
    let length = usize::try_from(u64::from_le_bytes(length)).map_err(|_| cut())?;
    let (payload, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
    let (stored, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
    let (stored, computed) = (u64::from_le_bytes(*stored), sum(head, payload));
    if stored != computed {
        return Err(format!("its checksum is {stored:016x}, and its bytes have {computed:016x}"));
    }
    *from = rest;
    Ok((head[0], payload))
}

/// What is left to read.
pub(super) struct Source<'a>(pub(super) &'a [u8]);

impl<'a> Source<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or("it ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Wrong> {
        self.take(1).map(|byte| byte[0])
    }

    pub(super) fn u64(&mut self) -> Result<u64, Wrong> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    pub(super) fn varint(&mut self) -> Result<u64, Wrong> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number in it is too large".to_owned())
    }

    pub(super) fn small(&mut self) -> Result<u32, Wrong> {
        self.varint()?.try_into().map_err(|_| "a number in it is too large".to_owned())
    }

    /// How many of something follow that take so many bytes each, at least: no more than there is room for.
    pub(super) fn count(&mut self, bytes: usize) -> Result<usize, Wrong> {
        let count = usize::try_from(self.varint()?).ok();
        let fits = count.filter(|count| count.checked_mul(bytes).is_some_and(|all| all <= self.0.len()));
        fits.ok_or_else(|| "it ends too early".to_owned())
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Wrong> {
        let length = self.count(1)?;
        std::str::from_utf8(self.take(length)?).map_err(|_| "a text in it is not UTF-8".to_owned())
    }

    /// So many numbers, to the end of a list that has room for them.
    pub(super) fn numbers<T>(&mut self, count: usize, from: impl Fn(u64) -> T, to: &mut Vec<T>) -> Result<(), Wrong> {
        let bytes = self.take(count.checked_mul(8).ok_or("a number in it is too large")?)?;
        let number = |bytes: &[u8]| {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            from(u64::from_le_bytes(number))
        };
        to.extend(bytes.chunks_exact(8).map(number));
        Ok(())
    }

    pub(super) fn done(&self) -> Result<(), Wrong> {
        if self.0.is_empty() { Ok(()) } else { Err("there is more in it than it says".to_owned()) }
    }
}
