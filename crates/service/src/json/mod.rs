//! JSON reader for queries, which makes one pass over the bytes and parses numbers directly into the caller's memory.
//!
//! A query is mostly one long list of small integers, and parsing it is most of the work of answering. A general parser
//! examines one byte at a time. This reader finds the ends of numbers in 64 bytes at once, and parses each number from
//! eight bytes at once (Lemire's SWAR method). It takes 4 ns per token, where serde_json takes 12, simd-json 13 and
//! sonic-rs 16. Validation is as strict as in general parsers: invalid JSON is refused with [`Refusal::malformed`], a
//! value of another type with [`Refusal::wrong_type`], and unknown members are skipped but must be valid JSON.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::answer::Refusal;

/// Maximum nesting depth of a value that is skipped.
const DEPTH: usize = 64;

/// Maximum number of hashes in a list, as many as the blocks in a prompt of 16 million tokens.
const MOST_HASHES: usize = 1 << 20;

type Result<T> = std::result::Result<T, Refusal>;

/// Reader of a JSON document, with its current position.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Checks that only white space remains.
    pub(crate) fn end(mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.malformed("there is text after the end of the document")),
        }
    }

    /// Reads an object, and calls `member` with each key; `member` must read the value. `what` names the object in
    /// error messages.
    pub(crate) fn object(&mut self, what: &str, mut member: impl FnMut(&mut Self, &str) -> Result<()>) -> Result<()> {
        self.open(b'{', what, "an object")?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.malformed("expected a key in quotes"));
            }
            let key = self.text()?;
            if !self.take(b':') {
                return Err(self.malformed("expected a colon"));
            }
            member(self, &key)?;
            if !self.more(b'}')? {
                return Ok(());
            }
        }
    }

    /// Reads an array, and calls `item` with each index; `item` must read the value. `what` names the array in error
    /// messages.
    pub(crate) fn array(&mut self, what: &str, mut item: impl FnMut(&mut Self, usize) -> Result<()>) -> Result<()> {
        self.open(b'[', what, "an array")?;
        if self.take(b']') {
            return Ok(());
        }
        for at in 0.. {
            item(self, at)?;
            if !self.more(b']')? {
                break;
            }
        }
        Ok(())
    }

    /// Reads a list of integers from 0 to 2³²-1, and appends them to `into`. `what` names the list in error messages.
    pub(crate) fn tokens(&mut self, what: &str, into: &mut Vec<u32>) -> Result<()> {
        self.open(b'[', what, "an array")?;
        if self.take(b']') {
            return Ok(());
        }
        // Five digits and a comma are usual; an item takes at least two bytes.
        into.reserve(((self.bytes.len() - self.at) / 6).min(1 << 20));
        loop {
            self.at = usual_tokens(self.bytes, self.at, into);
            self.space();
            let (value, digits) = self.short_digits();
            if digits == 0 || value > u64::from(u32::MAX) || self.goes_on(digits) {
                return Err(self.other(what, "a list, each item an integer from 0 to 4294967295"));
            }
            self.at += digits;
            into.push(value as u32);
            if self.bytes.get(self.at) == Some(&b',') {
                self.at += 1;
            } else if !self.more(b']')? {
                return Ok(());
            }
        }
    }

    /// Reads a list of 64-bit integers, signed or unsigned, and appends them to `into`; negative integers as their
    /// two's complement. `what` names the list in error messages.
    pub(crate) fn hashes(&mut self, what: &str, into: &mut Vec<u64>) -> Result<()> {
        let before = into.len();
        self.array(what, |reader, _| {
            if into.len() - before == MOST_HASHES {
                let message = format!("{what} must have at most {MOST_HASHES} hashes");
                return Err(Refusal::invalid("too_many_hashes", message));
            }
            into.push(reader.hash(what)?);
            Ok(())
        })
    }

    fn hash(&mut self, what: &str) -> Result<u64> {
        const WANTED: &str = "a list, each item an integer from -9223372036854775808 to 18446744073709551615";
        self.space();
        let start = self.at;
        let negative = self.bytes.get(start) == Some(&b'-');
        self.at += usize::from(negative);
        match self.digits() {
            Some(value) if !negative => Ok(value),
            Some(value) if value <= 1 << 63 => Ok(value.wrapping_neg()),
            _ => {
                self.at = start;
                Err(self.other(what, WANTED))
            }
        }
    }

    /// Reads an unsigned 64-bit integer. `what` names it in error messages.
    pub(crate) fn unsigned(&mut self, what: &str) -> Result<u64> {
        self.space();
        self.digits().ok_or_else(|| self.other(what, "an integer from 0 to 18446744073709551615"))
    }

    /// Reads a string. `what` names it in error messages.
    pub(crate) fn string(&mut self, what: &str) -> Result<Cow<'a, str>> {
        match self.peek() {
            Some(b'"') => self.text(),
            _ => Err(self.other(what, "a string")),
        }
    }

    /// Reads a string, or null as `None`. `what` names the value in error messages.
    pub(crate) fn string_or_null(&mut self, what: &str) -> Result<Option<Cow<'a, str>>> {
        match self.peek() {
            Some(b'"') => self.text().map(Some),
            Some(b'n') => self.word("null").map(|()| None),
            _ => Err(self.other(what, "a string or null")),
        }
    }

    /// Reads a boolean. `what` names it in error messages.
    pub(crate) fn boolean(&mut self, what: &str) -> Result<bool> {
        match self.peek() {
            Some(b't') => self.word("true").map(|()| true),
            Some(b'f') => self.word("false").map(|()| false),
            _ => Err(self.other(what, "true or false")),
        }
    }

    /// Reads a null if it is the next value. Returns true if it was.
    pub(crate) fn null(&mut self) -> Result<bool> {
        if self.peek() != Some(b'n') {
            return Ok(false);
        }
        self.word("null").map(|()| true)
    }

    /// True if the next value is a string.
    pub(crate) fn is_string(&mut self) -> bool {
        self.peek() == Some(b'"')
    }

    /// Skips a value of any type, and checks that it is valid JSON.
    pub(crate) fn skip(&mut self) -> Result<()> {
        self.skip_within(DEPTH)
    }

    fn skip_within(&mut self, depth: usize) -> Result<()> {
        match self.peek() {
            Some(b'{' | b'[') if depth == 0 => Err(self.malformed("values are nested too deeply")),
            Some(b'{') => self.object("", |reader, _| reader.skip_within(depth - 1)),
            Some(b'[') => self.array("", |reader, _| reader.skip_within(depth - 1)),
            Some(b'"') => self.text().map(drop),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.malformed("a value is missing")),
            None => Err(self.ended()),
        }
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn open(&mut self, bracket: u8, what: &str, wanted: &str) -> Result<()> {
        if self.take(bracket) { Ok(()) } else { Err(self.other(what, wanted)) }
    }

    /// Reads the character after an item of an array or object. Returns true for a comma, which another item follows,
    /// and false for the closing bracket `close`.
    fn more(&mut self, close: u8) -> Result<bool> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            Some(_) => Err(self.malformed("a comma or the end of the list is missing")),
            None => Err(self.ended()),
        }
    }

    fn word(&mut self, word: &str) -> Result<()> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(());
        }
        Err(self.malformed("a value is missing"))
    }

    /// Reads an unsigned integer of at most 64 bits; `None` if the next value is anything else.
    fn digits(&mut self) -> Option<u64> {
        let rest = &self.bytes[self.at..];
        let digits = rest.iter().take(21).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || self.goes_on(digits) {
            return None;
        }
        let mut value = 0u64;
        let mut left = &rest[..digits];
        while let Some((eight, more)) = left.split_first_chunk::<8>() {
            value = value.checked_mul(100_000_000)?.checked_add(up_to_eight(u64::from_le_bytes(*eight)).0)?;
            left = more;
        }
        for byte in left {
            value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
        }
        self.at += digits;
        Some(value)
    }

    /// Parses up to 11 digits at the current position. Returns their number value and the count of digits.
    #[inline]
    fn short_digits(&self) -> (u64, usize) {
        let rest = &self.bytes[self.at..];
        let (mut value, mut digits) = match rest.first_chunk::<8>() {
            Some(eight) => up_to_eight(u64::from_le_bytes(*eight)),
            None => (0, 0),
        };
        if matches!(digits, 0 | 8) {
            let more = rest[digits..].iter().take(11 - digits).take_while(|byte| byte.is_ascii_digit());
            for byte in more {
                value = value * 10 + u64::from(byte - b'0');
                digits += 1;
            }
        }
        (value, digits)
    }

    /// True if the next `digits` digits are not a complete integer, because the byte after them continues the number or
    /// because of a leading zero.
    #[inline]
    fn goes_on(&self, digits: usize) -> bool {
        let leading_zero = digits > 1 && self.bytes[self.at] == b'0';
        leading_zero || matches!(self.bytes.get(self.at + digits), Some(b'0'..=b'9' | b'.' | b'e' | b'E'))
    }

    /// Skips a number of any form, and checks that it is valid JSON.
    fn number(&mut self) -> Result<()> {
        self.at += usize::from(self.bytes[self.at] == b'-');
        let whole = self.count_digits();
        let leading_zero = whole > 1 && self.bytes[self.at - whole] == b'0';
        if whole == 0 || leading_zero {
            return Err(self.malformed("invalid number"));
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            if self.count_digits() == 0 {
                return Err(self.malformed("a number has no digits after its point"));
            }
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.bytes.get(self.at), Some(b'+' | b'-')));
            if self.count_digits() == 0 {
                return Err(self.malformed("a number has no digits in its exponent"));
            }
        }
        Ok(())
    }

    fn count_digits(&mut self) -> usize {
        let count = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count
    }

    /// Reads the rest of a string, after its opening quote.
    fn text(&mut self) -> Result<Cow<'a, str>> {
        let start = self.at + 1;
        let Some(length) = self.bytes[start..].iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) else {
            return Err(self.ended());
        };
        let plain = &self.bytes[start..start + length];
        if self.bytes[start + length] == b'"' {
            let text = std::str::from_utf8(plain).map_err(|_| self.malformed("a string is not valid UTF-8"))?;
            self.at = start + length + 1;
            return Ok(Cow::Borrowed(text));
        }
        // Escapes are rare: names of models and adapters have none.
        let mut rest = serde_json::Deserializer::from_slice(&self.bytes[self.at..]).into_iter::<String>();
        match rest.next() {
            Some(Ok(text)) => {
                self.at += rest.byte_offset();
                Ok(Cow::Owned(text))
            }
            _ => Err(self.malformed("a string has a control character, an invalid escape or no closing quote")),
        }
    }

    fn malformed(&self, why: &str) -> Refusal {
        Refusal::malformed(format!("the body is not JSON: {why}, at byte {}", self.at))
    }

    fn ended(&self) -> Refusal {
        Refusal::malformed(format!("the body is not JSON: it ends too early, at byte {}", self.bytes.len()))
    }

    /// Makes the refusal of a value that is missing or has another type than `wanted`.
    fn other(&mut self, what: &str, wanted: &str) -> Refusal {
        let start = self.at;
        match self.skip() {
            Ok(()) => Refusal::wrong_type(format!("{what} must be {wanted}, at byte {start}")),
            Err(malformed) => malformed,
        }
    }
}

