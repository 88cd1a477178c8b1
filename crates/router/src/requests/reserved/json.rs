//! Scanner for JSON keys and strings in a request body, which decodes them as an engine does: in any encoding, with any
//! escapes.
//!
//! A body need not be valid JSON, as engines refuse an invalid one, so that no harm is done.
//!
//! In JSON every quote that is not escaped begins or ends a string. Reserved keys and strings are therefore found
//! without decoding the text between quotes, which is most of a body.

use kvatlas_prompt::PICTURE_PREFIX;
use memchr::{memchr_iter, memmem};

use super::{ReservedPart, has_address, is_engine_field};

/// Number of bytes of a string that are stored for comparison; no name of a field is longer.
const KEPT: usize = 512;

/// Fields of a body that contain schemas and arguments of the client's own. Keys within these fields mean nothing to
/// the engine, so they are not searched.
const OF_CLIENTS: [&[u8]; 9] = [
    b"messages",
    b"tools",
    b"functions",
    b"response_format",
    b"text",
    b"structured_outputs",
    b"guided_json",
    b"output_config",
    b"output_format",
];

/// Text encoding of a body, detected from its first bytes as in Python's `json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text {
    Utf8,
    Utf16 { is_big: bool },
    Utf32 { is_big: bool },
}

impl Text {
    pub(super) fn of(body: &[u8]) -> Self {
        match body {
            [0, 0, ..] => Self::Utf32 { is_big: true },
            [0xff, 0xfe, 0, 0, ..] | [_, 0, 0, 0, ..] => Self::Utf32 { is_big: false },
            [0xfe, 0xff, ..] | [0, _, ..] => Self::Utf16 { is_big: true },
            [0xff, 0xfe, ..] | [_, 0, ..] => Self::Utf16 { is_big: false },
            _ => Self::Utf8,
        }
    }

    /// True if the body begins as a JSON object does.
    pub(super) fn is_object(self, body: &[u8]) -> bool {
        let beginning = &body[..body.len().min(KEPT)];
        let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte >= 0x80;
        let first = match self {
            Self::Utf8 => beginning.iter().copied().find(|byte| !is_space(byte)),
            Self::Utf16 { is_big } => units(beginning, 2, is_big).find(|byte| !is_space(byte)),
            Self::Utf32 { is_big } => units(beginning, 4, is_big).find(|byte| !is_space(byte)),
        };
        first == Some(b'{')
    }

    pub(super) fn read(self, body: &[u8], reader: Reader) -> Option<ReservedPart> {
        match self {
            Self::Utf8 => reader.read(body.iter().copied()),
            Self::Utf16 { is_big } => reader.read(units(body, 2, is_big)),
            Self::Utf32 { is_big } => reader.read(units(body, 4, is_big)),
        }
    }
}

/// Converts code units of `width` bytes to bytes: each ASCII character to itself, any other to a non-ASCII byte, as
/// only ASCII texts are searched for.
fn units(body: &[u8], width: usize, is_big: bool) -> impl Iterator<Item = u8> + '_ {
    body.chunks_exact(width).map(move |unit| {
        let (low, high) = if is_big { (unit[width - 1], &unit[..width - 1]) } else { (unit[0], &unit[1..]) };
        if high.iter().all(|byte| *byte == 0) { low } else { 0xff }
    })
}

/// Last JSON token that was read outside of strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Text,
    /// Key of a JSON object, together with the colon that follows.
    Key(Key),
    Other,
}

/// Kind of a JSON key, which determines the values that are forbidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    /// Key of a field reserved for the router and its engines; the client may give it no value but null.
    Field,
    /// Key of an image's id; the client may not use ids that look like the router's.
    Uuid,
    /// Key of the request's id; the client's id may not contain an address.
    RequestId,
    Other,
}

/// State of decoding an escape sequence within a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// Digits of `\uXXXX`: the number of hexadecimal digits read so far, and their value.
    Digits(u8, u16),
}

/// Scanner for JSON keys and strings, which is fed byte by byte.
pub(super) struct Reader {
    is_object: bool,
    may_write_fields: bool,
    is_in_text: bool,
    escape: Escape,
    kept: Vec<u8>,
    /// Length of the JSON string that is being read, in bytes.
    length: usize,
    depth: usize,
    /// True inside a field with the client's own schemas or arguments, whose keys are not read by the engine.
    is_of_client: bool,
    last: Last,
}

