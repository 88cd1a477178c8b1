//! Names of workers.

use std::borrow::Cow;

use kvatlas_follow::register::{MAX_TEXT, check_name};

use super::super::json::Reader;
use super::super::refusal::Refusal;

/// A name that is not too long.
pub(super) fn check_text<'a>(what: &str, text: Cow<'a, str>) -> Result<Cow<'a, str>, Refusal> {
    if text.len() <= MAX_TEXT {
        return Ok(text);
    }
    let message = format!("{what} must be a string of at most {MAX_TEXT} bytes, got {} bytes", text.len());
    Err(Refusal::wrong_type(message))
}

/// A worker's name, from a number or a string.
pub(super) fn instance_id(reader: &mut Reader<'_>, what: &str) -> Result<String, Refusal> {
    if !reader.is_string() {
        return Ok(reader.unsigned(what)?.to_string());
    }
    let name = reader.string(what)?;
    check_name(&name)?;
    Ok(name.into_owned())
}
