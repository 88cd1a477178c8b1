//! Checks shared by the members of JSON queries and the parameters of URLs: lengths of names, numbers, booleans, and
//! keys given twice. Also the parsing of URL parameters, which replace JSON members if the body is the prompt's blocks
//! as bytes.

use std::borrow::Cow;

use kvatlas_follow::register::{MAX_TEXT, check_name};
use percent_encoding::percent_decode;

use super::prompt::{self, Kind};
use super::scope;
use crate::answer::Refusal;
use crate::json::Reader;

type Result<T> = std::result::Result<T, Refusal>;

/// Set of the keys that have been read from a query, one bit each.
#[derive(Default)]
pub(super) struct KeySet(u32);

impl KeySet {
    /// Adds the key with this bit to the set. Refused if the key was read before.
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

/// Returns a text of at most [`MAX_TEXT`] bytes unchanged. A longer text is refused, with a message that begins with
/// `what`.
pub(super) fn check_text<'a>(what: &str, text: Cow<'a, str>) -> Result<Cow<'a, str>> {
    if text.len() <= MAX_TEXT {
        return Ok(text);
    }
    let message = format!("{what} must be a string of at most {MAX_TEXT} bytes, got {} bytes", text.len());
    Err(Refusal::wrong_type(message))
}

/// Reads a worker's name, given as a JSON number or string. `what` names the value in error messages.
pub(super) fn instance_id(reader: &mut Reader<'_>, what: &str) -> Result<String> {
    if !reader.is_string() {
        return Ok(reader.unsigned(what)?.to_string());
    }
    let name = reader.string(what)?;
    check_name(&name)?;
    Ok(name.into_owned())
}

/// Parses the value of a URL parameter as an unsigned 64-bit integer in decimal digits.
pub(super) fn unsigned(key: &str, value: &str) -> Result<u64> {
    let is_number = value.bytes().all(|digit| digit.is_ascii_digit());
    value
        .parse()
        .ok()
        .filter(|_| is_number)
        .ok_or_else(|| Refusal::wrong_type(format!("{key} must be an integer from 0 to 18446744073709551615")))
}

/// Parses the value of a URL parameter as a boolean: `true`, `1`, `false` or `0`.
pub(super) fn boolean(key: &str, value: &str) -> Result<bool> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Refusal::wrong_type(format!("{key} must be true or false"))),
    }
}

const KNOWN: &str = "model_name, routing_group, lora_name, cache_salt, top_k, among, strict, levels and age; for content hashes prompt_tokens, too";

/// Maximum number of characters of an unknown parameter's name that an error message shows.
const SHOWN: usize = 64;

/// Parses the query string of a URL into parameters. An unknown parameter is refused, because it might change the
/// meaning of the answer.
pub(super) fn read<'a>(
    query: &'a str,
    scope: &mut scope::PartialScope<'a>,
    prompt: &mut prompt::PartialPrompt<'a>,
    kind: Kind,
) -> Result<()> {
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (decoded(key)?, decoded(value)?);
        if let Some(value) = scope.parameter(&key, value)?
            && prompt.parameter(&key, value, kind)?.is_some()
        {
            let shown: String = key.chars().take(SHOWN).collect();
            let message = format!("unknown parameter {shown:?}: a query in bytes takes {KNOWN}");
            return Err(Refusal::invalid("unknown_parameter", message));
        }
    }
    Ok(())
}

/// Decodes form-encoded text, where a plus is a space and `%XX` a byte of UTF-8. Invalid encodings are refused, because
/// a wrongly decoded cache salt would select other blocks.
fn decoded(text: &str) -> Result<Cow<'_, str>> {
    if !text.bytes().any(|byte| matches!(byte, b'+' | b'%')) {
        return Ok(Cow::Borrowed(text));
    }
    let malformed = || {
        let message = "the query string must be percent-encoded UTF-8: each % is followed by two hexadecimal digits";
        Refusal::invalid("malformed_parameters", message)
    };
    let hex = |part: &str| part.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(hex) {
        return Err(malformed());
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode(spaced.as_bytes()).decode_utf8().map_err(|_| malformed())?;
    Ok(Cow::Owned(decoded.into_owned()))
}
