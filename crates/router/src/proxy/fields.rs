//! Bodies with some fields set, and all others as they came.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

/// The fields of a body, each as it came.
pub(super) type Fields<'a> = BTreeMap<String, &'a RawValue>;

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
