//! The error for something wrong in what a caller gives.

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
