//! Parser that turns received bytes into ZMTP messages and commands, with bounds on the size of both.

use std::ops::Range;
use std::sync::Arc;

use super::FAILED;
use crate::limits::{Limit, SharedCounts};

/// Maximum length of a ZMTP command, in bytes. A peer that announces a longer command is disconnected.
const MAX_COMMAND: usize = 4 << 10;
/// Maximum total length, in bytes, of the frames of a message before the last one, more than any engine sends.
const MAX_HEAD: usize = 16 << 10;
/// Maximum number of frames of a message before the last one: an empty frame, the topic and the sequence number.
const MAX_FRAMES: usize = 3;
/// Minimum step, in bytes, by which the memory for a partly received frame grows. The memory grows with the bytes
/// received and not with the announced size.
const GROWTH: usize = 64 << 10;

/// Memory budget for partly received messages, shared by all connections.
#[derive(Debug, Clone)]
pub struct Room {
    shared: Arc<SharedCounts>,
    most: usize,
}

impl Room {
    /// Creates a memory budget for all connections. `most` is the maximum number of bytes in all buffers together.
    pub fn new(shared: Arc<SharedCounts>, most: usize) -> Self {
        Self { shared, most }
    }
}

/// Part of the shared memory budget ([`Room`]) that one connection uses. Short messages do not count.
pub struct Budget {
    room: Room,
    taken: usize,
}

impl Budget {
    /// Creates the budget of a connection, with no memory used yet.
    pub fn new(room: &Room) -> Self {
        Self { room: room.clone(), taken: 0 }
    }

    /// Reserves `bytes` more bytes of the shared budget. Returns false if the budget is exceeded.
    fn take(&mut self, bytes: usize) -> bool {
        let has_room = self.room.shared.add(bytes) <= self.room.most;
        self.taken += bytes;
        if !has_room {
            self.room.shared.count(Limit::BufferBytes);
        }
        has_room
    }

    fn free(&mut self) {
        self.room.shared.sub(std::mem::take(&mut self.taken));
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.free();
    }
}

/// Frames of a message that precede its last frame.
#[derive(Debug, Default)]
pub struct Head {
    bytes: Vec<u8>,
    ends: [usize; MAX_FRAMES],
    frames: usize,
    /// True if frames were dropped because there are too many or they are too long.
    is_cut: bool,
}

impl Head {
    /// Returns the number of frames; `None` if they are more or longer than in any engine's message.
    pub fn frames(&self) -> Option<usize> {
        (!self.is_cut).then_some(self.frames)
    }

    /// Returns the bytes of a frame, counted from the end: 0 is the last frame in this list, which is the last but one
    /// of the message. `None` if there is no such frame.
    pub fn back(&self, at: usize) -> Option<&[u8]> {
        let at = self.frames.checked_sub(at + 1)?;
        self.bytes.get(self.range(at)?)
    }

    fn range(&self, at: usize) -> Option<Range<usize>> {
        let start = if at == 0 { 0 } else { *self.ends.get(at - 1)? };
        Some(start..*self.ends.get(at)?)
    }

    fn clear(&mut self) {
        self.bytes.clear();
        (self.frames, self.is_cut) = (0, false);
    }

