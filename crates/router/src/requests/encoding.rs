//! Decompression of request bodies, so that the router can parse them. Engines get the body as sent by the client.

use std::io::{Cursor, Read};
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use kvatlas_http::{BodyFault, Memory, Reservation};
use tokio::sync::Semaphore;

use crate::answers::refusal::Refusal;

/// Semaphore that limits the number of bodies that are decompressed concurrently.
static TURNS: Semaphore = Semaphore::const_new(4);

/// Maximum window size of zstd that is accepted, in bytes, as the exponent of a power of two. RFC 9659 permits clients
/// no larger window.
const WINDOW: u32 = 23;

/// Memory that a brotli decoder needs for windows and tables, in bytes.
const WITH_BROTLI: usize = 20 << 20;
/// Memory that a zstd decoder needs for windows and tables, in bytes.
const WITH_ZSTD: usize = 10 << 20;
/// Memory that a gzip or deflate decoder needs for windows and tables, in bytes.
const WITH_DEFLATE: usize = 128 << 10;

/// Number of bytes decompressed in one step, and minimum size of the buffer for the result.
const STEP: usize = 64 << 10;

/// Compression format that the router can decompress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// Compression of a body according to its request's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Body without compression.
    Plain,
    One(Coding),
    /// Body compressed in a format that the router does not know.
    Unknown,
    /// Body compressed in several formats, one applied after another.
    Several,
}

/// Decompressed body, whose memory stays reserved while the bytes are in use.
pub(crate) struct DecodedBody {
    pub(crate) body: Bytes,
}

/// Decompressed body together with its reservation of memory.
struct UnpackedBody {
    bytes: Vec<u8>,
    _memory: Reservation,
}

impl AsRef<[u8]> for UnpackedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Encoding {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::Plain;
        for value in headers.get_all(CONTENT_ENCODING) {
            let Ok(names) = value.to_str() else { return Self::Unknown };
            for name in names.split(',').map(str::trim) {
                let one = match name.to_ascii_lowercase().as_str() {
                    "" | "identity" => continue,
                    "gzip" | "x-gzip" => Self::One(Coding::Gzip),
                    "deflate" => Self::One(Coding::Deflate),
                    "br" => Self::One(Coding::Brotli),
                    "zstd" => Self::One(Coding::Zstd),
                    _ => Self::Unknown,
                };
                found = if found == Self::Plain { one } else { Self::Several };
            }
        }
        found
    }

    pub(crate) fn is_plain(self) -> bool {
        self == Self::Plain
    }
}

/// Reason why a request body could not be decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnpackFault {
    /// The body is not in the stated compression format, or is too long when decompressed.
    Unreadable,
    /// The memory limit for bodies leaves no memory for the decompressed body.
    NoRoom,
}

impl Coding {
    /// Decompresses a body to at most `most` bytes, within the memory for bodies.
    fn unpack(self, body: &[u8], most: usize, memory: &Arc<Memory>) -> Result<UnpackedBody, UnpackFault> {
        match self {
            Self::Gzip => all_of(flate2::read::MultiGzDecoder::new(body), WITH_DEFLATE, most, memory),
            // It has a frame (RFC 9110, 8.4.1.2), which some leave out.
            Self::Deflate => match all_of(flate2::read::ZlibDecoder::new(body), WITH_DEFLATE, most, memory) {
                Err(UnpackFault::Unreadable) => {
                    all_of(flate2::read::DeflateDecoder::new(body), WITH_DEFLATE, most, memory)
                }
                done => done,
            },
            // So begin those with windows that are longer than the format has them.
            Self::Brotli if body.first().is_some_and(|first| first & 0x7f == 0x11) => Err(UnpackFault::Unreadable),
            Self::Brotli => {
                let decoder = brotli_decompressor::Decompressor::new(Cursor::new(body), 4096);
                all_of(decoder, WITH_BROTLI, most, memory)
            }
            Self::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(body).or(Err(UnpackFault::Unreadable))?;
                decoder.window_log_max(WINDOW).or(Err(UnpackFault::Unreadable))?;
                all_of(decoder, WITH_ZSTD, most, memory)
            }
        }
    }
}

/// Decompresses a body on a separate thread, so that the server's threads are not delayed.
///
/// # Errors
/// [`Refusal`] if the body is malformed, is longer than `most` bytes when decompressed, or there is no memory for it.
pub(crate) async fn unpack(
    coding: Coding,
    body: &Bytes,
    most: usize,
    memory: &Arc<Memory>,
) -> Result<DecodedBody, Refusal> {
    let turn = TURNS.acquire().await.ok();
    let (body, memory) = (body.clone(), memory.clone());
    let unpacking = tokio::task::spawn_blocking(move || {
        let unpacked = coding.unpack(&body, most, &memory);
        drop(turn);
        unpacked
    });
    match unpacking.await {
        Ok(Ok(plain)) => Ok(DecodedBody { body: Bytes::from_owner(plain) }),
        Ok(Err(UnpackFault::NoRoom)) => Err(Refusal::of_body(&BodyFault::NoRoom, most)),
        Ok(Err(UnpackFault::Unreadable)) | Err(_) => Err(Refusal::unreadable()),
    }
}

