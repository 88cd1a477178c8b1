//! Interface between the server and its application: the handler of requests, and the shared settings, keys, memory and
//! limits. Also the decoding of texts in which keys are searched for, as any program behind the server may decode them.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::available_parallelism;
use std::time::Instant;

use bytes::Bytes;
use hyper::{Request, Response};

use crate::body::RequestBody;
use crate::ledger::{Counts, STRANGERS};
use crate::metrics::Exposition;
use crate::places::Places;
use crate::{Config, Denial, Error, Gate, Memory};

/// Listener of the server through which a request arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// Public listener, for clients.
    Main,
    /// Listener for administrators, with a few routes that need no key.
    Admin,
}

/// State shared by the server and its handler: settings, keys, and limits for memory and connections.
pub struct Front {
    /// Settings of the server.
    pub config: Config,
    /// Keys and certificates in force, with the checks of requests' access.
    pub gate: Arc<Gate>,
    /// Memory limit for the bodies of all requests.
    pub memory: Arc<Memory>,
    /// Latest text of `GET /metrics`, shared by simultaneous requests.
    pub exposition: Exposition,
    pub(crate) counts: Arc<Counts>,
    pub(crate) places: Arc<Places>,
}

/// Circumstances under which a request arrived: thread, listener, client's address, and deadline of the body.
pub struct Call {
    /// Number of the thread that serves the request, with [`Threads::Own`](crate::Threads::Own).
    pub thread: usize,
    /// Listener through which the request arrived.
    pub kind: ListenerKind,
    /// IP address of the client; None if the system does not know it.
    pub from: Option<IpAddr>,
    /// Deadline for the end of the request's body.
    pub until: Instant,
}

/// Application that answers the server's requests.
pub trait Handler: Send + Sync + 'static {
    /// Type of the bodies of the application's answers.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// True if clients may use HTTP/2.
    const HTTP2: bool;

    /// True if an HTTP/1.1 client that closes its sending side still gets its answer; false if this client's request is
    /// cancelled.
    const HALF_CLOSE: bool;

    /// Returns the state that the handler shares with the server.
    fn front(&self) -> &Front;

    /// Makes the answer to a client's request.
    fn answer(
        handler: Arc<Self>,
        call: Call,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// Converts a refusal by the server into an answer in the application's format.
    fn refuse(denied: Denial) -> Response<Self::Body>;
}

impl Front {
    /// Makes the shared state from settings, with keys and certificates read from their files.
    ///
    /// # Errors
    /// A file that cannot be read or is not valid is an error.
    pub fn new(config: Config, http2: bool) -> Result<Self, Error> {
        let alpn: &[&str] = if http2 { &["h2", "http/1.1"] } else { &["http/1.1"] };
        let gate = Arc::new(Gate::new(&config, alpn)?);
        let (memory, places) = (Memory::new(config.body_memory()), Places::new(config.max_connections, STRANGERS));
        Ok(Self { config, gate, memory, exposition: Exposition::default(), counts: Arc::default(), places })
    }

    /// Number of threads that serve requests.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self.config.threads {
            0 => available_parallelism().map_or(1, Into::into),
            threads => threads,
        }
    }

    /// Number of connections that are open now.
    #[must_use]
    pub fn connections(&self) -> u64 {
        let ended = self.counts.ended.load(Relaxed);
        self.counts.begun.load(Relaxed).saturating_sub(ended)
    }

    /// Number of connections without a key that were closed because others needed their place or memory.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.places.evicted.load(Relaxed)
    }

    /// Number of connections without a key that were closed, by reason: too many streams, or an answer that was not
    /// read.
    #[must_use]
    pub fn closed_strangers(&self) -> [(&'static str, u64); 2] {
        let Counts { stranger_streams, unread_answers, .. } = &*self.counts;
        [("too_many_streams", stranger_streams.load(Relaxed)), ("unread_answer", unread_answers.load(Relaxed))]
    }

    /// Number of bytes counted in the memory limit for connections without a key at the main listener.
    #[must_use]
    pub fn stranger_bytes(&self) -> u64 {
        self.places.bytes() as u64
    }

    /// Number of HTTP/2 streams reset because their clients did not read the answer.
    #[must_use]
    pub fn stalled_streams(&self) -> u64 {
        self.counts.stalled_streams.load(Relaxed)
    }
}