    fn push(&mut self, bytes: &[u8]) {
        self.is_cut |= self.frames >= MAX_FRAMES || self.bytes.len() + bytes.len() > MAX_HEAD;
        if !self.is_cut {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn end_frame(&mut self) {
        if let Some(end) = self.ends.get_mut(self.frames) {
            *end = self.bytes.len();
        }
        self.is_cut |= self.frames >= MAX_FRAMES;
        self.frames = (self.frames + 1).min(MAX_FRAMES);
    }
}

/// Message or command that the parser has read completely.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A message. The value is its last frame; the frames before are in [`Parser::head`] until the next message or
    /// command is parsed.
    Message(Vec<u8>),
    Command(Vec<u8>),
}

enum Step {
    Header,
    Frame { kind: Frame, left: usize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Frame {
    Command,
    Head,
    Body,
}

pub(super) struct Parser {
    step: Step,
    head: Head,
    /// True if the current message is complete, so that the next frame begins a new one.
    complete: bool,
    /// Bytes received so far of a command, or of the last frame of a message.
    body: Vec<u8>,
    budget: Budget,
    /// Maximum length of a message frame, in bytes; 0 until messages are allowed.
    most: usize,
}

impl Parser {
    /// Creates a parser that accepts only commands until [`open`](Self::open) is called.
    pub(super) fn new(budget: Budget) -> Self {
        Self { step: Step::Header, head: Head::default(), complete: false, body: Vec::new(), budget, most: 0 }
    }

    /// Makes the parser accept messages, with frames of up to `most` bytes, after the handshake.
    pub(super) fn open(&mut self, most: usize) {
        self.most = most;
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// Parses the next bytes. Returns the number of bytes used, and the message or command that they complete, if any.
    /// The caller must pass the unused bytes again, followed by more.
    pub(super) fn parse(&mut self, input: &[u8]) -> Result<(usize, Option<Item>), String> {
        let mut used = 0;
        loop {
            let rest = input.get(used..).unwrap_or_default();
            match &mut self.step {
                Step::Header => {
                    let Some((kind, size, length)) = header(rest, self.most)? else { return Ok((used, None)) };
                    used += length;
                    if std::mem::take(&mut self.complete) {
                        self.head.clear();
                    }
                    self.step = Step::Frame { kind, left: size };
                }
                Step::Frame { kind, left } => {
                    let bytes = rest.get(..*left).unwrap_or(rest);
                    used += bytes.len();
                    let kind = *kind;
                    let all = *left;
                    *left -= bytes.len();
                    let is_whole = *left == 0;
                    if kind == Frame::Head {
                        self.head.push(bytes);
                    } else {
                        self.grow(bytes.len(), all)?;
                        self.body.extend_from_slice(bytes);
                    }
                    if !is_whole {
                        return Ok((used, None));
                    }
                    self.step = Step::Header;
                    match kind {
                        Frame::Head => self.head.end_frame(),
                        Frame::Command => return Ok((used, Some(Item::Command(std::mem::take(&mut self.body))))),
                        Frame::Body => {
                            self.complete = true;
                            self.budget.free();
                            return Ok((used, Some(Item::Message(std::mem::take(&mut self.body)))));
                        }
                    }
                }
            }
        }
    }

    /// Allocates memory for the next `bytes` bytes of a frame, of which `all` bytes remain to be received.
    fn grow(&mut self, bytes: usize, all: usize) -> Result<(), String> {
        let room = self.body.capacity() - self.body.len();
        if room >= bytes {
            return Ok(());
        }
        let more = bytes.max(self.body.len()).max(GROWTH).min(all);
        if self.body.len() + more > GROWTH && !self.budget.take(more - room) {
            return Err(format!(
                "a message of {} bytes is refused: limits.buffer_bytes ({}) is reached",
                self.body.len() + all,
                self.budget.room.most
            ));
        }
        self.body.reserve_exact(more);
        Ok(())
    }
}

/// Parses the header of a frame. Returns the frame's kind, its size in bytes and the length of the header; `None` if
/// the header is incomplete. `most` is the maximum size of a message frame.
fn header(input: &[u8], most: usize) -> Result<Option<(Frame, usize, usize)>, String> {
    let Some((flags, rest)) = input.split_first() else { return Ok(None) };
    let (size, length) = match (flags & 2, rest) {
        (0, [size, ..]) => (u64::from(*size), 2),
        (2, rest) => match rest.first_chunk::<8>() {
            Some(size) => (u64::from_be_bytes(*size), 9),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let (kind, max) = match flags & !2 {
        0 | 1 if most == 0 => return Err(FAILED.to_owned()),
        0 => (Frame::Body, most),
        1 => (Frame::Head, most),
        4 => (Frame::Command, MAX_COMMAND),
        _ => return Err(format!("a frame with flags {flags:#04x}, which ZMTP 3 does not have")),
    };
    match usize::try_from(size) {
        Ok(size) if size <= max => Ok(Some((kind, size, length))),
        _ => Err(format!("a frame of {size} bytes; at most {max} are read")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_FRAME: usize = 16 << 20;

    fn parser(max: usize) -> (Parser, Arc<SharedCounts>) {
        let shared = Arc::<SharedCounts>::default();
        let mut parser = Parser::new(Budget::new(&Room::new(shared.clone(), max)));
        assert!(parser.parse(b"\0\x01x").is_err(), "not yet");
        parser.open(MAX_FRAME);
        (parser, shared)
    }

    fn frame(flags: u8, bytes: &[u8]) -> Vec<u8> {
        let mut frame = vec![flags | 2];
        frame.extend((bytes.len() as u64).to_be_bytes());
        frame.extend(bytes);
        frame
    }

    /// Parsed message or command, the number of frames before its last one, and the last of these frames.
    type ParsedItem = (Item, Option<usize>, Vec<u8>);

    /// Parses a sequence of bytes in pieces of `piece` bytes, and returns all messages and commands in it.
    fn all(parser: &mut Parser, stream: &[u8], piece: usize) -> Result<Vec<ParsedItem>, String> {
        let (mut found, mut input) = (Vec::new(), Vec::new());
        for piece in stream.chunks(piece) {
            input.extend_from_slice(piece);
            loop {
                let (used, item) = parser.parse(&input)?;
                input.drain(..used);
                let Some(item) = item else { break };
                let number = parser.head().back(0).unwrap_or_default().to_vec();
                found.push((item, parser.head().frames(), number));
            }
        }
        assert!(input.is_empty(), "nothing is left over");
        Ok(found)
    }

    #[test]
    fn messages_in_pieces_of_any_size() {
        let long = vec![7; 300];
        let mut stream = b"\x01\0\x01\x02ab\0\x03xyz\x04\x05\x04PING".to_vec();
        stream.extend([frame(1, b"topic"), frame(1, b"12345678"), frame(0, &long)].concat());
        stream.extend(b"\0\0");
        let whole = all(&mut parser(0).0, &stream, stream.len()).expect("all is right");
        assert_eq!(whole[0], (Item::Message(b"xyz".to_vec()), Some(2), b"ab".to_vec()));
        assert_eq!(whole[1].0, Item::Command(b"\x04PING".to_vec()));
        assert_eq!(whole[2], (Item::Message(long), Some(2), b"12345678".to_vec()));
        assert_eq!((&whole[3].0, whole[3].1, whole.len()), (&Item::Message(Vec::new()), Some(0), 4));
        for piece in 1..20 {
            assert_eq!(all(&mut parser(0).0, &stream, piece).as_ref(), Ok(&whole), "{piece}");
        }
    }

    #[test]
    fn what_is_too_much_is_not_kept() {
        let many = [[1, 0].repeat(100_000), b"\0\x01x\0\x01y".to_vec()].concat();
        let (mut cut, _) = parser(0);
        let found = all(&mut cut, &many, 1000).expect("messages");
        assert_eq!(found[0].1, None, "it is none of an engine's");
        assert_eq!((&found[1].0, found[1].1), (&Item::Message(b"y".to_vec()), Some(0)), "the next one is");
        let long = [frame(1, &vec![0; 1 << 20]), b"\0\x01x".to_vec()].concat();
        assert_eq!(all(&mut cut, &long, 1000).expect("a message")[0].1, None);
        assert!(cut.head.bytes.capacity() <= 2 * MAX_HEAD);
    }

    #[test]
    fn no_room_is_made_for_what_is_only_announced() {
        let (mut parser, shared) = parser(1 << 20);
        let mut announced = vec![2];
        announced.extend((MAX_FRAME as u64).to_be_bytes());
        assert_eq!(parser.parse(&announced), Ok((9, None)));
        assert_eq!((parser.body.capacity(), shared.buffered()), (0, 0));
        let piece = vec![0; 1000];
        let why = (0..).find_map(|_| parser.parse(&piece).err()).expect("it is too much at last");
        assert!(why.contains("16777216 bytes") && why.contains("limits.buffer_bytes"), "{why}");
        assert!(parser.body.capacity() <= 1 << 20);
        assert_eq!(shared.reached(Limit::BufferBytes), 1);
        drop(parser);
        assert_eq!(shared.buffered(), 0);
    }

    #[test]
    fn room_is_given_back_with_the_message() {
        let (mut parser, shared) = parser(1 << 20);
        let stream = frame(0, &vec![1; 1 << 20]);
        for _ in 0..3 {
            let found = all(&mut parser, &stream, 10_000).expect("a message");
            assert!(matches!(&found[0].0, Item::Message(body) if body.len() == 1 << 20 && body.capacity() == 1 << 20));
            assert_eq!((shared.buffered(), shared.reached(Limit::BufferBytes)), (0, 0));
        }
    }

    #[test]
    fn what_is_no_frame() {
        for (bytes, why) in [
            (&b"\x08\0"[..], "flags 0x08"),
            (b"\x05\0", "flags 0x05"),
            (b"\x02\0\0\0\0\x01\0\0\x01", "at most 16777216"),
            (b"\x02\xff\xff\xff\xff\xff\xff\xff\xff", "at most 16777216"),
            (b"\x06\0\0\0\0\0\0\x10\x01", "at most 4096"),
        ] {
            let said = parser(0).0.parse(bytes).expect_err(why);
            assert!(said.contains(why), "{said}");
        }
    }
}
