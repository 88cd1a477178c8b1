//! Strings in JSON, borrowed where they stand as they are.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::value::RawValue;

/// The text of a JSON string that was checked when the body was parsed, where it stands if it has no escapes. None if it is
/// another kind of JSON, or has an escape that is no character.
pub(crate) fn string(json: &str) -> Option<Cow<'_, str>> {
    let text = json.strip_prefix('"')?.strip_suffix('"')?;
    let mut at = match memchr(b'\\', text.as_bytes()) {
        None => return Some(Cow::Borrowed(text)),
        Some(first) => first,
    };
    let mut made = String::with_capacity(text.len());
    made.push_str(&text[..at]);
    // A `u` and four digits are the longest of one character; a second one may belong to it.
    while let Some(rest) = text.get(at + 1..) {
        let (character, length) = escape(rest)?;
        made.push(character);
        let from = at + 1 + length;
        at = memchr(b'\\', &text.as_bytes()[from..]).map_or(text.len(), |next| from + next);
        made.push_str(&text[from..at]);
    }
    Some(Cow::Owned(made))
}

/// The character of an escape, from behind its backslash, and how many bytes it takes there.
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

/// Reads a field that is a string, if it is there and not null.
pub(crate) fn field<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'a, str>>, D::Error> {
    let raw = Option::<&'a RawValue>::deserialize(deserializer)?;
    raw.map(|raw| string(raw.get()).ok_or_else(|| de::Error::custom("not a string"))).transpose()
}

/// A key or another string, borrowed if it has no escapes.
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
                Ok(Key(Cow::Owned(text.to_owned())))
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
        // Checked, as in a body.
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
