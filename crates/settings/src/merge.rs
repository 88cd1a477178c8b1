//! Settings over others.

use serde_json::Value;

/// Puts settings over others: a table is merged key by key, and anything else takes the place of what was there.
pub fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match into.get_mut(&key) {
                    Some(old) => merge(old, value),
                    None => drop(into.insert(key, value)),
                }
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_are_merged_and_all_else_is_replaced() {
        let mut settings = json!({ "a": { "b": 1, "c": [1, 2] }, "d": null });
        merge(&mut settings, json!({ "a": { "c": [3], "e": 4 }, "d": { "f": 5 } }));
        assert_eq!(settings, json!({ "a": { "b": 1, "c": [3], "e": 4 }, "d": { "f": 5 } }));
    }
}