/// Decodes a text repeatedly until no encoding is left: `%41`, `%2541`, `%u0041`, and overlong UTF-8 of ASCII
/// characters.
#[must_use]
pub fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| *byte == b'%' || *byte >= 0xc0) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        out.push(*byte);
        // No encoding begins within another, so each is decoded at its last byte.
        while let Some((length, decoded)) = encoded(&out) {
            out.truncate(out.len() - length);
            out.push(decoded);
        }
    }
    Cow::Owned(out)
}

/// Decodes the encoded byte at the end of a text: returns the length of its encoding, and its value; None if the text
/// does not end with an encoded byte.
fn encoded(text: &[u8]) -> Option<(usize, u8)> {
    let hex = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
    match *text {
        [.., b'%', a, b] => Some((3, hex(a)? << 4 | hex(b)?)),
        [.., b'%', b'u' | b'U', b'0', b'0', a, b] => {
            Some((6, hex(a)? << 4 | hex(b)?)).filter(|(_, decoded)| decoded.is_ascii())
        }
        [.., first @ (0xc0 | 0xc1), last @ 0x80..=0xbf] => Some((2, (first & 1) << 6 | (last & 0x3f))),
        [.., 0xe0, first @ (0x80 | 0x81), last @ 0x80..=0xbf] => Some((3, (first & 1) << 6 | (last & 0x3f))),
        [.., 0xf0, 0x80, first @ (0x80 | 0x81), last @ 0x80..=0xbf] => Some((4, (first & 1) << 6 | (last & 0x3f))),
        _ => None,
    }
}

/// Decodes a base64 text, in either alphabet, up to the first character outside the alphabet; incomplete last bytes are
/// dropped.
pub(crate) fn from_base64(text: &[u8]) -> Vec<u8> {
    let (mut out, mut word, mut bits) = (Vec::with_capacity(text.len() * 3 / 4), 0_u32, 0);
    for sign in text.iter().map_while(|byte| base64_sign(*byte)) {
        (word, bits) = (word << 6 | u32::from(sign), bits + 6);
        if bits >= 8 {
            bits -= 8;
            out.push((word >> bits) as u8);
        }
    }
    out
}

/// Returns the value of a base64 character, in either alphabet; None for any other character.
pub(crate) fn base64_sign(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_decoded_until_nothing_changes() {
        for (text, wanted) in [
            (&b"/v1/x"[..], &b"/v1/x"[..]),
            (b"%2e%2E", b".."),
            (b"%252e", b"."),
            (b"%25%32%35%32%65", b"."),
            (b"%2%35%32e", b"."),
            (b"%%32e", b"."),
            (b"%u002e%U002F", b"./"),
            (b"%c0%ae\xc0\xaf", b"./"),
            (b"%e0%80%ae%f0%80%80%af", b"./"),
            (b"%c0%a52e", b"."),
            (b"%c3%a9%zz%", b"\xc3\xa9%zz%"),
            (b"%u00e9", b"%u00e9"),
        ] {
            assert_eq!(&*plain(text), wanted, "{}", text.escape_ascii());
        }
        let deep = [b"%".as_slice(), &b"25".repeat(100_000), b"2e"].concat();
        assert_eq!(&*plain(&deep), b".");
    }

    #[test]
    fn base64_of_both_alphabets() {
        assert_eq!(from_base64(b"YWRtMW4="), b"adm1n");
        assert_eq!(from_base64(b"-_8"), from_base64(b"+/8="));
        assert_eq!(from_base64(b""), b"");
    }
}
