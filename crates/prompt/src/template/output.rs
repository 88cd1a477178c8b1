//! The output of a template, beside an earlier text that most of it repeats.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::allowance;
use crate::prompt_failure::PromptFailure;
use crate::rope::Rope;

/// The least room for bytes that are not in the earlier text.
const ROOM: usize = 4096;

/// Bytes of a text beyond which no more is written. No prompt of that length is looked at.
const LONGEST: usize = 32 << 20;

/// Writes from one look at the clock to the next.
const LOOK: usize = 64;

/// A text that begins as an earlier one does, as far as it does.
pub(super) struct Output<'t> {
    earlier: &'t Rope<u8>,
    /// Number of bytes that are the same so far.
    same: usize,
    /// The bytes after these.
    rest: Vec<u8>,
    /// Bytes to make room for at first.
    room: usize,
    /// Number of bytes written, for others to see.
    written: Arc<AtomicUsize>,
    /// Number of writes.
    writes: usize,
}

impl<'t> Output<'t> {
    /// `room`: bytes to make room for where the text is no longer that of the earlier one.
    pub(super) fn after(earlier: &'t Rope<u8>, room: usize) -> Self {
        Self { earlier, same: 0, rest: Vec::new(), room: room.max(ROOM), written: Arc::default(), writes: 0 }
    }

    pub(super) fn written(&self) -> &Arc<AtomicUsize> {
        &self.written
    }

    /// Returns how many bytes are those of the earlier text, and those that follow.
    pub(super) fn text(self) -> (usize, Vec<u8>) {
        (self.same, self.rest)
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        let why_not = match () {
            () if self.same + self.rest.len() + bytes.len() > LONGEST => Some(PromptFailure::TooLong),
            () if self.writes.is_multiple_of(LOOK) && allowance::is_late() => Some(PromptFailure::TookTooLong),
            () => None,
        };
        if let Some(why_not) = why_not {
            allowance::fail(why_not);
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut new = bytes;
        if self.rest.is_empty() {
            let same = self.earlier.common(self.same, bytes);
            self.same += same;
            new = &bytes[same..];
            if !new.is_empty() {
                self.rest.reserve(self.room.max(new.len()));
            }
        }
        self.rest.extend_from_slice(new);
        self.written.store(self.same + self.rest.len(), Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_it_is_written() {
        let earlier = Rope::from(b"abc".to_vec()).join_slice(3, b"def");
        for (text, same) in
            [("", 0), ("abc", 3), ("abcdef", 6), ("abcdefgh", 6), ("abxdef", 2), ("x", 0), ("abcdeg", 5)]
        {
            for cut in 1..=text.len().max(1) {
                let mut output = Output::after(&earlier, 0);
                for piece in text.as_bytes().chunks(cut) {
                    output.write_all(piece).unwrap();
                }
                assert_eq!(output.written().load(Relaxed), text.len());
                assert_eq!(output.text(), (same, text.as_bytes()[same..].to_vec()), "{text} in pieces of {cut}");
            }
        }
    }
}
