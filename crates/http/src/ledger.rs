//! Record of the open HTTP/2 streams on a connection without a key, from the frames in transit; also limits and
//! counters for connections.
//!
//! hyper passes answers to h2, which buffers data while a flow-control window is closed, so that only the frames on the
//! socket show how many bytes a client has read. The frames are parsed until the client sends a key. Requests are read
//! one at a time, so that the first request with a key is recognized before the next one is read.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::activity::{PIECE, millis};
use crate::heads::{CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, Mark, RST_STREAM};
use crate::places::Place;

/// Length of the preface with which an HTTP/2 connection begins, in bytes.
const PREFACE: usize = 24;

/// Factor by which the memory for a request's head exceeds the size of the head, because of the bookkeeping of header
/// lines.
const HEAD: usize = 5;

/// Error of a client without a key that opened more streams than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyStreams;

/// Record of the open HTTP/2 streams of a connection without a key.
#[derive(Debug)]
pub(crate) struct Ledger {
    incoming: Frames,
    outgoing: Frames,
    open: Vec<OpenStream>,
    /// Highest number of an HTTP/2 stream that the client has opened.
    last: u32,
    /// Number of bytes of an incomplete request head that are counted in the memory limit.
    head: usize,
    /// True if the bytes read so far must be processed before more are read from the client. Requests are thus read one
    /// at a time.
    is_full: bool,
    /// Number of the poll of the connection's task in which bytes were last read.
    turn: u32,
}

#[derive(Debug)]
struct OpenStream {
    number: u32,
    /// Time since which the stream has sent no piece of its answer, in milliseconds.
    since: u64,
    bytes: usize,
}

impl Default for Ledger {
    fn default() -> Self {
        let (incoming, outgoing) = (Frames::new(PREFACE), Frames::new(0));
        Self { incoming, outgoing, open: Vec::new(), last: 0, head: 0, is_full: false, turn: 0 }
    }
}

impl Ledger {
    /// True if no more bytes may be read from the client in the present poll of the connection's task, whose number is
    /// `turn`. The bytes read are processed first, and other connections are polled, which may evict this connection.
    pub(crate) fn is_over(&mut self, turn: u32) -> bool {
        if self.turn != turn {
            (self.turn, self.is_full) = (turn, false);
        }
        self.is_full
    }

    /// Returns the maximum number of bytes to read next from the client: at most up to the end of the current HTTP/2
    /// frame.
    pub(crate) fn most(&self) -> usize {
        self.incoming.remaining().min(STRANGER_READ)
    }

    /// Records bytes received from the client, by the HTTP/2 frames in them. The error means that the client has opened
    /// too many streams.
    pub(crate) fn came(&mut self, bytes: &[u8], place: &Place) -> Result<(), TooManyStreams> {
        let Self { incoming, open, last, head, is_full, .. } = self;
        let mut result = Ok(());
        let is_payload = incoming.current().is_some();
        incoming.take(bytes, |mark| match mark {
            Mark::Begins(frame) => match frame.kind {
                HEADERS | CONTINUATION => {
                    place.hold(HEAD * frame.length);
                    *head += HEAD * frame.length;
                    if frame.kind == HEADERS && frame.stream > *last {
                        *last = frame.stream;
                        if open.len() >= STRANGER_STREAMS {
                            result = Err(TooManyStreams);
                        } else {
                            open.push(OpenStream { number: frame.stream, since: millis(), bytes: 0 });
                            place.hold(STREAM);
                        }
                    }
                }
                RST_STREAM => close(open, frame.stream, place),
                _ => {}
            },
            Mark::Ends(frame) => {
                if matches!(frame.kind, HEADERS | CONTINUATION) && frame.flags & END_HEADERS > 0 {
                    place.release(std::mem::take(head));
                }
                *is_full |= matches!(frame.kind, DATA | HEADERS | CONTINUATION);
            }
        });
        // A long frame is read in pieces.
        *is_full |= is_payload && incoming.current().is_some();
        result
    }

    /// Records bytes sent to the client, by the HTTP/2 frames in them.
    pub(crate) fn went(&mut self, bytes: &[u8], place: &Place) {
        let open = &mut self.open;
        self.outgoing.take(bytes, |mark| {
            let Mark::Begins(frame) = mark else { return };
            let is_part = matches!(frame.kind, HEADERS | DATA);
            if frame.kind == RST_STREAM || (is_part && frame.flags & END_STREAM > 0) {
                close(open, frame.stream, place);
            } else if frame.kind == DATA
                && let Some(stream) = open.iter_mut().find(|stream| stream.number == frame.stream)
            {
                stream.bytes += frame.length;
                // A client that takes a byte now and then still counts as not reading.
                if stream.bytes >= PIECE {
                    (stream.bytes, stream.since) = (0, millis());
                }
            }
        });
    }

    /// Returns the time since which the longest waiting stream has sent no piece of its answer, in milliseconds; None
    /// if no stream is open.
    pub(crate) fn waiting_since(&self) -> Option<u64> {
        self.open.iter().map(|stream| stream.since).min()
    }
}

fn close(open: &mut Vec<OpenStream>, number: u32, place: &Place) {
    if let Some(at) = open.iter().position(|stream| stream.number == number) {
        open.swap_remove(at);
        place.release(STREAM);
    }
}

