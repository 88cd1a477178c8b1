//! Parsers for the beginning of a client's data: heads of HTTP/1.1 requests, the HTTP version, and HTTP/2 frames.
//!
//! The head of an HTTP/1.1 request is examined while it arrives, for its length and for a double declaration of the
//! body's length. If a request has both Transfer-Encoding and Content-Length, hyper uses the chunks and drops the
//! length, as allowed (RFC 9112, 6.3). A request with both is an attack, or comes through a broken proxy, and is
//! refused.
//!
//! On a connection without TLS, HTTP/2 is recognized by its fixed preface (RFC 9113, 3.4).
//!
//! HTTP/2 frames in transit (RFC 9113, 4.1) are followed without buffering: frame heads are parsed, payloads are
//! skipped.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use hyper::{Request, Response, StatusCode, Version};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::Denial;

/// Name of the header that states the length of a body, in lower case with its colon.
const LENGTH: &[u8] = b"content-length:";
/// Name of the header that states the coding of a body, in lower case with its colon.
const CODING: &[u8] = b"transfer-encoding:";

/// Parser of an HTTP/1.1 request's head that arrives in arbitrary pieces.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Head {
    bytes: usize,
    /// Number of bytes of the head's current line so far.
    line: usize,
    /// True while the current line may still begin with `Content-Length:`.
    length: bool,
    coding: bool,
    has_length: bool,
    has_coding: bool,
    is_whole: bool,
}

/// Summary of a complete head of a request that was observed from its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadSummary {
    /// Length of the request's head in bytes.
    pub(crate) bytes: usize,
    /// True if the head has the headers Content-Length and Transfer-Encoding, which contradict each other.
    pub(crate) is_ambiguous: bool,
}

impl Head {
    /// Reads the next piece of the head. Returns the head's summary once, when its last byte has arrived; otherwise
    /// None.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Option<HeadSummary> {
        if self.is_whole {
            return None;
        }
        for line in piece.split_inclusive(|byte| *byte == b'\n') {
            let is_over = line.last() == Some(&b'\n');
            if self.line == 0 {
                (self.length, self.coding) = (true, true);
                // Empty lines before a request are ignored.
                if is_over && matches!(line, b"\n" | b"\r\n") && self.bytes > 0 {
                    return Some(self.end(line.len()));
                }
            } else if is_over && line == b"\n" && self.line == 1 && !self.length && !self.coding && self.bytes > 1 {
                // The previous piece ended with the carriage return.
                return Some(self.end(1));
            }
            self.length = self.length && goes_on(line, self.line, LENGTH);
            self.coding = self.coding && goes_on(line, self.line, CODING);
            self.line += line.len();
            self.bytes += line.len();
            self.has_length |= self.length && self.line >= LENGTH.len();
            self.has_coding |= self.coding && self.line >= CODING.len();
            if is_over {
                if self.bytes <= 2 && self.line == self.bytes && line.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
                    self.bytes = 0;
                }
                self.line = 0;
            }
        }
        None
    }

    /// Number of bytes of the head received so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn end(&mut self, last: usize) -> HeadSummary {
        self.is_whole = true;
        self.bytes += last;
        HeadSummary { bytes: self.bytes, is_ambiguous: self.has_length && self.has_coding }
    }
}

/// True if the line formed by `there` bytes, which are the beginning of `name`, and then `piece`, still agrees with the
/// header name `name`.
fn goes_on(piece: &[u8], there: usize, name: &[u8]) -> bool {
    let Some(rest) = name.get(there..) else { return true };
    let most = rest.len().min(piece.len());
    piece[..most].eq_ignore_ascii_case(&rest[..most])
}

/// Makes the refusal of a request whose head exceeds the size limits.
pub(crate) fn too_large(max_head: usize, max_headers: usize) -> Denial {
    let message = format!(
        "the request's head has more than {max_head} bytes (http.max_head) or {max_headers} lines (http.max_headers)"
    );
    Denial::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", message)
}

/// Encodes an answer with its complete body as the bytes of HTTP/1.1. The answer announces that the connection closes.
pub(crate) fn raw<B: Body<Data = Bytes> + Unpin>(response: Response<B>) -> Vec<u8> {
    let (head, mut body) = response.into_parts();
    let mut data = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
        data.extend(frame.into_data().unwrap_or_default());
    }
    let reason = head.status.canonical_reason().unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", head.status.as_str()).into_bytes();
    for (name, value) in head.headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH && *name != CONNECTION) {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend(format!("content-length: {}\r\nconnection: close\r\n\r\n", data.len()).as_bytes());
    bytes.extend(data);
    bytes
}