/// Reads all data that a decoder returns. `own`: memory used by the decoder itself, in bytes; `most`: maximum size of
/// the result in bytes. Memory is reserved before it is allocated.
fn all_of(mut from: impl Read, own: usize, most: usize, memory: &Arc<Memory>) -> Result<UnpackedBody, UnpackFault> {
    let (mut plain, mut reserved) = (Vec::new(), memory.reserved());
    let mut step = vec![0; STEP];
    loop {
        if plain.is_empty() && !reserved.try_resize(own + STEP) {
            return Err(UnpackFault::NoRoom);
        }
        let read = from.read(&mut step).or(Err(UnpackFault::Unreadable))?;
        let length = plain.len() + read;
        if read == 0 || length > most {
            drop((from, step));
            if read > 0 {
                return Err(UnpackFault::Unreadable);
            }
            let has_room = reserved.try_resize(plain.capacity());
            return has_room.then_some(UnpackedBody { bytes: plain, _memory: reserved }).ok_or(UnpackFault::NoRoom);
        }
        if length > plain.capacity() {
            let wanted = (2 * plain.capacity()).clamp(STEP, most.max(STEP)).max(length);
            // For a moment there may be both.
            if !reserved.try_resize(own + STEP + plain.capacity() + wanted) {
                return Err(UnpackFault::NoRoom);
            }
            plain.try_reserve_exact(wanted - plain.len()).or(Err(UnpackFault::NoRoom))?;
        }
        plain.extend_from_slice(&step[..read]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use hyper::header::HeaderValue;

    use super::*;

    const TEXT: &[u8] = br#"{"model": "m"}"#;

    fn encoding(text: &str) -> Encoding {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_str(text).unwrap());
        Encoding::of(&headers)
    }

    fn unpacked(coding: Coding, packed: &[u8], most: usize) -> Option<Vec<u8>> {
        let memory = Memory::new(256 << 20);
        let unpacked = coding.unpack(packed, most, &memory).ok();
        assert_eq!(memory.used(), unpacked.as_ref().map_or(0, |unpacked| unpacked.bytes.capacity()));
        unpacked.map(|unpacked| unpacked.bytes)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_way_is_undone() {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(TEXT).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
        raw.write_all(TEXT).unwrap();
        // What `brotli` makes of the text, as it is shorter than anything that it could find in it.
        let brotli = [&[0x8b, 0x06, 0x80][..], TEXT, &[0x03]].concat();
        for (name, packed) in [
            ("gzip", gzip(TEXT)),
            ("X-GZip", gzip(TEXT)),
            ("gzip", [gzip(&TEXT[..3]), gzip(&TEXT[3..])].concat()),
            ("deflate", zlib.finish().unwrap()),
            ("deflate", raw.finish().unwrap()),
            ("br", brotli),
            ("zstd", zstd::encode_all(TEXT, 3).unwrap()),
            ("identity, gzip", gzip(TEXT)),
        ] {
            let Encoding::One(coding) = encoding(name) else { panic!("{name}") };
            assert_eq!(unpacked(coding, &packed, 100).as_deref(), Some(TEXT), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_undone() {
        assert_eq!((encoding("compress"), encoding("identity")), (Encoding::Unknown, Encoding::Plain));
        assert_eq!([encoding("gzip, zstd"), encoding("gzip, x")], [Encoding::Several; 2]);
        assert_eq!(unpacked(Coding::Gzip, b"not packed", 100), None);
        assert_eq!(unpacked(Coding::Gzip, &gzip(TEXT)[..15], 100), None);
        assert_eq!(unpacked(Coding::Gzip, &gzip(TEXT), TEXT.len() - 1), None);
        assert_eq!(unpacked(Coding::Gzip, &gzip(&vec![0; 8 << 20]), 1 << 20), None);
        // The byte at its beginning says that the window is one of 1 GiB.
        assert_eq!(unpacked(Coding::Brotli, &[0x11, 0x1e, 0x03], 100), None);
    }

    #[test]
    fn a_window_has_a_longest_length() {
        for (log, is_read) in [(20, true), (WINDOW, true), (WINDOW + 1, false), (27, false)] {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(log).unwrap();
            // One whose length is not known has a window as long as it was asked for.
            encoder.include_contentsize(false).unwrap();
            encoder.write_all(TEXT).unwrap();
            let packed = encoder.finish().unwrap();
            assert_eq!(unpacked(Coding::Zstd, &packed, 100).is_some(), is_read, "{log}");
        }
    }

    #[test]
    fn memory_is_reserved_before_it_is_taken() {
        let memory = Memory::new(4 << 20);
        let packed = gzip(&vec![b' '; 3 << 20]);
        assert_eq!(Coding::Gzip.unpack(&packed, 64 << 20, &memory).err(), Some(UnpackFault::NoRoom));
        let packed = gzip(&vec![b' '; 1 << 20]);
        let Ok(unpacked) = Coding::Gzip.unpack(&packed, 64 << 20, &memory) else { panic!("there is room") };
        assert_eq!((unpacked.bytes.len(), memory.used()), (1 << 20, unpacked.bytes.capacity()));
        drop(unpacked);
        assert_eq!(memory.used(), 0);
    }
}
