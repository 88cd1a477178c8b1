//! Values of a URL's parameters.

use super::super::refusal::Refusal;

type Result<T> = std::result::Result<T, Refusal>;

/// An integer.
pub(super) fn unsigned(key: &str, value: &str) -> Result<u64> {
    let is_number = value.bytes().all(|digit| digit.is_ascii_digit());
    value
        .parse()
        .ok()
        .filter(|_| is_number)
        .ok_or_else(|| Refusal::wrong_type(format!("{key} must be an integer from 0 to 18446744073709551615")))
}

/// True or false.
pub(super) fn boolean(key: &str, value: &str) -> Result<bool> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Refusal::wrong_type(format!("{key} must be true or false"))),
    }
}