impl Reader {
    /// Makes a scanner of a request body. `is_object`: true if the body begins as a JSON object does;
    /// `may_write_fields`: true if the client may write reserved fields.
    pub(super) fn new(is_object: bool, may_write_fields: bool) -> Self {
        Self {
            is_object,
            may_write_fields,
            is_in_text: false,
            escape: Escape::None,
            kept: Vec::with_capacity(KEPT),
            length: 0,
            depth: 0,
            is_of_client: false,
            last: Last::Other,
        }
    }

    fn read(mut self, bytes: impl Iterator<Item = u8>) -> Option<ReservedPart> {
        for byte in bytes {
            let found = if self.is_in_text { self.in_text(byte) } else { self.between(byte) };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn between(&mut self, byte: u8) -> Option<ReservedPart> {
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return None;
        }
        // `null` is as if it were not there.
        if self.last == Last::Key(Key::Field) && byte != b'n' {
            return Some(ReservedPart::Field(String::from_utf8_lossy(&self.kept).into_owned().into()));
        }
        match byte {
            b'"' => {
                self.is_in_text = true;
                self.kept.clear();
                self.length = 0;
                return None;
            }
            b':' if self.last == Last::Text => {
                self.last = Last::Key(self.key());
                return None;
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.last = Last::Other;
        None
    }

    /// Returns the kind of the JSON key that was just read as a string.
    fn key(&mut self) -> Key {
        let name = &*self.kept;
        if self.length > KEPT {
            return Key::Other;
        }
        if self.depth <= 1 {
            self.is_of_client = self.is_object && OF_CLIENTS.contains(&name);
        }
        let is_of_client = self.is_of_client && self.depth > 1;
        match name {
            b"uuid" => Key::Uuid,
            b"request_id" if !self.may_write_fields => Key::RequestId,
            _ if !self.may_write_fields && !is_of_client && is_engine_field(name) => Key::Field,
            _ => Key::Other,
        }
    }

    fn in_text(&mut self, byte: u8) -> Option<ReservedPart> {
        match self.escape {
            Escape::None => match byte {
                b'"' => return self.end(),
                b'\\' => self.escape = Escape::Begun,
                // No text of JSON goes on in the next line: this is something else, with JSON in it.
                b'\n' | b'\r' if !self.is_object => self.is_in_text = false,
                _ => self.push(byte),
            },
            Escape::Begun if byte == b'u' => self.escape = Escape::Digits(0, 0),
            Escape::Begun => {
                self.escape = Escape::None;
                self.push(if byte.is_ascii_alphanumeric() { 0xff } else { byte });
            }
            Escape::Digits(count, value) => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                let value = value << 4 | digit as u16;
                self.escape = Escape::Digits(count + 1, value);
                if count == 3 {
                    self.escape = Escape::None;
                    self.push(u8::try_from(value).ok().filter(u8::is_ascii).unwrap_or(0xff));
                }
            }
        }
        None
    }

    fn push(&mut self, byte: u8) {
        if self.length < KEPT {
            self.kept.push(byte);
        }
        self.length += 1;
    }

    /// Processes the end of a JSON string; returns the reserved image id or field if the string is one, else None.
    fn end(&mut self) -> Option<ReservedPart> {
        self.is_in_text = false;
        let of = std::mem::replace(&mut self.last, Last::Text);
        let text = &*self.kept;
        let is_name = match of {
            Last::Key(Key::Uuid) => text.starts_with(PICTURE_PREFIX.as_bytes()),
            _ => is_picture_name(text),
        };
        if is_name {
            return Some(ReservedPart::Name);
        }
        let is_address = of == Last::Key(Key::RequestId) && (has_address(text) || self.length > KEPT);
        is_address.then_some(ReservedPart::Field("request_id".into()))
    }
}

/// Maximum length of a key that is compared with reserved names, in bytes: 64 characters, each written as an escape.
const LONGEST: usize = 64 * 6;

/// Number of hexadecimal digits after the prefix that make a string one of the router's image ids.
const DIGITS: usize = 32;

/// Result of a quick search of a body for image ids and fields that are reserved for the router.
pub(super) enum Suspicion {
    /// No image ids or fields that are reserved for the router are in the body.
    None,
    /// Undecided, so that the body must be scanned completely.
    Open,
    Sure(ReservedPart),
}

/// True if a string is one of the router's image ids, or could be mistaken for one.
pub(super) fn is_picture_name(text: &[u8]) -> bool {
    is_prefixed(text.iter().copied()).is_some_and(|is_name| is_name)
}

/// Searches a body quickly for reserved ids and fields. `is_object`: true if the body begins as a JSON object does;
/// `may_write_fields`: true if the client may write reserved fields.
pub(super) fn suspicion(body: &[u8], is_object: bool, may_write_fields: bool) -> Suspicion {
    if !is_object && let Some(found) = in_form(body, may_write_fields) {
        return Suspicion::Sure(found);
    }
    let (mut before, mut key): (usize, &[u8]) = (0, b"");
    for at in memchr_iter(b'"', body) {
        if at > 0 && body[at - 1] == b'\\' {
            continue;
        }
        let behind = &body[at + 1..];
        match behind.first() {
            Some(b'k' | b'\\') => match is_prefixed(unescaped(behind)) {
                Some(true) => return Suspicion::Sure(ReservedPart::Name),
                // Whatever it is called, if it is called so by an escaped key.
                Some(false) if key == b"uuid" || key.contains(&b'\\') => return Suspicion::Open,
                _ => {}
            },
            Some(b':' | b' ' | b'\t' | b'\n' | b'\r') => {
                if let Some(value) = behind.trim_ascii_start().strip_prefix(b":") {
                    key = &body[at.saturating_sub(LONGEST).max(before)..at];
                    if !may_write_fields && at - before <= LONGEST && is_suspicious(key, value) {
                        return Suspicion::Open;
                    }
                }
            }
            _ => {}
        }
        before = at + 1;
    }
    Suspicion::None
}

/// True if a key with the value `value` may be a field reserved for the router and its engines.
fn is_suspicious(key: &[u8], value: &[u8]) -> bool {
    let decoded: Vec<u8>;
    let name = if key.contains(&b'\\') {
        decoded = unescaped(key).collect();
        &*decoded
    } else {
        key
    };
    if is_engine_field(name) {
        // `null` is as if it were not there.
        return !value.trim_ascii_start().starts_with(b"n");
    }
    // One that is long or written with escapes is read.
    let is_plain = |text: &[u8]| {
        let end = text.iter().take(LONGEST).position(|byte| *byte == b'"');
        end.is_some_and(|end| !text[..end].contains(&b'\\') && !has_address(&text[..end]))
    };
    name == b"request_id" && value.trim_ascii_start().strip_prefix(b"\"").is_some_and(|text| !is_plain(text))
}

/// Searches a body of another format, such as a form or lines of JSON, for reserved ids and fields.
fn in_form(body: &[u8], may_write_fields: bool) -> Option<ReservedPart> {
    let is_name = |at: usize| is_picture_name(&body[at..]);
    if memmem::find_iter(body, PICTURE_PREFIX).any(is_name) {
        return Some(ReservedPart::Name);
    }
    let mut fields = memmem::find_iter(body, b"name=").filter_map(|at| {
        let behind = &body[at + b"name=".len()..];
        let behind = behind.strip_prefix(b"\"").unwrap_or(behind);
        let length = behind.iter().take(LONGEST).take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_');
        Some(&behind[..length.count()]).filter(|name| is_engine_field(name))
    });
    let field = fields.next().filter(|_| !may_write_fields)?;
    Some(ReservedPart::Field(String::from_utf8_lossy(field).into_owned().into()))
}

/// True if a string is one of the router's image ids, false if only its prefix is; None for another prefix.
fn is_prefixed(mut text: impl Iterator<Item = u8>) -> Option<bool> {
    if !PICTURE_PREFIX.bytes().all(|byte| text.next() == Some(byte)) {
        return None;
    }
    Some(text.take(DIGITS).filter(u8::is_ascii_hexdigit).count() == DIGITS)
}

/// Decodes the bytes of a JSON string up to its end; each character that is not ASCII becomes the byte 255.
fn unescaped(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (byte, behind) = match rest {
            [b'"', ..] => return None,
            [b'\\', b'u', behind @ ..] => {
                let (digits, behind) = behind.split_at_checked(4)?;
                let number = std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
                (number.filter(u8::is_ascii).unwrap_or(0xff), behind)
            }
            // Of these, only signs that no name has stand for themselves.
            [b'\\', _, behind @ ..] => (0xff, behind),
            [byte, behind @ ..] => (*byte, behind),
            [] => return None,
        };
        rest = behind;
        Some(byte)
    })
}
