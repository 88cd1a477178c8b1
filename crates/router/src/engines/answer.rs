//! Parser of an engine's HTTP answer: the head, which is rejected if ambiguous, and the framing of the body, which is
//! the way its end is determined, with the chunked transfer coding of HTTP/1.1.

use bytes::{Bytes, BytesMut};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode, Version};

use super::fault::Fault;

/// Number of headers for which the parser first allocates space; enough for nearly all answers.
const FEW_HEADERS: usize = 32;
/// Maximum number of headers in an engine's answer.
const MAX_HEADERS: usize = 512;

/// Head of an engine's HTTP answer, with the framing of the body.
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// True if another request may be sent on the connection after this answer has been read.
    pub(crate) keep: bool,
    pub(crate) framing: Framing,
}

/// Parses and removes the head of an answer at the beginning of `rest`. The bool is true if the answer is an interim
/// one (status 1xx). None if the head is incomplete.
pub(super) fn parse(rest: &mut BytesMut, method: &Method) -> Result<Option<(Head, bool)>, Fault> {
    let mut few = [httparse::EMPTY_HEADER; FEW_HEADERS];
    let mut answer = httparse::Response::new(&mut few);
    let length = match answer.parse(rest) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return parse_many(rest, method),
        Err(_) => return Err(Fault::Malformed("its head cannot be read")),
    };
    let found = read(&answer, rest, length, method)?;
    drop(rest.split_to(length));
    Ok(Some(found))
}

fn parse_many(rest: &mut BytesMut, method: &Method) -> Result<Option<(Head, bool)>, Fault> {
    let mut many = vec![httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut many);
    let length = match answer.parse(rest) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Fault::Malformed("its head cannot be read")),
    };
    let found = read(&answer, rest, length, method)?;
    drop(rest.split_to(length));
    Ok(Some(found))
}

fn read(
    answer: &httparse::Response<'_, '_>,
    from: &[u8],
    length: usize,
    method: &Method,
) -> Result<(Head, bool), Fault> {
    let malformed = |why| Fault::Malformed(why);
    let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or_else(|| malformed("its status is not a number of at least 100"))?;
    // One copy of the head, which all values share.
    let bytes = Bytes::copy_from_slice(&from[..length]);
    let start = from.as_ptr() as usize;
    let version = if answer.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let mut headers = HeaderMap::with_capacity(answer.headers.len() + 4);
    let (mut of_length, mut chunked, mut coded): (Option<u64>, bool, bool) = (None, false, false);
    let mut keep = version == Version::HTTP_11;
    for header in answer.headers.iter() {
        let at = header.value.as_ptr() as usize - start;
        let value = HeaderValue::from_maybe_shared(bytes.slice(at..at + header.value.len()))
            .map_err(|_| malformed("a header's value has forbidden characters"))?;
        let name = header.name;
        if name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).unwrap_or_default();
            let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
            let given = text.parse().ok().filter(|_| is_number);
            let given = given.ok_or_else(|| malformed("its Content-Length is not a number"))?;
            if of_length.is_some_and(|before| before != given) {
                return Err(malformed("it has several Content-Length headers"));
            }
            of_length = Some(given);
            continue;
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            if coded || !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err(malformed("its Transfer-Encoding is not chunked"));
            }
            (coded, chunked) = (true, true);
            continue;
        }
        if name.eq_ignore_ascii_case("connection") {
            for word in header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if word.eq_ignore_ascii_case(b"close") {
                    keep = false;
                } else if word.eq_ignore_ascii_case(b"keep-alive") {
                    keep = true;
                }
            }
        }
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| malformed("a header's name is invalid"))?;
        headers.append(name, value);
    }
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(malformed("it switches protocols"));
    }
    let empty = status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || *method == Method::HEAD;
    let framing = match (empty, chunked, of_length) {
        (true, ..) => Framing::Done,
        // Both say something of the same: who is right cannot be known (RFC 9112, 6.3).
        (false, true, Some(_)) => return Err(malformed("it has both a Content-Length and chunks")),
        (false, true, None) => Framing::Chunked(ChunkDecoder::new()),
        (false, false, Some(length)) => Framing::Length(length),
        (false, false, None) => {
            keep = false;
            Framing::UntilClose
        }
    };
    if let Some(length) = of_length.filter(|_| !status.is_informational()) {
        headers.insert(hyper::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok((Head { status, headers, keep, framing }, status.is_informational()))
}

/// Method by which the end of an HTTP body is determined.
#[derive(Debug)]
pub(crate) enum Framing {
    /// Ended body: the message has no body, or the body has been read completely.
    Done,
    /// Body of a known length; the value is the number of bytes that have not been read.
    Length(u64),
    /// Body in the chunked transfer coding, which marks the end.
    Chunked(ChunkDecoder),
    /// Body that ends when the connection is closed.
    UntilClose,
}

/// Result of one step of reading a body: some data, no data yet, or the end.
pub(super) enum BodyPart {
    Data(Bytes),
    Nothing,
    End,
}

/// Extracts the body's data from the bytes in `read`; bytes after the body's end are appended to `rest`.
pub(super) fn take_from(framing: &mut Framing, read: &[u8], rest: &mut BytesMut) -> Result<BodyPart, &'static str> {
    if read.is_empty() {
        return Ok(BodyPart::End);
    }
    let data = match framing {
        Framing::Chunked(chunked) => {
            let mut data = Vec::with_capacity(read.len());
            let used = chunked.decode(read, &mut data)?;
            rest.extend_from_slice(&read[used..]);
            if chunked.is_done() {
                *framing = Framing::Done;
            }
            Bytes::from(data)
        }
        Framing::Length(left) => {
            let here = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
            *left -= here as u64;
            rest.extend_from_slice(&read[here..]);
            Bytes::copy_from_slice(&read[..here])
        }
        Framing::UntilClose => Bytes::copy_from_slice(read),
        Framing::Done => return Ok(BodyPart::End),
    };
    Ok(if data.is_empty() { BodyPart::Nothing } else { BodyPart::Data(data) })
}