/// Refuses a request whose head is not valid HTTP or is too large. `seen`: summary of the head; None if the head was
/// not observed.
pub(crate) fn check<B>(
    request: &Request<B>,
    seen: Option<HeadSummary>,
    max_head: usize,
    max_headers: usize,
) -> Result<(), Denial> {
    let headers = request.headers();
    let is_http2 = request.version() == Version::HTTP_2;
    // A head that arrived together with the end of another request was not parsed here: its framing is unknown.
    let is_ambiguous = seen.map_or(!is_http2 && headers.contains_key(TRANSFER_ENCODING), |seen| seen.is_ambiguous);
    if is_ambiguous {
        let message = "a request may have Content-Length or Transfer-Encoding, not both, and one with Transfer-Encoding \
                       must begin after the answer to the one before";
        return Err(Denial::new(StatusCode::BAD_REQUEST, "ambiguous_framing", message));
    }
    let bytes = || {
        let lines = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
        lines.sum::<usize>() + request.uri().path_and_query().map_or(1, |path| path.as_str().len()) + 16
    };
    let too_long = seen.map_or_else(|| !is_http2 && bytes() > max_head, |seen| seen.bytes > max_head);
    if too_long || headers.len() > max_headers {
        return Err(too_large(max_head, max_headers));
    }
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next();
    // HTTP/2 has a pseudo-header for the host, and both must be equal (RFC 9113, 8.3.1).
    let authority = request.uri().authority().filter(|_| is_http2).map(|it| it.as_str().as_bytes());
    let is_missing = host.is_none() && authority.is_none() && request.version() >= Version::HTTP_11;
    let are_two = host.zip(authority).is_some_and(|(host, it)| !host.as_bytes().eq_ignore_ascii_case(it));
    if is_missing || are_two || hosts.next().is_some() || host.is_some_and(|host| !is_host(host.as_bytes())) {
        let message = "a request must have one Host header (or :authority), with the name and port that it was sent to";
        return Err(Denial::new(StatusCode::BAD_REQUEST, "bad_host", message));
    }
    Ok(())
}

/// True if a text is a valid value of a Host header: one host with an optional port, without a user or path.
fn is_host(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'/' | b'@' | b'?' | b'#' | b'\\'))
}

/// Version of HTTP that a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Time limit, once the server stops, for the first byte from a client that has connected but has sent nothing.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Maximum number of attempts to read the HTTP/2 preface while not all of its bytes have arrived.
const LOOKS: usize = 50;
/// Pause before the next attempt to read the HTTP/2 preface.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits for the client's first bytes, copies them into `start` without removing them from the socket, and returns
/// their number. None if the client sends nothing in time or leaves, or the server stops first.
pub(crate) async fn first(
    stream: &TcpStream,
    start: &mut [u8],
    first_byte: Duration,
    mut stop: watch::Receiver<bool>,
) -> Option<usize> {
    let first = async {
        let peeked = tokio::select! {
            biased;
            peeked = stream.peek(start) => peeked,
            // A client that has sent nothing has asked nothing; but a request may be on its way.
            _ = async { let _ = stop.wait_for(|stop| *stop).await; sleep(GRACE).await } => return None,
        };
        peeked.ok().filter(|length| *length > 0)
    };
    timeout(first_byte, first).await.ok()?
}

/// Determines the HTTP version from the client's first bytes; None if they do not arrive in time.
pub(crate) async fn protocol(
    stream: &TcpStream,
    first_byte: Duration,
    stop: watch::Receiver<bool>,
) -> Option<Protocol> {
    let mut start = [0; HTTP2.len()];
    let mut length = first(stream, &mut start, first_byte, stop).await?;
    for _ in 0..LOOKS {
        if start[..length] != HTTP2[..length] {
            return Some(Protocol::Http1);
        }
        if length == HTTP2.len() {
            return Some(Protocol::Http2);
        }
        sleep(PAUSE).await;
        length = stream.peek(&mut start).await.ok()?;
    }
    Some(Protocol::Http1)
}

/// Length of the head of an HTTP/2 frame, in bytes.
const HEAD: usize = 9;

/// Type of an HTTP/2 frame that has a part of a body.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const CONTINUATION: u8 = 9;

/// Flag of an HTTP/2 frame that is the last one of its stream.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Head of an HTTP/2 frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

