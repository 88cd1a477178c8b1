//! Encoding of numbers as bytes, and a reader of bytes, shared by all binary formats of the project.
//!
//! Numbers of fixed width are little endian. Varints (numbers of variable length) have seven bits in each byte, the
//! lowest bits first; the highest bit is set in every byte but the last.

/// Reason why bytes cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    /// The bytes end before the value is complete.
    End,
    /// A number has more bits than allowed.
    TooLarge,
    /// A text is not UTF-8.
    Utf8,
    /// Bytes remain after the last value.
    Surplus,
}

impl From<ReadError> for &'static str {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::End => "it ends too early",
            ReadError::TooLarge => "a number in it is too large",
            ReadError::Utf8 => "a text in it is not UTF-8",
            ReadError::Surplus => "there is more in it than it says",
        }
    }
}

impl From<ReadError> for String {
    fn from(error: ReadError) -> Self {
        <&str>::from(error).to_owned()
    }
}

/// Appends a number as a varint: in one byte for each seven bits, with as few bytes as possible.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends 64-bit numbers in little-endian order.
#[inline]
pub fn put_words(out: &mut Vec<u8>, numbers: impl IntoIterator<Item = u64>) {
    numbers.into_iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// Appends the length of a text in bytes as a varint, and then the text.
#[inline]
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Encodes the difference `to` - `from` as an unsigned number, so that small differences of either sign give small
/// numbers.
#[must_use]
pub fn zigzag(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from) as i64;
    (difference << 1 ^ difference >> 63) as u64
}

/// Reverses [`zigzag`]: returns the number whose encoded difference from `from` is `coded`.
#[must_use]
pub fn from_zigzag(from: u64, coded: u64) -> u64 {
    from.wrapping_add(coded >> 1 ^ (coded & 1).wrapping_neg())
}

/// Cursor over bytes, from whose beginning values are read one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// Reads a varint (a number of variable length).
    ///
    /// # Errors
    /// [`ReadError::End`] if the bytes end before; [`ReadError::TooLarge`] if the number has more than 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, ReadError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(ReadError::TooLarge)
    }

    /// Reads a varint (a number of variable length) of at most 32 bits.
    ///
    /// # Errors
    /// [`ReadError::End`] if the bytes end before; [`ReadError::TooLarge`] if the number has more than 32 bits.
    #[inline]
    pub fn small(&mut self) -> Result<u32, ReadError> {
        self.varint()?.try_into().map_err(|_| ReadError::TooLarge)
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// [`ReadError::End`] if no bytes remain.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, ReadError> {
        let (byte, rest) = self.0.split_first().ok_or(ReadError::End)?;
        self.0 = rest;
        Ok(*byte)
    }

    /// Reads `count` bytes.
    ///
    /// # Errors
    /// [`ReadError::End`] if fewer bytes remain.
    #[inline]
    pub fn bytes(&mut self, count: u64) -> Result<&'a [u8], ReadError> {
        let taken = usize::try_from(count).ok().and_then(|count| self.0.split_at_checked(count));
        let (bytes, rest) = taken.ok_or(ReadError::End)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads a little-endian number of 64 bits.
    ///
    /// # Errors
    /// [`ReadError::End`] if fewer than eight bytes remain.
    #[inline]
    pub fn word(&mut self) -> Result<u64, ReadError> {
        let (word, rest) = self.0.split_first_chunk().ok_or(ReadError::End)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// Reads `count` little-endian numbers of 64 bits.
    ///
    /// # Errors
    /// [`ReadError::End`] if too few bytes remain.
    #[inline]
    pub fn words(&mut self, count: usize) -> Result<impl ExactSizeIterator<Item = u64> + use<'a>, ReadError> {
        let (words, _) = self.bytes((count as u64).checked_mul(8).ok_or(ReadError::TooLarge)?)?.as_chunks();
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)))
    }

    /// Reads the number of items that follow, as a varint, where each item has at least `bytes` bytes.
    ///
    /// # Errors
    /// [`ReadError::End`] if too few bytes remain for that many items.
    #[inline]
    pub fn count(&mut self, bytes: usize) -> Result<usize, ReadError> {
        let count = usize::try_from(self.varint()?).ok();
        let fits = count.filter(|count| count.checked_mul(bytes).is_some_and(|all| all <= self.0.len()));
        fits.ok_or(ReadError::End)
    }

    /// Reads a text that is preceded by its length in bytes.
    ///
    /// # Errors
    /// [`ReadError::End`] if the bytes end before; [`ReadError::Utf8`] if the text is not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, ReadError> {
        let length = self.count(1)?;
        std::str::from_utf8(self.bytes(length as u64)?).map_err(|_| ReadError::Utf8)
    }

    /// True if no bytes remain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that all bytes have been read.
    ///
    /// # Errors
    /// [`ReadError::Surplus`] if bytes remain.
    pub fn end(&self) -> Result<(), ReadError> {
        if self.0.is_empty() { Ok(()) } else { Err(ReadError::Surplus) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_as_they_went_in() {
        let numbers = [0, 1, 127, 128, 300, 1 << 35, u64::MAX - 1, u64::MAX];
        let mut out = Vec::new();
        numbers.iter().for_each(|number| put_varint(&mut out, *number));
        put_text(&mut out, "ä");
        put_words(&mut out, numbers);
        let mut cursor = Cursor(&out);
        numbers.iter().for_each(|number| assert_eq!(cursor.varint(), Ok(*number)));
        assert_eq!((cursor.text(), cursor.word(), cursor.word()), (Ok("ä"), Ok(0), Ok(1)));
        assert_eq!(cursor.end(), Err(ReadError::Surplus));
        assert!(cursor.words(6).expect("six more").eq(numbers[2..].iter().copied()));
        assert_eq!((cursor.end(), cursor.varint()), (Ok(()), Err(ReadError::End)));
        for from in numbers {
            for to in numbers {
                assert_eq!(from_zigzag(from, zigzag(from, to)), to);
            }
        }
    }

    #[test]
    fn bytes_of_no_number_are_refused() {
        assert_eq!(Cursor(&[0xff; 11]).varint(), Err(ReadError::TooLarge));
        assert_eq!(Cursor(&[0xff, 0xff, 0xff, 0xff, 0x1f]).small(), Err(ReadError::TooLarge));
        assert_eq!(Cursor(&[0xff, 0xff, 0xff, 0xff, 0x0f]).small(), Ok(u32::MAX));
        assert_eq!(Cursor(&[3, 0, 0]).count(1), Err(ReadError::End));
        assert_eq!(Cursor(&[1, 0xff]).text(), Err(ReadError::Utf8));
        assert!(Cursor(&[0; 8]).words(usize::MAX).is_err());
    }
}
