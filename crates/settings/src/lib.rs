//! Types of settings used by every crate. Python declares and checks the settings; Rust reads them as JSON.
//!
//! * [`Secret`]: a bearer key.
//! * [`seconds`]: durations, as numbers of seconds.
//! * [`defaults`], [`merge`]: defaults, which Python declares and `tools/generate_defaults.py` writes to files, and
//!   settings that override them.

#![forbid(unsafe_code)]

mod secret;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use secret::{MAX_KEY, Secret, warn_if_others_read};

/// Parses a generated file of defaults, for programs and tests in Rust.
///
/// # Panics
///
/// Panics if the file does not match `T`: it is part of the program, and tests read it.
#[must_use]
#[expect(clippy::panic, reason = "the file is part of the program, and tests read it")]
pub fn defaults<T: DeserializeOwned>(file: &str) -> T {
    serde_json::from_str(file).unwrap_or_else(|error| panic!("defaults.json: {error}"))
}

/// Merges settings into others: tables are merged key by key, and any other value replaces the old one.
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

/// Durations in settings, written as numbers of seconds; for `#[serde(with = "kvatlas_settings::seconds")]`.
pub mod seconds {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer, Error};

    /// Reads a duration.
    ///
    /// # Errors
    /// If the value is not a number, or is negative or too large.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| D::Error::custom(format!("a duration is a number of seconds from 0 on, got {seconds}")))
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
