//! Names of workers.

use super::super::json::Reader;
use super::super::refusal::Refusal;

/// Bytes of a worker's name at most.
const MAX_NAME: usize = 256;

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
