//! Defaults, and settings over others.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Returns the settings that a file of defaults has, for programs and tests in Rust.
///
/// # Panics
///
/// Panics if the file is not such settings: it is part of the program, and tests read it.
#[must_use]
#[expect(clippy::panic, reason = "the file is part of the program, and tests read it")]
pub fn defaults<T: DeserializeOwned>(file: &str) -> T {
    serde_json::from_str(file).unwrap_or_else(|error| panic!("defaults.json: {error}"))
}

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
