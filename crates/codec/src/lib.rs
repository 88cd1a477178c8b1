//! Numbers as bytes, and the reader of bytes that all formats share.
//!
//! Numbers of fixed width are little endian; varints have seven bits in a byte, the lowest first, and the highest bit of
//! every byte but the last is set.

/// Reason why bytes cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    /// There are fewer bytes than there should be.
    End,
    /// A number has more bits than it may have.
    TooLarge,
    /// A text is not UTF-8.
    Utf8,
    /// Bytes are left at the end.
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

/// Appends a number in as few bytes as it needs.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends numbers of 64 bits.
#[inline]
pub fn put_words(out: &mut Vec<u8>, numbers: impl IntoIterator<Item = u64>) {
    numbers.into_iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// Appends a text behind its length.
#[inline]
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Codes the difference of two numbers so that small differences of either sign are small numbers.
#[must_use]
pub fn zigzag(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from) as i64;
    (difference << 1 ^ difference >> 63) as u64
}

/// Undoes [`zigzag`]: returns the number that has this coded difference from another.
#[must_use]
pub fn from_zigzag(from: u64, coded: u64) -> u64 {
    from.wrapping_add(coded >> 1 ^ (coded & 1).wrapping_neg())
}

/// Cursor that takes values from the beginning of bytes.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// Takes a varint.
    ///
    /// # Errors
    /// [`ReadError::End`], or [`ReadError::TooLarge`] if it has more than 64 bits.
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

    /// Takes a varint of 32 bits.
    ///
    /// # Errors
    /// [`ReadError::End`], or [`ReadError::TooLarge`] if it has more.
    #[inline]
    pub fn small(&mut self) -> Result<u32, ReadError> {
        self.varint()?.try_into().map_err(|_| ReadError::TooLarge)
    }

    /// Takes a byte.
    ///
    /// # Errors
    /// [`ReadError::End`].
    #[inline]
    pub fn byte(&mut self) -> Result<u8, ReadError> {
        let (byte, rest) = self.0.split_first().ok_or(ReadError::End)?;
        self.0 = rest;
        Ok(*byte)
    }

    /// Takes `count` bytes.
    ///
    /// # Errors
    /// [`ReadError::End`].
    #[inline]
    pub fn bytes(&mut self, count: u64) -> Result<&'a [u8], ReadError> {
        let taken = usize::try_from(count).ok().and_then(|count| self.0.split_at_checked(count));
        let (bytes, rest) = taken.ok_or(ReadError::End)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Takes a number of 64 bits.
    ///
    /// # Errors
    /// [`ReadError::End`].
    #[inline]
    pub fn word(&mut self) -> Result<u64, ReadError> {
        let (word, rest) = self.0.split_first_chunk().ok_or(ReadError::End)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// Takes `count` numbers of 64 bits.
    ///
    /// # Errors
    /// [`ReadError::End`].
    #[inline]
    pub fn words(&mut self, count: usize) -> Result<impl ExactSizeIterator<Item = u64> + use<'a>, ReadError> {
        let (words, _) = self.bytes((count as u64).checked_mul(8).ok_or(ReadError::TooLarge)?)?.as_chunks();
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)))
    }

    /// Takes the number of items that follow, of at least `bytes` bytes each.
    ///
    /// # Errors
    /// [`ReadError::End`] if fewer are left.
    #[inline]
    pub fn count(&mut self, bytes: usize) -> Result<usize, ReadError> {
        let count = usize::try_from(self.varint()?).ok();
        let fits = count.filter(|count| count.checked_mul(bytes).is_some_and(|all| all <= self.0.len()));
        fits.ok_or(ReadError::End)
    }

    /// Takes a text behind its length.
    ///
    /// # Errors
    /// [`ReadError::End`], or [`ReadError::Utf8`].
    pub fn text(&mut self) -> Result<&'a str, ReadError> {
        let length = self.count(1)?;
        std::str::from_utf8(self.bytes(length as u64)?).map_err(|_| ReadError::Utf8)
    }

    /// True if no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the reading: nothing may be left.
    ///
    /// # Errors
    /// [`ReadError::Surplus`] if bytes are left.
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
