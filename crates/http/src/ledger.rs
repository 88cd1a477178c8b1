//! The streams of an HTTP/2 connection that has shown no key, by the frames that go by.
//!
//! hyper hands an answer to h2, and h2 keeps what no window is open for: only the frames on the socket tell what a client
//! has taken. They are read until the client shows a key, and one request after another is handed on, so that the first
//! with a key is known before the next is looked at.

use crate::frames::{CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, Mark, RST_STREAM};
use crate::limits::{STRANGER_READ, STRANGER_STREAMS, STREAM};
use crate::note::{PIECE, millis};
use crate::places::Place;

/// Bytes that a client sends before its first frame.
const PREFACE: usize = 24;

/// Bytes that a byte of a head becomes, with what is kept for each of its lines.
const HEAD: usize = 5;

/// A client without a key has opened more streams than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyStreams;

/// The streams that a stranger has open.
#[derive(Debug)]
pub(crate) struct Ledger {
    incoming: Frames,
    outgoing: Frames,
    open: Vec<OpenStream>,
    /// The highest number of a stream.
    last: u32,
    /// Bytes of the head that is coming.
    head: usize,
    /// True if what has come is to be looked at before more is read.
    is_full: bool,
    /// The turn of the connection's task in which it was last read.
    turn: u32,
}

#[derive(Debug)]
struct OpenStream {
    number: u32,
    /// The time since which it has got no piece of its answer.
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
    /// True if what has come in this turn of the connection's task is to be looked at before more is read: by others too, one
    /// of which may have to tell this connection to leave.
    pub(crate) fn is_over(&mut self, turn: u32) -> bool {
        if self.turn != turn {
            (self.turn, self.is_full) = (turn, false);
        }
        self.is_full
    }

    /// Bytes to be read at most: no further than the frame that is coming.
    pub(crate) fn most(&self) -> usize {
        self.incoming.left().min(STRANGER_READ)
    }

    /// Takes bytes that have come from the client.
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
        // Of a frame that is long, one piece.
        *is_full |= is_payload && incoming.current().is_some();
        result
    }

    /// Takes bytes that went to the client.
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
                // A client that takes a byte now and then has not begun to read.
                if stream.bytes >= PIECE {
                    (stream.bytes, stream.since) = (0, millis());
                }
            }
        });
    }

    /// The time since which a stream has got no piece of its answer, of the one that waits longest.
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
            // A head in several frames counts until it is whole.
            assert_eq!(ledger.came(&frame(HEADERS, 0, 2 * number + 1, 100), &place), Ok(()));
            assert_eq!(ledger.came(&frame(CONTINUATION, END_HEADERS, 2 * number + 1, 100), &place), Ok(()));
        }
        assert_eq!(places.bytes(), CONNECTION + STRANGER_STREAMS * STREAM);
        assert_eq!(ledger.came(&frame(HEADERS, END_HEADERS, 901, 10), &place), Err(TooManyStreams));
    }
}
