//! Strings in JSON, borrowed from a request's body where they contain no escapes.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr2;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::value::RawValue;

/// Text of a JSON string that was checked when the body was parsed, borrowed if it has no escapes. `None` if the JSON
/// is not a string, or has an escape for an invalid character.
pub(crate) fn string(json: &str) -> Option<Cow<'_, str>> {
    let (text, length) = leading(json)?;
    (length == json.len()).then_some(text)
}

/// Decodes the string at the beginning of JSON whose syntax was checked. Returns the text, and the length of the
/// string's JSON in bytes.
pub(crate) fn leading(json: &str) -> Option<(Cow<'_, str>, usize)> {
    let rest = json.strip_prefix('"')?;
    let first = memchr2(b'"', b'\\', rest.as_bytes())?;
    if rest.as_bytes()[first] == b'"' {
        return Some((Cow::Borrowed(&rest[..first]), first + 2));
    }
    // The length of the text is rarely known, so the buffer grows as more is found.
    let mut made = Vec::with_capacity((2 * first + ROOM).min(rest.len()));
    made.extend_from_slice(&rest.as_bytes()[..first]);
    let mut at = first;
    loop {
        let (length, mark) = unmarked(&rest.as_bytes()[at..], &mut made)?;
        at += length;
        if mark == b'"' {
            return Some((Cow::Owned(String::from_utf8(made).ok()?), at + 2));
        }
        let (character, length) = escape(&rest[at + 1..])?;
        if character.is_ascii() {
            made.push(character as u8);
        } else {
            made.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        at += 1 + length;
    }
}

/// Beginning of the text of a JSON string, decoded from its first `most` bytes and cut before an incomplete escape.
/// `None` if the JSON is not a string.
pub(crate) fn beginning(json: &str, most: usize) -> Option<String> {
    /// Length of the longest JSON escape, in bytes.
    const ESCAPE: usize = 12;
    let bytes = json.as_bytes().get(..most)?;
    let is_plain = |end: &usize| !bytes[end.saturating_sub(ESCAPE)..*end].contains(&b'\\');
    let end = (most / 2..=most).rev().find(|end| json.is_char_boundary(*end) && is_plain(end))?;
    let mut start = json.get(..end)?.to_owned();
    start.push('"');
    string(&start).map(Cow::into_owned)
}

/// Initial capacity of the buffer for a string with escapes, in bytes.
const ROOM: usize = 2048;

/// Appends the bytes before the next quote or backslash. Returns the number of these bytes, and the quote or backslash.
///
/// Escapes are often a few bytes apart, so eight bytes are compared at once, and copied before it is known whether all
/// of them belong to the text.
fn unmarked(bytes: &[u8], made: &mut Vec<u8>) -> Option<(usize, u8)> {
    const STEP: usize = size_of::<u64>();
    let (start, mut at) = (made.len(), 0);
    while let Some(step) = bytes[at..].first_chunk::<STEP>() {
        made.extend_from_slice(step);
        let word = u64::from_le_bytes(*step);
        let found = zeros(word ^ u64::from_le_bytes([b'"'; STEP])) | zeros(word ^ u64::from_le_bytes([b'\\'; STEP]));
        if found != 0 {
            at += found.trailing_zeros() as usize / 8;
            made.truncate(start + at);
            return Some((at, bytes[at]));
        }
        at += STEP;
    }
    let length = bytes[at..].iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    made.extend_from_slice(&bytes[at..at + length]);
    Some((at + length, bytes[at + length]))
}

/// Returns a mask whose lowest set bit is the high bit of the first zero byte of `word`.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080
}

/// Character that a JSON escape stands for, and the length of the escape after its backslash, in bytes. `None` if the
/// escape is invalid. `rest`: the JSON after the backslash.
fn escape(rest: &str) -> Option<(char, usize)> {
    let character = match rest.as_bytes().first()? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let unit = |from: usize| u16::from_str_radix(rest.get(from..from + 4)?, 16).ok();
            let first = unit(1)?;
            if let Some(Ok(character)) = char::decode_utf16([first]).next() {
                return Some((character, 5));
            }
            let second = unit(7).filter(|_| rest.get(5..7) == Some("\\u"))?;
            return Some((char::decode_utf16([first, second]).next()?.ok()?, 11));
        }
        _ => return None,
    };
    Some((character, 1))
}

/// Deserializes a field that is a string; `None` if it is missing or null.
pub(crate) fn field<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'a, str>>, D::Error> {
    let raw = Option::<&'a RawValue>::deserialize(deserializer)?;
    raw.map(|raw| string(raw.get()).ok_or_else(|| de::Error::custom("not a string"))).transpose()
}

/// Length of the longest key with escapes that is decoded whole, in bytes.
const LONGEST_KEY: usize = 256;

/// A key or another string of JSON, borrowed if it has no escapes; a string with escapes is cut after [`LONGEST_KEY`]
/// bytes.
pub(crate) struct Key<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                // A longer key matches none of the known ones.
                Ok(Key(Cow::Owned(text.get(..LONGEST_KEY).unwrap_or(text).to_owned())))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn is_as_the_library_has_it(json: &str) {
        // Checked JSON, as in a parsed body.
        let Ok(raw) = serde_json::from_str::<&RawValue>(json) else { return };
        let right: Option<String> = serde_json::from_str(raw.get()).ok();
        assert_eq!(string(raw.get()).as_deref(), right.as_deref(), "{json}");
    }

    #[test]
    fn escapes() {
        for inside in [
            "",
            "a",
            r"\n",
            r"\\n",
            r"a\\",
            r#"\""#,
            r#"\"b\\"#,
            r"\/\b\f\n\r\t",
            r"\u00e9\u00E9x",
            r"\ud83d\ude00!",
            r"\ud83d",
            r"\ud83d\n",
            r"\ud83dx\ude00",
            r"\ude00\ud83d",
            r"\ud83d\u0041",
            r"\u0000",
            r"é\né",
            r"\u00+1",
            r"\x",
            r"\u12",
        ] {
            is_as_the_library_has_it(&format!("\"{inside}\""));
        }
        let far = "a line of text that is longer than a word, ".repeat(40);
        for inside in [far.clone(), far.replace(',', r"\\"), far.replace("is", r"\u00e9\n"), far.replace("e", "é\\\"")]
        {
            is_as_the_library_has_it(&format!("\"{inside}\""));
            let json = format!("\"{inside}\", \"next\"");
            let (text, length) = leading(&json).unwrap();
            assert_eq!((Some(text), length), (string(&json[..length]), inside.len() + 2));
        }
        for other in ["null", "1", "[\"a\"]", "{}", "true"] {
            is_as_the_library_has_it(other);
        }
        assert!(matches!(string("\"a b\""), Some(Cow::Borrowed("a b"))));
    }

    proptest! {
        #[test]
        fn any_text(text in ".*", pieces in prop::collection::vec(r#"[a-z]{0,3}|\\["\\/bfnrt]|\\u[dD][89a-fA-F][0-9a-f]{2}|\\u[0-9a-f]{4}"#, 0..9)) {
            is_as_the_library_has_it(&serde_json::to_string(&text).unwrap());
            is_as_the_library_has_it(&format!("\"{}\"", pieces.concat()));
        }
    }
}
