//! Framing of an answer's body: the position of its end, and the bytes that belong to it.

use bytes::{Bytes, BytesMut};

use super::chunked::ChunkDecoder;

/// Way in which the end of a body is known.
#[derive(Debug)]
pub(crate) enum Framing {
    /// No body, or its end.
    Done,
    /// Number of bytes still to come.
    Length(u64),
    /// The body ends with its last chunk.
    Chunked(ChunkDecoder),
    /// The body ends when the connection does.
    UntilClose,
}

/// A piece of a body.
pub(super) enum BodyPart {
    Data(Bytes),
    Nothing,
    End,
}

/// Returns the part of `read` that belongs to the body; the bytes after its end go to `rest`.
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

/// Takes the body's part of `rest`, which was read already.
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