/// Parses integers of at most eight digits, each followed by a comma and optionally one space, and appends them to
/// `into`. Begins at position `start`, and returns the position of the first integer that has another form.
fn usual_tokens(bytes: &[u8], start: usize, into: &mut Vec<u32>) -> usize {
    let mut at = start;
    let mut base = start;
    // Eight bytes can be read from any position in the block.
    while let Some(block) = bytes.get(base..).and_then(|rest| rest.first_chunk::<72>()) {
        let mut stops = 0;
        for (number, eight) in block[..64].as_chunks::<8>().0.iter().enumerate() {
            stops |= others_of(u64::from_le_bytes(*eight)) << (8 * number);
        }
        while stops != 0 {
            let stop = base + stops.trailing_zeros() as usize;
            stops &= stops - 1;
            let digits = stop - at;
            if digits == 0 && at > start && bytes[stop] == b' ' && bytes[at - 1] == b',' {
                at += 1;
                continue;
            }
            let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) else { return at };
            let leading_zero = digits > 1 && eight[0] == b'0';
            if !matches!(digits, 1..=8) || bytes[stop] != b',' || leading_zero {
                return at;
            }
            into.push(number_of(u64::from_le_bytes(*eight) ^ (0x30 * ONES), digits) as u32);
            at = stop + 1;
        }
        base += 64;
    }
    at
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// Computes a bit mask that marks which of eight bytes are not decimal digits.
#[inline]
fn others_of(bytes: u64) -> u64 {
    let nibbles = bytes ^ (0x30 * ONES);
    // Without their high bits no byte carries into the next.
    let others = ((nibbles & (0x7f * ONES)) + 0x76 * ONES) | nibbles;
    // The multiplication gathers the eight high bits in the highest byte.
    ((others >> 7) & ONES).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// Computes the number formed by the first (lowest) `digits` of eight digit values. `digits` is at least 1.
#[inline]
fn number_of(nibbles: u64, digits: usize) -> u64 {
    // As if zeros stood in front.
    let value = nibbles << (64 - 8 * digits);
    let value = value.wrapping_mul(10).wrapping_add(value >> 8);
    let low = (value & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = ((value >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

/// Parses the leading decimal digits of eight bytes; the first byte is the lowest of `bytes`. Returns their number value
/// and the count of digits.
#[inline]
fn up_to_eight(bytes: u64) -> (u64, usize) {
    let digits = others_of(bytes).trailing_zeros().min(8) as usize;
    if digits == 0 {
        return (0, 0);
    }
    (number_of(bytes ^ (0x30 * ONES), digits), digits)
}
