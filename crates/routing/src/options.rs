//! A policy's settings: numbers and words by name, each taken once, and none left over; and the error for something wrong
//! in what a caller gives.

use std::collections::BTreeMap;

use serde_json::Value;

/// Settings by name. A policy takes those that it knows; [`Options::finish`] refuses what is left.
#[derive(Debug, Clone, Default)]
pub struct Options {
    given: BTreeMap<String, Value>,
    known: Vec<&'static str>,
}

impl Options {
    /// Reads options from a JSON object. `""` and `{}` are no options.
    ///
    /// # Errors
    /// Code `bad_option` if it is not a JSON object.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let given = serde_json::from_str(text)
            .map_err(|error| Error::new("bad_option", format!("options must be a JSON object: {error}")))?;
        Ok(Self { given, known: Vec::new() })
    }

    /// Takes a number from `low` to `high`, or `default`.
    ///
    /// # Errors
    /// Code `bad_option` if it is not a number, or out of range.
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

    /// Takes true or false, or `default`.
    ///
    /// # Errors
    /// Code `bad_option` if it is neither.
    pub fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, Error> {
        self.known.push(name);
        match self.given.remove(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(Value::String(text)) if text == "true" || text == "false" => Ok(text == "true"),
            Some(value) => Err(Error::new("bad_option", format!("{name} must be true or false, not {value}"))),
        }
    }

    /// Takes one of `words`, the first of which is the default.
    ///
    /// # Errors
    /// Code `bad_option` if it is another word.
    pub fn word(&mut self, name: &'static str, words: &[&'static str]) -> Result<&'static str, Error> {
        self.known.push(name);
        let Some(value) = self.given.remove(name) else { return Ok(words.first().copied().unwrap_or_default()) };
        let found = value.as_str().and_then(|text| words.iter().find(|word| **word == text));
        found
            .copied()
            .ok_or_else(|| Error::new("bad_option", format!("{name} must be one of {}, not {value}", words.join(", "))))
    }

    /// Refuses an option that no longer exists. `instead`: what replaced it.
    ///
    /// # Errors
    /// Code `bad_option` if it is given.
    pub fn refuse(&self, name: &str, instead: &str) -> Result<(), Error> {
        if self.given.contains_key(name) {
            return Err(Error::new("bad_option", format!("there is no option {name:?} any more: {instead}")));
        }
        Ok(())
    }

    /// Refuses what nobody took. `policy`: whose options they are.
    ///
    /// # Errors
    /// Code `bad_option` that names one, and those that there are.
    pub fn finish(self, policy: &str) -> Result<(), Error> {
        let Some((name, _)) = self.given.into_iter().next() else { return Ok(()) };
        let known = if self.known.is_empty() { "none".to_owned() } else { self.known.join(", ") };
        Err(Error::new("bad_option", format!("policy {policy:?} has no option {name:?}; it has {known}")))
    }
}

/// A refusal: what was wrong, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The code, stable, for programs: `unknown_policy`, `bad_option`, ...
    pub code: &'static str,
    /// The message, for people.
    pub message: String,
}

impl Error {
    /// A refusal with a code and a text.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
