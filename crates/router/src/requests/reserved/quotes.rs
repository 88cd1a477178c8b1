//! The search of a body in UTF-8 at its quotes: behind one a text begins, before one a key ends.
//!
//! In JSON every quote that is not escaped is one of these two, so that what is looked for is found without reading what
//! is between: most of a body are the texts of a prompt.

use kvatlas_prompt::PICTURE_PREFIX;
use memchr::{memchr_iter, memmem};

use super::{ReservedPart, has_address, is_engine_field};

/// Bytes of the longest key that is compared, each possibly an escape.
const LONGEST: usize = 64 * 6;

/// Hexadecimal digits behind the prefix, from which on a text is taken for one of the router's names.
const DIGITS: usize = 32;

/// The result of a look at the quotes.
pub(super) enum Suspicion {
    /// Nothing in the body is reserved.
    None,
    /// Unknown: the body must be parsed.
    Open,
    Sure(ReservedPart),
}

/// True if a text is, or could be taken for, one of the router's names of pictures.
pub(super) fn is_picture_name(text: &[u8]) -> bool {
    is_prefixed(text.iter().copied()).is_some_and(|is_name| is_name)
}

/// Searches a body. `is_object`: whether it begins as an object of JSON does.
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

/// True if a key with this value may be of a field that is between the router and its engines.
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

/// Searches forms and lines of JSON for reserved names and fields.
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

/// True if a text is one of the router's names; none if it does not even begin so.
fn is_prefixed(mut text: impl Iterator<Item = u8>) -> Option<bool> {
    if !PICTURE_PREFIX.bytes().all(|byte| text.next() == Some(byte)) {
        return None;
    }
    Some(text.take(DIGITS).filter(u8::is_ascii_hexdigit).count() == DIGITS)
}

/// Bytes of a text with escapes resolved, up to its end; 255 for any that are not ASCII.
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
