//! Bounded reading of a snapshot's bytes, from a file, another service or an object store: they take no more memory than
//! `snapshot.max_bytes` allows, and a small input is not unpacked into a large one.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// First bytes of zstd's format.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes that any compressed snapshot may unpack to, and bytes for each compressed byte besides. Most of a snapshot is hashes,
/// which cannot be compressed: a fleet whose engines hold the same blocks comes to a tenth of this.
const FREE: u64 = 4 << 20;
const RATIO: u64 = 64;
/// Most bytes allocated for an announced size.
const ANNOUNCED: u64 = 1 << 20;

/// Message for a snapshot of more than `most` bytes.
pub(crate) fn too_large(most: u64) -> String {
    format!("it has more than {most} bytes: raise snapshot.max_bytes if that is right")
}

/// Reads a file of up to `most` bytes.
pub(crate) fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large(most)));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    bounded(file, &mut bytes, most)?;
    Ok(bytes)
}

/// Reads up to `most` bytes to their end; their sender has announced `announced`.
///
/// # Errors
/// A message if there are more bytes, or they cannot be read.
pub(crate) async fn read_all(from: impl AsyncRead + Unpin, announced: u64, most: u64) -> Result<Vec<u8>, String> {
    if announced > most {
        return Err(too_large(most));
    }
    let mut bytes = Vec::with_capacity(announced.min(ANNOUNCED) as usize);
    from.take(most + 1).read_to_end(&mut bytes).await.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most { Err(too_large(most)) } else { Ok(bytes) }
}

/// A snapshot of up to `most` bytes, unpacked if it is compressed.
///
/// # Errors
/// A message if the snapshot is too large, or cannot be unpacked.
pub(crate) fn unpack(bytes: &[u8], most: u64) -> Result<Cow<'_, [u8]>, String> {
    if bytes.len() as u64 > most {
        return Err(too_large(most));
    }
    if !bytes.starts_with(&ZSTD) {
        return Ok(Cow::Borrowed(bytes));
    }
    let plausible = FREE + RATIO * bytes.len() as u64;
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 8);
    let unpacking = zstd::Decoder::new(bytes).and_then(|from| bounded(from, &mut out, plausible.min(most)));
    unpacking.map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge if plausible < most => {
            format!("{} bytes of it become more than {plausible}, which no snapshot does", bytes.len())
        }
        io::ErrorKind::FileTooLarge => too_large(most),
        _ => format!("it cannot be decompressed: {error}"),
    })?;
    Ok(Cow::Owned(out))
}

/// Reads to the end, up to `most` bytes.
fn bounded(from: impl Read, out: &mut Vec<u8>, most: u64) -> io::Result<()> {
    let read = from.take(most + 1).read_to_end(out)?;
    if read as u64 > most { Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large(most))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 1).expect("packed")
    }

    #[test]
    fn little_does_not_become_much() {
        let plain = vec![7; 1000];
        assert_eq!(unpack(&packed(&plain), 1 << 20).as_deref(), Ok(&plain[..]));
        let bomb = packed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 16 << 10, "{}", bomb.len());
        let why = unpack(&bomb, 1 << 30).expect_err("too much");
        assert!(why.contains("which no snapshot does"), "{why}");
        let why = unpack(&bomb, 1 << 20).expect_err("too much");
        assert!(why.contains("snapshot.max_bytes"), "{why}");
        assert!(unpack(&plain, 999).is_err() && unpack(&plain, 1000).is_ok());
        let two = [packed(&plain), packed(&vec![0; 8 << 20])].concat();
        assert!(unpack(&two, 1 << 20).is_err(), "in several frames");
    }

    #[tokio::test]
    async fn what_is_only_announced_takes_nothing() {
        assert_eq!(read_all(&b"abc"[..], 3, 3).await.as_deref(), Ok(&b"abc"[..]));
        assert_eq!(read_all(&b"abc"[..], u64::MAX >> 1, u64::MAX >> 1).await.map(|bytes| bytes.len()), Ok(3));
        assert!(read_all(&b"abc"[..], 4, 3).await.is_err() && read_all(&b"abcd"[..], 3, 3).await.is_err());
    }
}
