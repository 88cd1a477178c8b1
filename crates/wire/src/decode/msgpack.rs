//! Reader of MessagePack that decodes one header at a time, copies no data, and does not trust lengths in headers.
//!
//! A length is compared with the number of remaining bytes before memory is allocated. Skipping a value counts the
//! values still to be skipped instead of recursing. So neither huge lengths nor deep nesting are costly: each byte is
//! read once. Token lists are nearly all of a payload; `u32s` reads them in a simple loop, which is faster than the
//! per-value results of general MessagePack crates.

/// Fault in MessagePack data after which no further value can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MsgpackError {
    /// The bytes end inside a value.
    Cut,
    /// A value begins with the byte 0xc1, which MessagePack does not use.
    Reserved,
}

/// MessagePack value. For an array or a map only the header has been read, and the items follow in the payload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Value<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
    Extension,
}

impl Value<'_> {
    /// Returns the kind of the value, such as a map, as text for error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool => "a boolean",
            Self::Unsigned(_) | Self::Negative(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a string",
            Self::Bytes(_) => "bytes",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
            Self::Extension => "an extension",
        }
    }
}

/// Cursor over a payload. A copy of a cursor can be used to return to its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of bytes not read yet.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns the bytes between this cursor and a cursor further on in the same payload.
    pub(crate) fn until(&self, later: &Self) -> &'a [u8] {
        &self.rest[..self.rest.len() - later.rest.len()]
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], MsgpackError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(MsgpackError::Cut)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], MsgpackError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(MsgpackError::Cut)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn len8(&mut self) -> Result<usize, MsgpackError> {
        Ok(usize::from(u8::from_be_bytes(self.number()?)))
    }

    fn len16(&mut self) -> Result<usize, MsgpackError> {
        Ok(usize::from(u16::from_be_bytes(self.number()?)))
    }

    fn len32(&mut self) -> Result<usize, MsgpackError> {
        Ok(u32::from_be_bytes(self.number()?) as usize)
    }

    fn extension(&mut self, bytes: usize) -> Result<Value<'a>, MsgpackError> {
        // One more byte says which.
        self.take(1)?;
        self.take(bytes)?;
        Ok(Value::Extension)
    }

    /// Reads a value, or the header of an array or a map.
    #[inline]
    pub(crate) fn value(&mut self) -> Result<Value<'a>, MsgpackError> {
        let [first] = self.number()?;
        Ok(match first {
            0x00..=0x7f => Value::Unsigned(first.into()),
            0x80..=0x8f => Value::Map((first & 0x0f).into()),
            0x90..=0x9f => Value::Array((first & 0x0f).into()),
            0xa0..=0xbf => Value::Text(self.take((first & 0x1f).into())?),
            0xc0 => Value::Nil,
            0xc1 => return Err(MsgpackError::Reserved),
            0xc2 | 0xc3 => Value::Bool,
            0xc4 => self.len8().and_then(|n| self.take(n)).map(Value::Bytes)?,
            0xc5 => self.len16().and_then(|n| self.take(n)).map(Value::Bytes)?,
            0xc6 => self.len32().and_then(|n| self.take(n)).map(Value::Bytes)?,
            0xc7 => self.len8().and_then(|n| self.extension(n))?,
            0xc8 => self.len16().and_then(|n| self.extension(n))?,
            0xc9 => self.len32().and_then(|n| self.extension(n))?,
            0xca => Value::Float(f32::from_be_bytes(self.number()?).into()),
            0xcb => Value::Float(f64::from_be_bytes(self.number()?)),
            0xcc => Value::Unsigned(u8::from_be_bytes(self.number()?).into()),
            0xcd => Value::Unsigned(u16::from_be_bytes(self.number()?).into()),
            0xce => Value::Unsigned(u32::from_be_bytes(self.number()?).into()),
            0xcf => Value::Unsigned(u64::from_be_bytes(self.number()?)),
            0xd0 => signed(i8::from_be_bytes(self.number()?).into()),
            0xd1 => signed(i16::from_be_bytes(self.number()?).into()),
            0xd2 => signed(i32::from_be_bytes(self.number()?).into()),
            0xd3 => signed(i64::from_be_bytes(self.number()?)),
            0xd4..=0xd8 => self.extension(1 << (first - 0xd4))?,
            0xd9 => self.len8().and_then(|n| self.take(n)).map(Value::Text)?,
            0xda => self.len16().and_then(|n| self.take(n)).map(Value::Text)?,
            0xdb => self.len32().and_then(|n| self.take(n)).map(Value::Text)?,
            0xdc => Value::Array(self.len16()?),
            0xdd => Value::Array(self.len32()?),
            0xde => Value::Map(self.len16()?),
            0xdf => Value::Map(self.len32()?),
            0xe0..=0xff => Value::Negative(first.cast_signed().into()),
        })
    }

    /// Reads the key of a map entry; `None` if the key is not a string.
    pub(crate) fn key(&mut self) -> Result<Option<&'a [u8]>, MsgpackError> {
        let start = *self;
        if let Value::Text(key) = self.value()? {
            return Ok(Some(key));
        }
        *self = start;
        self.skip()?;
        Ok(None)
    }

    /// Skips one value, including all items of an array or a map.
    pub(crate) fn skip(&mut self) -> Result<(), MsgpackError> {
        let mut values = 1_u64;
        while values > 0 {
            values -= 1;
            values += match self.value()? {
                Value::Array(items) => items as u64,
                Value::Map(entries) => 2 * entries as u64,
                _ => 0,
            };
        }
        Ok(())
    }

    /// Reads unsigned 32-bit integers into `slots` until a value has another form. Returns the number of integers read.
    #[inline]
    pub(crate) fn u32s(&mut self, slots: &mut [u32]) -> usize {
        let mut rest = self.rest;
        let mut read = 0;
        'values: while read < slots.len() {
            // Most ids of most vocabularies are 16 bits wide: eight at once where there are eight in a row.
            if let (Some((eight, after)), Some((ids, _))) =
                (rest.split_first_chunk::<24>(), slots[read..].split_first_chunk_mut::<8>())
                && (0..8).fold(true, |all, i| all & (eight[3 * i] == 0xcd))
            {
                for (i, id) in ids.iter_mut().enumerate() {
                    *id = u16::from_be_bytes([eight[3 * i + 1], eight[3 * i + 2]]).into();
                }
                rest = after;
                read += 8;
                continue;
            }
            let soon = slots.len().min(read + 8);
            for slot in &mut slots[read..soon] {
                // Where ids of 16 and 32 bits mix, which comes next cannot be predicted: both are read, one is taken.
                if let Some(&[tag @ (0xcd | 0xce), a, b, c, d]) = rest.first_chunk::<5>() {
                    let wide = usize::from(tag == 0xce);
                    *slot = u32::from_be_bytes([a, b, c, d]) >> (16 * (1 - wide));
                    rest = &rest[3 + 2 * wide..];
                    read += 1;
                    continue;
                }
                let (value, after): (u32, _) = match *rest {
                    [0xcd, a, b, ref after @ ..] => (u16::from_be_bytes([a, b]).into(), after),
                    [0xce, a, b, c, d, ref after @ ..] => (u32::from_be_bytes([a, b, c, d]), after),
                    [small @ 0..=0x7f, ref after @ ..] => (small.into(), after),
                    [0xcc, a, ref after @ ..] => (a.into(), after),
                    _ => break 'values,
                };
                *slot = value;
                rest = after;
                read += 1;
            }
        }
        self.rest = rest;
        read
    }
}

fn signed(value: i64) -> Value<'static> {
    u64::try_from(value).map_or(Value::Negative(value), Value::Unsigned)
}
