//! Encoding of a digest as bytes.
//!
//! ```text
//! "KVAD"  version u8  kind u8 (0: changes, 1: whole)
//! site                          u16 bytes of UTF-8, then these
//! life, seq, word               u64 each
//! grain                         u32
//! removed, added                u32 each: numbers of marks
//! removed marks, added marks    u64 each, in increasing order
//! XXH3-64 of all bytes before   u64
//! ```
//!
//! All numbers are little endian.

use xxhash_rust::xxh3::xxh3_64;

use crate::Error;

const MAGIC: [u8; 4] = *b"KVAD";
const VERSION: u8 = 1;
/// Maximum length of a site's name, in bytes.
pub(crate) const LONGEST_NAME: usize = 256;

/// Digest of a site's cached blocks: its marks (prefix hashes at regular distances), or their changes since the
/// previous digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// Name of the site (a fleet with its own index) whose blocks the digest summarizes.
    pub site: String,
    /// True if the digest contains all marks (prefix hashes) of the site; false if it contains the changes since digest
    /// `seq` − 1.
    pub whole: bool,
    /// Identifier of the publisher's life, the time from one restart to the next.
    pub life: u64,
    /// Sequence number of the digest within the publisher's life. A whole digest has the number of the last changes
    /// that it includes.
    pub seq: u64,
    /// Checksum of all marks (prefix hashes) that the site has after this digest: the sum of a mixed value of each
    /// mark, modulo 2^64.
    pub word: u64,
    /// Number of blocks between marks (prefix hashes).
    pub grain: u32,
    /// Removed marks (prefix hashes), in increasing order; empty in a whole digest.
    pub removed: Vec<u64>,
    /// Added marks (prefix hashes), in increasing order.
    pub added: Vec<u64>,
}

impl Digest {
    /// Encodes the digest as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let name = self.site.as_bytes();
        let mut out = Vec::with_capacity(64 + name.len() + 8 * (self.removed.len() + self.added.len()));
        out.extend(MAGIC);
        out.extend([VERSION, u8::from(self.whole)]);
        out.extend((name.len() as u16).to_le_bytes());
        out.extend(name);
        for number in [self.life, self.seq, self.word] {
            out.extend(number.to_le_bytes());
        }
        for number in [self.grain, self.removed.len() as u32, self.added.len() as u32] {
            out.extend(number.to_le_bytes());
        }
        for mark in self.removed.iter().chain(&self.added) {
            out.extend(mark.to_le_bytes());
        }
        let sum = xxh3_64(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// Decodes a digest from bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], with a description of what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
            return Err(Error::invalid(format!("{} bytes are too few", bytes.len())));
        };
        let mut rest = Rest(body);
        if rest.array::<4>()? != MAGIC {
            return Err(Error::invalid("it does not begin as one"));
        }
        let [version, kind] = rest.array()?;
        if version != VERSION {
            return Err(Error::invalid(format!("it is of version {version}, and this reads version {VERSION}")));
        }
        if u64::from_le_bytes(*sum) != xxh3_64(body) {
            return Err(Error::invalid("it was cut off or altered: its checksum does not match"));
        }
        if kind > 1 {
            return Err(Error::invalid(format!("its kind is {kind}, not 0 or 1")));
        }
        let name = rest.u16()?.into();
        if name == 0 || name > LONGEST_NAME {
            return Err(Error::invalid(format!("a site's name has 1 to {LONGEST_NAME} bytes, got {name}")));
        }
        let site = std::str::from_utf8(rest.take(name)?).map_err(|_| Error::invalid("the site's name is not UTF-8"))?;
        let (life, seq, word) = (rest.u64()?, rest.u64()?, rest.u64()?);
        let (grain, removed, added) = (rest.u32()?, rest.u32()? as usize, rest.u32()? as usize);
        if grain == 0 {
            return Err(Error::invalid("its grain is 0"));
        }
        let whole = kind == 1;
        if whole && removed > 0 {
            return Err(Error::invalid("it is whole, and there are marks that went"));
        }
        let (removed, added) = (rest.marks(removed)?, rest.marks(added)?);
        if !rest.0.is_empty() {
            return Err(Error::invalid("there is more in it than it says"));
        }
        Ok(Self { site: site.to_owned(), whole, life, seq, word, grain, removed, added })
    }
}

/// Mixed value of one mark (prefix hash); a digest's checksum is the sum of these values.
pub(crate) fn word(mark: u64) -> u64 {
    let product = u128::from(mark ^ 0x243f_6a88_85a3_08d3) * u128::from(mark.rotate_left(29) ^ 0x9e37_79b9_7f4a_7c15);
    (product >> 64) as u64 ^ product as u64
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or_else(|| Error::invalid("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(|| Error::invalid("it ends too early"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    fn marks(&mut self, marks: usize) -> Result<Vec<u64>, Error> {
        let bytes = marks.checked_mul(8).ok_or_else(|| Error::invalid("it ends too early"))?;
        let marks: Vec<u64> = self.take(bytes)?.as_chunks().0.iter().map(|mark| u64::from_le_bytes(*mark)).collect();
        match marks.is_sorted_by(|a, b| a < b) {
            true => Ok(marks),
            false => Err(Error::invalid("its marks are not in increasing order")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest() -> Digest {
        let (removed, added) = (vec![1, 5], vec![2, 3, u64::MAX]);
        Digest { site: "süd".into(), whole: false, life: 7, seq: 8, word: 9, grain: 32, removed, added }
    }

    #[test]
    fn what_is_written_is_read() {
        let whole = Digest { whole: true, removed: Vec::new(), ..digest() };
        for digest in [digest(), whole] {
            assert_eq!(Digest::decode(&digest.encode()), Ok(digest));
        }
    }

    #[test]
    fn altered_bytes_are_refused() {
        let bytes = digest().encode();
        for at in 0..bytes.len() {
            assert!(Digest::decode(&bytes[..at]).is_err(), "cut off at {at}");
            let mut altered = bytes.clone();
            altered[at] ^= 4;
            assert!(Digest::decode(&altered).is_err(), "altered at {at}");
        }
        for wrong in [
            Digest { grain: 0, ..digest() },
            Digest { site: String::new(), ..digest() },
            Digest { whole: true, ..digest() },
            Digest { added: vec![3, 3], ..digest() },
        ] {
            assert!(matches!(Digest::decode(&wrong.encode()), Err(Error::Invalid { .. })), "{wrong:?}");
        }
    }
}