/// Event that the parser of HTTP/2 frames reports: the beginning or the end of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The head of a frame is complete, and its payload begins.
    Begins(FrameHead),
    /// The payload of a frame is complete.
    Ends(FrameHead),
}

/// Parser of the HTTP/2 frames that pass in one direction of a connection.
#[derive(Debug)]
pub(crate) struct Frames {
    bytes: [u8; HEAD],
    have: usize,
    /// Number of bytes still missing of the current frame's payload, or of the data before the first frame.
    rest: usize,
    head: Option<FrameHead>,
}

impl Frames {
    /// Makes the parser for one direction of a connection, in which `before` bytes precede the first frame.
    pub(crate) fn new(before: usize) -> Self {
        Self { bytes: [0; HEAD], have: 0, rest: before, head: None }
    }

    /// Number of bytes still missing of the current frame's head or payload.
    pub(crate) fn remaining(&self) -> usize {
        if self.rest > 0 { self.rest } else { HEAD - self.have }
    }

    /// Returns the head of the frame whose payload is arriving; None between frames.
    pub(crate) fn current(&self) -> Option<FrameHead> {
        self.head
    }

    /// Parses the next bytes of the direction, and calls `passed` for each complete frame head and each complete
    /// payload.
    pub(crate) fn take(&mut self, mut bytes: &[u8], mut passed: impl FnMut(Mark)) {
        while !bytes.is_empty() {
            let (piece, behind) = bytes.split_at(self.remaining().min(bytes.len()));
            bytes = behind;
            if self.rest > 0 {
                self.rest -= piece.len();
            } else {
                self.bytes[self.have..self.have + piece.len()].copy_from_slice(piece);
                self.have += piece.len();
                if self.have < HEAD {
                    continue;
                }
                self.have = 0;
                let [a, b, c, kind, flags, stream @ ..] = self.bytes;
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
                let head = FrameHead { length, kind, flags, stream };
                (self.rest, self.head) = (length, Some(head));
                passed(Mark::Begins(head));
            }
            if self.rest == 0
                && let Some(head) = self.head.take()
            {
                passed(Mark::Ends(head));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "POST / HTTP/1.1\r\nContent-Length: 5\r\nTRANSFER-encoding: chunked\r\n\r\n";

    #[test]
    fn heads_are_seen_however_they_are_cut() {
        for (text, is_ambiguous) in [
            (BOTH, true),
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", false),
            ("POST / HTTP/1.1\r\nx-content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", false),
            ("POST / HTTP/1.1\ncontent-length: 5\ntransfer-encoding: chunked\n\n", true),
        ] {
            let seen = Some(HeadSummary { bytes: text.len(), is_ambiguous });
            assert_eq!(Head::default().take(text.as_bytes()), seen, "{text:?}");
            let more = format!("{text}transfer-encoding: x\r\n\r\n");
            assert_eq!(Head::default().take(more.as_bytes()), seen, "{text:?}, and a body");
            for cut in 1..text.len() {
                let (first, last) = text.as_bytes().split_at(cut);
                let mut head = Head::default();
                assert_eq!(head.take(first).or_else(|| head.take(last)), seen, "{text:?} cut at {cut}");
            }
            let mut head = Head::default();
            assert_eq!(text.bytes().find_map(|byte| head.take(&[byte])), seen, "{text:?} byte by byte");
        }
    }

    #[test]
    fn hosts() {
        for good in ["", "a", "a.b:80", "[::1]:80", "a_b"] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in ["a, b", "a b", "a/b", "u@a", "a\tb"] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn frames_are_seen_however_they_are_cut() {
        let bytes = b"PRI\x00\x00\x02\x01\x05\x80\x00\x00\x03ab\x00\x00\x00\x04\x01\x00\x00\x00\x00";
        let first = FrameHead { length: 2, kind: HEADERS, flags: END_STREAM | END_HEADERS, stream: 3 };
        let second = FrameHead { length: 0, kind: 4, flags: 1, stream: 0 };
        let wanted = [Mark::Begins(first), Mark::Ends(first), Mark::Begins(second), Mark::Ends(second)];
        for size in 1..=bytes.len() {
            let (mut frames, mut marks) = (Frames::new(3), Vec::new());
            for piece in bytes.chunks(size) {
                frames.take(piece, |mark| marks.push(mark));
            }
            assert_eq!(marks, wanted, "{size}");
            assert_eq!(frames.remaining(), HEAD);
        }
    }
}