/// Removes the body's data from the front of `rest`, which has bytes read earlier, and returns them.
pub(super) fn take(framing: &mut Framing, rest: &mut BytesMut) -> Result<Bytes, &'static str> {
    let read = std::mem::take(rest);
    Ok(match framing {
        Framing::Length(left) => {
            let here = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
            *left -= here as u64;
            let mut read = read;
            let data = read.split_to(here);
            *rest = read;
            data.freeze()
        }
        _ => match take_from(framing, &read, rest)? {
            BodyPart::Data(data) => data,
            BodyPart::Nothing | BodyPart::End => Bytes::new(),
        },
    })
}

/// Maximum number of hexadecimal digits of a chunk's size.
const MAX_DIGITS: u8 = 15;
/// Maximum size of all chunk extensions and trailers of a body together, in bytes.
const MAX_EXTRA: u32 = 16 << 10;

/// Position of the decoder within the chunked transfer coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Position within the size of a chunk; the value is the number of digits read so far.
    Size(u8),
    /// Position within the extension text after the size of a chunk, which is ignored.
    Extension,
    /// Position before the line feed that ends the line with a chunk's size.
    SizeEnd,
    /// Position before or within the data of a chunk.
    Data,
    /// Position before the carriage return after a chunk's data.
    DataEnd,
    /// Position before the line feed after a chunk's data.
    DataEndLine,
    /// Position before a trailer line, or before the empty line that ends the body.
    TrailerStart,
    /// Position within a trailer line.
    Trailer,
    /// Position before the line feed that ends the body.
    End,
    /// Position after the end of the body.
    Done,
}

/// Decoder of the chunked transfer coding of HTTP/1.1.
#[derive(Debug)]
pub(crate) struct ChunkDecoder {
    state: State,
    /// Number of bytes of the current chunk that have not been read.
    left: u64,
    /// Total size of the chunk extensions and trailers read so far, in bytes.
    extra: u32,
}

