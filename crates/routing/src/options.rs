//! Options of a policy: numbers, flags and words by name, each read once, with an error for unknown ones; and the error
//! type for invalid input.

use std::collections::BTreeMap;

use serde_json::Value;

/// Options of a policy by name. A policy removes the options that it knows; [`Options::finish`] then rejects the rest.
#[derive(Debug, Clone, Default)]
pub struct Options {
    given: BTreeMap<String, Value>,
    known: Vec<&'static str>,
}

impl Options {
    /// Reads options from a JSON object. `""` and `{}` mean no options.
    ///
    /// # Errors
    /// Code `bad_option` if the text is not a JSON object.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let given = serde_json::from_str(text)
            .map_err(|error| Error::new("bad_option", format!("options must be a JSON object: {error}")))?;
        Ok(Self { given, known: Vec::new() })
    }

    /// Removes and returns the option `name`, a number from `low` to `high`; returns `default` if it is not given.
    ///
    /// # Errors
    ///
    /// Code `bad_option` if the value is not a number, or out of range.
    pub fn number(&mut self, name: &'static str, default: f64, low: f64, high: f64) -> Result<f64, Error> {
        self.known.push(name);
        let Some(value) = self.given.remove(name) else { return Ok(default) };
        let number = match &value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number.filter(|number| (low..=high).contains(number)).ok_or_else(|| {
            Error::new("bad_option", format!("{name} must be a number from {low} to {high}, not {value}"))
        })
    }

    /// Removes and returns the option `name`, which is true or false; returns `default` if it is not given.
    ///
    /// # Errors
    ///
    /// Code `bad_option` if the value is not a boolean.
    pub fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, Error> {
        self.known.push(name);
        match self.given.remove(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(Value::String(text)) if text == "true" || text == "false" => Ok(text == "true"),
            Some(value) => Err(Error::new("bad_option", format!("{name} must be true or false, not {value}"))),
        }
    }

    /// Removes and returns the option `name`, one of `words`; returns the first of these words if it is not given.
    ///
    /// # Errors
    ///
    /// Code `bad_option` if the value is another word.
    pub fn word(&mut self, name: &'static str, words: &[&'static str]) -> Result<&'static str, Error> {
        self.known.push(name);
        let Some(value) = self.given.remove(name) else { return Ok(words.first().copied().unwrap_or_default()) };
        let found = value.as_str().and_then(|text| words.iter().find(|word| **word == text));
        found
            .copied()
            .ok_or_else(|| Error::new("bad_option", format!("{name} must be one of {}, not {value}", words.join(", "))))
    }

    /// Returns an error if the option `name`, which no longer exists, is given. `instead`: text that says what replaced
    /// it.
    ///
    /// # Errors
    ///
    /// Code `bad_option` if the option is given.
    pub fn refuse(&self, name: &str, instead: &str) -> Result<(), Error> {
        if self.given.contains_key(name) {
            return Err(Error::new("bad_option", format!("there is no option {name:?} any more: {instead}")));
        }
        Ok(())
    }

    /// Returns an error if options are left that the policy does not have. `policy`: name of the policy, for the
    /// message.
    ///
    /// # Errors
    ///
    /// Code `bad_option`, with the name of one unknown option, and the names of the known ones.
    pub fn finish(self, policy: &str) -> Result<(), Error> {
        let Some((name, _)) = self.given.into_iter().next() else { return Ok(()) };
        let known = if self.known.is_empty() { "none".to_owned() } else { self.known.join(", ") };
        Err(Error::new("bad_option", format!("policy {policy:?} has no option {name:?}; it has {known}")))
    }
}

/// Error for invalid input: a stable code, and a message that says what was wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Stable code of the error for programs: `unknown_policy`, `bad_option`, ...
    pub code: &'static str,
    /// Message for users: says what was wrong and what would be right.
    pub message: String,
}

impl Error {
    /// Creates an error from a stable code and a message for users.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
