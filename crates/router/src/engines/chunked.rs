//! The chunked transfer coding of HTTP/1.1, as engines send it.

/// Digits of a chunk's size, bytes of an extension, bytes of all trailers at most.
const MAX_DIGITS: u8 = 15;
const MAX_EXTRA: u32 = 16 << 10;

/// Place in the coding that has been reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Digits of a chunk size, and how many were read.
    Size(u8),
    /// The text that follows a size.
    Extension,
    /// The place after a size's carriage return.
    SizeEnd,
    /// The data of a chunk.
    Data,
    /// The place after a chunk's data.
    DataEnd,
    /// The place after the carriage return behind data.
    DataEndLine,
    /// The beginning of a trailer's line.
    TrailerStart,
    /// The inside of a trailer's line.
    Trailer,
    /// The place after the last carriage return.
    End,
    /// The end of the whole body.
    Done,
}

/// Takes the chunks off a body.
#[derive(Debug)]
pub(crate) struct ChunkDecoder {
    state: State,
    /// Bytes of the chunk that are still to come.
    left: u64,
    /// Bytes of extensions and trailers so far.
    extra: u32,
}

impl ChunkDecoder {
    pub(crate) fn new() -> Self {
        Self { state: State::Size(0), left: 0, extra: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Appends the data in `input` to `output`. Returns how much of `input` belongs to this body.
    ///
    /// # Errors
    /// What is wrong with the coding.
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