impl ChunkDecoder {
    pub(crate) fn new() -> Self {
        Self { state: State::Size(0), left: 0, extra: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Decodes bytes of a chunked body from `input` and appends the data to `output`. Returns the number of bytes of
    /// `input` that belong to the body.
    ///
    /// # Errors
    /// A text that describes the violation of the coding.
    pub(crate) fn decode(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<usize, &'static str> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if self.state == State::Data {
                let here = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len() - at);
                output.extend_from_slice(&input[at..at + here]);
                at += here;
                self.left -= here as u64;
                if self.left == 0 {
                    self.state = State::DataEnd;
                }
                continue;
            }
            self.state = self.step(input[at])?;
            at += 1;
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<State, &'static str> {
        let extra = |this: &mut Self, next| {
            this.extra += 1;
            if this.extra > MAX_EXTRA { Err("there is too much data besides its chunks") } else { Ok(next) }
        };
        match (self.state, byte) {
            (State::Size(digits), _) if byte.is_ascii_hexdigit() => {
                if digits == MAX_DIGITS {
                    return Err("a chunk's size has too many digits");
                }
                self.left = self.left << 4 | u64::from((byte as char).to_digit(16).unwrap_or(0));
                Ok(State::Size(digits + 1))
            }
            (State::Size(0), _) => Err("a chunk has no size"),
            (State::Size(_) | State::Extension, b'\r') => Ok(State::SizeEnd),
            (State::Size(_), b';' | b' ' | b'\t') => extra(self, State::Extension),
            (State::Size(_), _) => Err("a chunk's size is not a number"),
            (State::Extension, b'\n') => Err("a chunk's size ends in a bare line feed"),
            (State::Extension, _) => extra(self, State::Extension),
            (State::SizeEnd, b'\n') => Ok(if self.left == 0 { State::TrailerStart } else { State::Data }),
            (State::DataEnd, b'\r') => Ok(State::DataEndLine),
            (State::DataEndLine, b'\n') => {
                self.left = 0;
                Ok(State::Size(0))
            }
            (State::TrailerStart, b'\r') => Ok(State::End),
            (State::TrailerStart | State::Trailer, b'\n') if self.state == State::Trailer => Ok(State::TrailerStart),
            (State::TrailerStart | State::Trailer, _) => extra(self, State::Trailer),
            (State::End, b'\n') => Ok(State::Done),
            _ => Err("a chunk does not end where it should"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<(Head, bool)>, Fault> {
        parse(&mut BytesMut::from(text), &Method::POST)
    }

    #[test]
    fn heads() {
        let (head, interim) =
            parsed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello").expect("http").expect("whole");
        assert!(!interim && head.keep && matches!(head.framing, Framing::Length(5)));
        assert_eq!(head.headers["x-a"], "b");
        let (head, _) = parsed("HTTP/1.0 200 OK\r\n\r\n").expect("http").expect("whole");
        assert!(!head.keep && matches!(head.framing, Framing::UntilClose));
        let (head, _) = parsed("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nconnection: x, Close\r\n\r\n")
            .expect("http")
            .expect("whole");
        assert!(!head.keep && matches!(head.framing, Framing::Chunked(_)));
        assert!(parsed("HTTP/1.1 100 Continue\r\n\r\n").expect("http").expect("whole").1);
        assert!(parsed("HTTP/1.1 200 OK\r\nContent-").expect("http").is_none());
        let many: String = (0..100).map(|at| format!("x-{at}: y\r\n")).collect();
        let (head, _) =
            parsed(&format!("HTTP/1.1 200 OK\r\n{many}content-length: 0\r\n\r\n")).expect("http").expect("whole");
        assert_eq!(head.headers.len(), 101);
    }

    #[test]
    fn what_could_mean_two_things_is_refused() {
        for bad in [
            "content-length: 1\r\ncontent-length: 2",
            "content-length: 1, 1",
            "content-length: +1",
            "content-length: -1",
            "content-length:",
            "content-length: 1\r\ntransfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: identity",
            "a b: c",
        ] {
            assert!(parsed(&format!("HTTP/1.1 200 OK\r\n{bad}\r\n\r\n")).is_err(), "{bad}");
        }
        for bad in ["garbage garbage\r\n\r\n", "HTTP/1.1 99 x\r\n\r\n", "HTTP/1.1 101 x\r\n\r\n", "SSH-2.0-x\r\n\r\n"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    const BODY: &[u8] = b"5\r\nhello\r\n1;x=y\r\n \r\n00A\r\n0123456789\r\n0\r\nX: y\r\n\r\nmore";

    #[test]
    fn however_it_is_cut() {
        for cut in 1..BODY.len() {
            let (mut chunked, mut output, mut taken) = (ChunkDecoder::new(), Vec::new(), 0);
            for piece in BODY.chunks(cut) {
                taken += chunked.decode(piece, &mut output).expect("well formed");
            }
            assert!(chunked.is_done());
            assert_eq!((&*output, taken), (&b"hello 0123456789"[..], BODY.len() - 4), "pieces of {cut}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for bad in [
            &b"x\r\n"[..],
            b"\r\n",
            b"5\nhello",
            b"5\r\nhelloo\r\n",
            b"5\r\nhello\n",
            b"5;a\n",
            b"ffffffffffffffff\r\n",
            b"-1\r\n",
            b"0x5\r\n",
        ] {
            let text = String::from_utf8_lossy(bad);
            assert!(ChunkDecoder::new().decode(bad, &mut Vec::new()).is_err(), "{text:?}");
        }
        let long = [b"1;".as_slice(), &vec![b'x'; 20 << 10]].concat();
        assert!(ChunkDecoder::new().decode(&long, &mut Vec::new()).is_err());
    }
}
