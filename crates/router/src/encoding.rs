//! Bodies that clients have compressed, unpacked to be read. What is sent on stays as it came.

use std::io::{Cursor, Read};

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Permits to unpack bodies, for as many as are unpacked at once: each takes as much memory as the longest body may
/// have.
static TURNS: Semaphore = Semaphore::const_new(4);

/// Number of times that a body may be compressed, one over the other.
const MOST: usize = 3;

/// A way in which a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// The ways in which a body is compressed, the last one first; empty if it is as it is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Codings(Vec<Coding>);

/// A body as it was before it was compressed. Others wait for their turn as long as this is held.
pub(crate) struct DecodedBody {
    pub(crate) body: Bytes,
    _turn: Option<SemaphorePermit<'static>>,
}

impl Codings {
    /// Returns the codings that the headers name. None if one of them is not known, or there are too many.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut codings = Vec::new();
        for value in headers.get_all(CONTENT_ENCODING) {
            for name in value.to_str().ok()?.split(',').map(str::trim) {
                codings.push(match name.to_ascii_lowercase().as_str() {
                    "" | "identity" => continue,
                    "gzip" | "x-gzip" => Coding::Gzip,
                    "deflate" => Coding::Deflate,
                    "br" => Coding::Brotli,
                    "zstd" => Coding::Zstd,
                    _ => return None,
                });
            }
        }
        codings.reverse();
        (codings.len() <= MOST).then_some(Self(codings))
    }

    pub(crate) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// The body without them, if it can be had, and has `most` bytes at most.
    fn unpack(&self, body: &[u8], most: usize) -> Option<Vec<u8>> {
        let mut plain: Option<Vec<u8>> = None;
        for coding in &self.0 {
            let packed = plain.as_deref().unwrap_or(body);
            plain = Some(match coding {
                Coding::Gzip => all_of(flate2::read::MultiGzDecoder::new(packed), most),
                // It has a frame (RFC 9110, 8.4.1.2), which some leave out.
                Coding::Deflate => all_of(flate2::read::ZlibDecoder::new(packed), most)
                    .or_else(|| all_of(flate2::read::DeflateDecoder::new(packed), most)),
                Coding::Brotli => all_of(brotli_decompressor::Decompressor::new(Cursor::new(packed), 4096), most),
                Coding::Zstd => all_of(zstd::Decoder::with_buffer(packed).ok()?, most),
            }?);
        }
        plain
    }
}

/// A body to be read, on a thread beside those that serve. None if it cannot be unpacked: its engine says what is wrong.
pub(crate) async fn unpack(codings: Codings, body: &Bytes, most: usize) -> Option<DecodedBody> {
    let turn = TURNS.acquire().await.ok();
    let body = body.clone();
    let plain = tokio::task::spawn_blocking(move || codings.unpack(&body, most)).await.ok().flatten()?;
    Some(DecodedBody { body: plain.into(), _turn: turn })
}

fn all_of(from: impl Read, most: usize) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    from.take(most as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= most).then_some(plain)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use hyper::header::HeaderValue;

    use super::*;

    const TEXT: &[u8] = br#"{"model": "m"}"#;

    fn codings(text: &str) -> Option<Codings> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_str(text).unwrap());
        Codings::of(&headers)
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
            ("zstd, gzip", gzip(&zstd::encode_all(TEXT, 3).unwrap())),
            ("identity, gzip", gzip(TEXT)),
        ] {
            assert_eq!(codings(name).unwrap().unpack(&packed, 100).as_deref(), Some(TEXT), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_undone() {
        assert_eq!(codings("compress"), None);
        assert_eq!(codings("gzip, gzip, gzip, gzip"), None);
        assert!(codings("identity").unwrap().are_none());
        let gzip_alone = codings("gzip").unwrap();
        assert_eq!(gzip_alone.unpack(b"not packed", 100), None);
        assert_eq!(gzip_alone.unpack(&gzip(TEXT)[..15], 100), None);
        assert_eq!(gzip_alone.unpack(&gzip(TEXT), TEXT.len() - 1), None);
        let bomb = gzip(&gzip(&vec![0; 8 << 20]));
        assert_eq!(codings("gzip, gzip").unwrap().unpack(&bomb, 1 << 20), None);
    }
}
