//! Parameters of a query whose body consists of its blocks as bytes: the names are those of the JSON members.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::prompt::{self, Kind};
use super::scope;
use crate::refusal::Refusal;

type Result<T> = std::result::Result<T, Refusal>;

const KNOWN: &str = "model_name, routing_group, lora_name, cache_salt, top_k, among, strict, levels and age; for content hashes prompt_tokens, too";

/// Longest beginning of an unknown parameter that is repeated in an error, in characters.
const SHOWN: usize = 64;

/// Parses a query string. An unknown parameter might change the answer's meaning, so it is refused.
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

/// Decodes a form-encoded text: a plus is a space, and `%XX` a byte of UTF-8. Invalid encodings are refused, since a
/// wrongly decoded salt would belong to another prompt.
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