/// Maximum number of concurrent HTTP/2 streams on a connection that has sent no key yet.
pub(crate) const STRANGER_STREAMS: usize = 16;

/// Maximum number of concurrent HTTP/2 streams on a connection that has sent a key.
pub(crate) const KEYED_STREAMS: u32 = 1000;

/// Maximum number of concurrent HTTP/2 streams on a connection if no key is configured.
pub(crate) const KEYLESS_STREAMS: u32 = 250;

/// Time limit for a client without a key to read an answer, or the next piece of the answer.
pub(crate) const STRANGER_WRITE: Duration = Duration::from_secs(2);

/// Maximum number of bytes read at once from a client without a key.
pub(crate) const STRANGER_READ: usize = 4 << 10;

/// Memory limit for the connections of all strangers (clients without a key) at the main listener together, in counted
/// bytes. The resident memory of the process grows by at most 128 MiB through them, with the allocator's overhead.
pub(crate) const STRANGERS: usize = 80 << 20;
/// Memory limit for all connections at the listener for administrators together, in counted bytes. All of its clients
/// are strangers (clients without a key), as this listener requires no key.
pub(crate) const ADMIN_STRANGERS: usize = 8 << 20;

/// Number of bytes counted, in the memory limit for connections without a key, for each HTTP/2 stream.
pub(crate) const STREAM: usize = 8 << 10;
/// Number of bytes counted, in the memory limit for connections without a key, for each answer that the client does not
/// read.
pub(crate) const UNREAD: usize = 64 << 10;
/// Number of bytes counted, in the memory limit for connections without a key, for the use of HTTP/2 on one connection.
pub(crate) const HTTP2: usize = 8 << 10;
/// Number of bytes counted, in the memory limit for connections without a key, for a TLS handshake.
pub(crate) const HANDSHAKE: usize = 64 << 10;
/// Number of bytes counted, in the memory limit for connections without a key, for TLS on one connection after the
/// handshake.
pub(crate) const TLS: usize = 24 << 10;

/// Time limits for the phases of a connection, and size limits for a request's head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) idle: Duration,
    pub(crate) request: Duration,
    pub(crate) write: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) max_head: usize,
    pub(crate) max_headers: usize,
    /// Maximum number of concurrent HTTP/2 streams on the connection.
    pub(crate) streams: u32,
    /// True if a client that closes its sending side still gets its answer.
    pub(crate) half_close: bool,
}

/// Counters of connections and of reset HTTP/2 streams.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) begun: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) stalled_streams: AtomicU64,
    /// Number of connections without a key that were closed because they opened too many streams.
    pub(crate) stranger_streams: AtomicU64,
    /// Number of connections without a key that were closed because their clients did not read an answer.
    pub(crate) unread_answers: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::{CONNECTION, Places};

    fn frame(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
        let mut bytes = vec![0, (length >> 8) as u8, length as u8, kind, flags];
        bytes.extend(stream.to_be_bytes());
        bytes.resize(9 + length, 0);
        bytes
    }

    #[tokio::test]
    async fn streams_are_open_until_their_answers_have_gone_out() {
        let places = Places::new(1, 1 << 20);
        let place = places.take(false).await.expect("room");
        let mut ledger = Ledger::default();
        assert_eq!(ledger.came(&[0; PREFACE], &place), Ok(()));
        for number in 0..STRANGER_STREAMS as u32 {
            assert!(!ledger.is_over(number));
            assert_eq!(ledger.came(&frame(HEADERS, END_HEADERS, 2 * number + 1, 30), &place), Ok(()));
            assert!(ledger.is_over(number) && !ledger.is_over(number + 1));
        }
        assert_eq!(places.bytes(), CONNECTION + STRANGER_STREAMS * STREAM);
        assert!(ledger.waiting_since().is_some());
        ledger.went(&frame(HEADERS, END_HEADERS, 1, 20), &place);
        ledger.went(&frame(DATA, 0, 1, 20), &place);
        assert_eq!(places.bytes(), CONNECTION + STRANGER_STREAMS * STREAM);
        ledger.went(&frame(DATA, END_STREAM, 1, 0), &place);
        ledger.went(&frame(RST_STREAM, 0, 3, 4), &place);
        assert_eq!(ledger.came(&frame(RST_STREAM, 0, 5, 4), &place), Ok(()));
        assert_eq!(places.bytes(), CONNECTION + (STRANGER_STREAMS - 3) * STREAM);
        // Trailers open no stream.
        assert_eq!(ledger.came(&frame(HEADERS, END_HEADERS, 7, 10), &place), Ok(()));
        for number in 100..103 {
            // A head in several frames counts until it is complete.
            assert_eq!(ledger.came(&frame(HEADERS, 0, 2 * number + 1, 100), &place), Ok(()));
            assert_eq!(ledger.came(&frame(CONTINUATION, END_HEADERS, 2 * number + 1, 100), &place), Ok(()));
        }
        assert_eq!(places.bytes(), CONNECTION + STRANGER_STREAMS * STREAM);
        assert_eq!(ledger.came(&frame(HEADERS, END_HEADERS, 901, 10), &place), Err(TooManyStreams));
    }
}
