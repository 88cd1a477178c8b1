//! Extraction of single fields of a JSON object as raw text, without parsing the other fields.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Returns the raw values of the fields with the names `names`, in the order of `names`; of a repeated name, the last
/// value. None if the text is no JSON object.
pub(crate) fn pick<'a, const N: usize>(text: &'a [u8], names: [&str; N]) -> Option<[Option<&'a RawValue>; N]> {
    let mut found = [None; N];
    each_field(text, |name, value| {
        if let Some(at) = names.iter().position(|wanted| *wanted == name) {
            found[at] = Some(value);
        }
    })?;
    Some(found)
}

/// Calls `see` with the name and value of each field of a JSON object. None if the text is no JSON object.
pub(crate) fn each_field<'a>(text: &'a [u8], see: impl FnMut(&str, &'a RawValue)) -> Option<()> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    reader.deserialize_map(Fields(see)).ok()?;
    reader.end().ok()
}

/// Calls `see` with each item of a JSON list. None if the text is no JSON list.
pub(crate) fn each_item<'a>(list: &'a RawValue, see: impl FnMut(&'a RawValue)) -> Option<()> {
    struct Items<F>(F);

    impl<'a, F: FnMut(&'a RawValue)> Visitor<'a> for Items<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'a>>(mut self, mut items: A) -> Result<(), A::Error> {
            while let Some(item) = items.next_element()? {
                (self.0)(item);
            }
            Ok(())
        }
    }

    serde_json::Deserializer::from_str(list.get()).deserialize_seq(Items(see)).ok()
}

/// Parses a raw JSON value; None if the value is missing or of another type.
pub(crate) fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

struct Fields<F>(F);

/// Name of a JSON field, without a copy unless the name has escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a, F: FnMut(&str, &'a RawValue)> Visitor<'a> for Fields<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut fields: A) -> Result<(), A::Error> {
        while let Some((Name(name), value)) = fields.next_entry()? {
            (self.0)(&name, value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for() {
        let text = br#"{"a": [{}, {}], "b": 1, "b": null, "\u0063": "x", "d": {"a": 2}}"#;
        let [a, b, c, e] = pick(text, ["a", "b", "c", "e"]).expect("an object");
        assert_eq!(
            [a, b, c, e].map(|raw| raw.map(RawValue::get)),
            [Some("[{}, {}]"), Some("null"), Some("\"x\""), None]
        );
        assert_eq!((read::<&str>(c), read::<u32>(c), read::<u32>(e)), (Some("x"), None, None));
        let mut items = Vec::new();
        each_item(a.expect("it is there"), |item| items.push(item.get())).expect("a list");
        assert_eq!(items, ["{}", "{}"]);
        assert!(each_item(c.expect("it is there"), |_| {}).is_none());
        for wrong in ["", "[]", "[1, 2]", "5", "null", "{", "{} x", r#"{"a": }"#, "<html>"] {
            assert!(pick(wrong.as_bytes(), ["a"]).is_none(), "{wrong}");
        }
    }
}
