//! Names of workers.

use std::borrow::Cow;

use super::super::json::Reader;
use super::super::refusal::Refusal;

/// Bytes of a worker's name at most.
const MAX_NAME: usize = 256;

/// Bytes of any other name, endpoint or topic at most.
pub(crate) const MAX_TEXT: usize = 1024;

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

/// Whether a worker may be called so.
pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    if (1..=MAX_NAME).contains(&name.len()) {
        return Ok(());
    }
    let message = format!(
        "instance_id must be an integer or a string of 1 to {MAX_NAME} bytes, got a string of {} bytes",
        name.len()
    );
    Err(Refusal::invalid("invalid_instance_id", message))
}
