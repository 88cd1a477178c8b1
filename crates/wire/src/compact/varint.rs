//! Numbers in as few bytes as they need: seven bits a byte, the lowest first.

use super::Malformed;

pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A difference: small ones of either sign are small numbers.
pub(super) fn zigzag(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from) as i64;
    (difference << 1 ^ difference >> 63) as u64
}

pub(super) fn from_zigzag(from: u64, coded: u64) -> u64 {
    from.wrapping_add(coded >> 1 ^ (coded & 1).wrapping_neg())
}

/// Bytes that are read from their beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
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
        Err(Malformed("a number has more than 64 bits"))
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (byte, rest) = self.0.split_first().ok_or(Malformed("it ends in the middle"))?;
        self.0 = rest;
        Ok(*byte)
    }

    pub(super) fn bytes(&mut self, count: u64) -> Result<&'a [u8], Malformed> {
        let count = usize::try_from(count).map_err(|_| Malformed("it ends in the middle"))?;
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Malformed("it ends in the middle"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn word(&mut self) -> Result<u64, Malformed> {
        let (word, rest) = self.0.split_first_chunk().ok_or(Malformed("it ends in the middle"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_as_they_went_in() {
        let numbers = [0, 1, 127, 128, 300, 1 << 35, u64::MAX - 1, u64::MAX];
        let mut out = Vec::new();
        numbers.iter().for_each(|number| put(&mut out, *number));
        let mut cursor = Cursor(&out);
        numbers.iter().for_each(|number| assert_eq!(cursor.number(), Ok(*number)));
        assert!(cursor.is_empty() && cursor.number().is_err());
        for from in numbers {
            for to in numbers {
                assert_eq!(from_zigzag(from, zigzag(from, to)), to);
            }
        }
        assert!(Cursor(&[0xff; 11]).number().is_err());
    }
}
