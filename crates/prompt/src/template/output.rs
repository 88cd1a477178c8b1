//! What a template writes, beside an earlier text that most of it repeats.

use std::io::{self, Write};

/// Bytes to write that are not in the earlier text, at first.
const ROOM: usize = 4096;

/// A text that begins as an earlier one does, as far as it does.
pub(super) struct Output<'t> {
    earlier: &'t [u8],
    /// How many bytes are the same so far.
    same: usize,
    /// What comes after these.
    rest: Vec<u8>,
}

impl<'t> Output<'t> {
    pub(super) fn after(earlier: &'t str) -> Self {
        Self { earlier: earlier.as_bytes(), same: 0, rest: Vec::new() }
    }

    /// The whole text, and how many bytes of it are those of the earlier one.
    pub(super) fn text(self) -> Option<(String, usize)> {
        let text = if self.same == 0 { self.rest } else { [&self.earlier[..self.same], &self.rest].concat() };
        Some((String::from_utf8(text).ok()?, self.same))
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut new = bytes;
        if self.rest.is_empty() {
            let known = &self.earlier[self.same..];
            let same = if known.starts_with(bytes) { bytes.len() } else { crate::turns::common(known, bytes) };
            self.same += same;
            new = &bytes[same..];
            if !new.is_empty() {
                self.rest.reserve(ROOM.max(new.len()));
            }
        }
        self.rest.extend_from_slice(new);
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
        for (text, same) in
            [("", 0), ("abc", 3), ("abcdef", 6), ("abcdefgh", 6), ("abxdef", 2), ("x", 0), ("abcdeg", 5)]
        {
            for cut in 1..=text.len().max(1) {
                let mut output = Output::after("abcdef");
                for piece in text.as_bytes().chunks(cut) {
                    output.write_all(piece).unwrap();
                }
                assert_eq!(output.text(), Some((text.to_owned(), same)), "{text} in pieces of {cut}");
            }
        }
    }
}
