//! Bodies with some fields set, and all others as they came.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The fields of a body, each as it came.
pub(super) type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Fields of a body at most: a body with more goes on as it came.
const MOST: usize = 4_096;

/// Reads the fields of a body. None if it is no object, or has more than any request.
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

/// Makes the body with some fields set.
pub(super) fn with<const N: usize>(fields: &Fields<'_>, set: [(&str, Value); N]) -> Option<Bytes> {
    let set: Vec<(&str, Box<RawValue>)> = set
        .into_iter()
        .map(|(name, value)| Some((name, serde_json::value::to_raw_value(&value).ok()?)))
        .collect::<Option<_>>()?;
    let mut fields: BTreeMap<&str, &RawValue> = fields.iter().map(|(name, value)| (&**name, *value)).collect();
    fields.extend(set.iter().map(|(name, value)| (*name, &**value)));
    serde_json::to_vec(&fields).ok().map(Bytes::from)
}
