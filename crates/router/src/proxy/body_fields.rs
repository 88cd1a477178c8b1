//! Request bodies with some JSON fields set and all others unchanged, such as streams for which the router requests
//! token counts (`usage`).

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Fields of a request body as raw JSON.
pub(super) type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Maximum number of fields in a body that the router changes; a body with more is forwarded unchanged.
const MOST: usize = 4_096;

/// Parses the fields of a body; None if the body is no JSON object, or has too many fields.
pub(super) fn fields(body: &[u8]) -> Option<Fields<'_>> {
    struct FewFields<'a>(Fields<'a>);

    impl<'de> Deserialize<'de> for FewFields<'de> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Object;

            impl<'de> Visitor<'de> for Object {
                type Value = FewFields<'de>;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                    let mut fields = Fields::new();
                    while let Some((key, value)) = map.next_entry()? {
                        if fields.len() == MOST {
                            return Err(A::Error::custom("too many fields"));
                        }
                        fields.insert(key, value);
                    }
                    Ok(FewFields(fields))
                }
            }

            deserializer.deserialize_map(Object)
        }
    }

    serde_json::from_slice::<FewFields<'_>>(body).ok().map(|fields| fields.0)
}

/// Makes a JSON body from the fields `fields`, after replacing or adding those in `set`.
pub(super) fn with<const N: usize>(fields: &Fields<'_>, set: [(&str, Value); N]) -> Option<Bytes> {
    let set: Vec<(&str, Box<RawValue>)> = set
        .into_iter()
        .map(|(name, value)| Some((name, serde_json::value::to_raw_value(&value).ok()?)))
        .collect::<Option<_>>()?;
    let mut fields: BTreeMap<&str, &RawValue> = fields.iter().map(|(name, value)| (&**name, *value)).collect();
    fields.extend(set.iter().map(|(name, value)| (*name, &**value)));
    serde_json::to_vec(&fields).ok().map(Bytes::from)
}

/// Maximum size of `stream_options` in bytes; longer ones are replaced.
const LONGEST_OPTIONS: usize = 4096;

const FIELD: &str = r#""stream_options":{"include_usage":true},"#;

/// Makes a body that requests token counts (`usage`) for a stream; None if that is impossible. `has_options`: true if
/// the body has `stream_options`.
pub(crate) fn ask_for_usage(body: &[u8], has_options: bool) -> Option<Bytes> {
    if has_options {
        let fields = fields(body)?;
        let short = fields.get("stream_options").filter(|raw| raw.get().len() <= LONGEST_OPTIONS);
        let given = short.and_then(|raw| serde_json::from_str(raw.get()).ok());
        let mut options: Map<String, Value> = given.unwrap_or_default();
        options.insert("include_usage".to_owned(), json!(true));
        // Without the usage at the end there would have been none in between.
        if let Some(continuous) = options.get_mut("continuous_usage_stats") {
            *continuous = json!(false);
        }
        return with(&fields, [("stream_options", options.into())]);
    }
    // All else stays as it is, byte for byte. There is another field, the one that asks for a stream.
    let start = body.iter().position(|byte| *byte == b'{')? + 1;
    let mut made = Vec::with_capacity(body.len() + FIELD.len());
    made.extend_from_slice(&body[..start]);
    made.extend_from_slice(FIELD.as_bytes());
    made.extend_from_slice(&body[start..]);
    Some(made.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_else_stays_as_it_is() {
        let asked = |body: &str, has_options| {
            String::from_utf8(ask_for_usage(body.as_bytes(), has_options).expect("a body").to_vec()).expect("utf-8")
        };
        assert_eq!(
            asked(r#" { "stream" : true, "n": 1.50}"#, false),
            r#" {"stream_options":{"include_usage":true}, "stream" : true, "n": 1.50}"#
        );
        for given in ["null", "{}", r#"{"include_usage":false}"#] {
            assert_eq!(
                asked(&format!(r#"{{"n":1.50,"stream_options":{given}}}"#), true),
                r#"{"n":1.50,"stream_options":{"include_usage":true}}"#
            );
        }
        let more = asked(r#"{"stream_options":{"continuous_usage_stats":false}}"#, true);
        assert_eq!(more, r#"{"stream_options":{"continuous_usage_stats":false,"include_usage":true}}"#);
        let more = asked(r#"{"stream_options":{"continuous_usage_stats":true}}"#, true);
        assert_eq!(more, r#"{"stream_options":{"continuous_usage_stats":false,"include_usage":true}}"#);
    }
}
