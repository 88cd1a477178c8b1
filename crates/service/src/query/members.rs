//! Checks that members of a JSON query and parameters of a URL share: names, numbers, booleans, and keys given twice.

use std::borrow::Cow;

use kvatlas_follow::register::{MAX_TEXT, check_name};

use crate::json::Reader;
use crate::refusal::Refusal;

type Result<T> = std::result::Result<T, Refusal>;

/// Keys already read, each as one bit.
#[derive(Default)]
pub(super) struct KeySet(u32);

impl KeySet {
    /// Adds the key with this bit; an error if it was read before.
    pub(super) fn note(&mut self, bit: u32, key: &str) -> Result<()> {
        if self.0 & 1 << bit != 0 {
            return Err(given_twice(key));
        }
        self.0 |= 1 << bit;
        Ok(())
    }
}

pub(super) fn missing(key: &str) -> Refusal {
    Refusal::wrong_type(format!("{key} is missing"))
}

pub(super) fn given_twice(key: &str) -> Refusal {
    Refusal::wrong_type(format!("{key} is given twice"))
}

/// Returns a text of at most [`MAX_TEXT`] bytes unchanged; an error that begins with `what` if it is longer.
pub(super) fn check_text<'a>(what: &str, text: Cow<'a, str>) -> Result<Cow<'a, str>> {
    if text.len() <= MAX_TEXT {
        return Ok(text);
    }
    let message = format!("{what} must be a string of at most {MAX_TEXT} bytes, got {} bytes", text.len());
    Err(Refusal::wrong_type(message))
}

/// Reads a worker's name from a JSON number or string.
pub(super) fn instance_id(reader: &mut Reader<'_>, what: &str) -> Result<String> {
    if !reader.is_string() {
        return Ok(reader.unsigned(what)?.to_string());
    }
    let name = reader.string(what)?;
    check_name(&name)?;
    Ok(name.into_owned())
}

/// Parses a URL parameter of decimal digits as an integer of 64 bits.
pub(super) fn unsigned(key: &str, value: &str) -> Result<u64> {
    let is_number = value.bytes().all(|digit| digit.is_ascii_digit());
    value
        .parse()
        .ok()
        .filter(|_| is_number)
        .ok_or_else(|| Refusal::wrong_type(format!("{key} must be an integer from 0 to 18446744073709551615")))
}

/// Parses a URL parameter that is `true`, `1`, `false` or `0`.
pub(super) fn boolean(key: &str, value: &str) -> Result<bool> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Refusal::wrong_type(format!("{key} must be true or false"))),
    }
}
