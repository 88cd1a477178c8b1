//! HTTP/2 frames in transit (RFC 9113, 4.1): frame heads are parsed, payloads are skipped.

/// Bytes of a frame's head.
const HEAD: usize = 9;

/// Kinds of frames.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const CONTINUATION: u8 = 9;

/// Flags of frames.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The head of a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

/// An event in a stream of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A frame's head is complete.
    Begins(FrameHead),
    /// A frame's payload is complete.
    Ends(FrameHead),
}

/// The frames of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Frames {
    bytes: [u8; HEAD],
    have: usize,
    /// Remaining bytes of the current payload, or of the bytes before the first frame.
    rest: usize,
    head: Option<FrameHead>,
}

impl Frames {
    /// A direction with `before` bytes before its first frame.
    pub(crate) fn new(before: usize) -> Self {
        Self { bytes: [0; HEAD], have: 0, rest: before, head: None }
    }

    /// Remaining bytes of the current head or payload.
    pub(crate) fn left(&self) -> usize {
        if self.rest > 0 { self.rest } else { HEAD - self.have }
    }

    /// The frame whose payload is in transit.
    pub(crate) fn current(&self) -> Option<FrameHead> {
        self.head
    }

    /// Parses the next bytes, and reports each complete head and payload.
    pub(crate) fn take(&mut self, mut bytes: &[u8], mut passed: impl FnMut(Mark)) {
        while !bytes.is_empty() {
            let (piece, behind) = bytes.split_at(self.left().min(bytes.len()));
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
            assert_eq!(frames.left(), HEAD);
        }
    }
}
