//! The form of answers, and the way in which they are read.

use kvatlas_prompt::Endpoint;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The API that gives a stream its form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Chunks with choices, and `[DONE]`: chats and completions.
    Chat,
    /// The events of `/v1/responses`.
    Responses,
    /// The events of `/v1/messages`.
    Messages,
    /// The objects of SGLang's `/generate`, each with all that was generated before, and `[DONE]`.
    Generate,
    /// Any form, at a path that is not known to have a prompt.
    Other,
}

/// Way in which an answer is to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerFormat {
    /// API of the answer.
    pub(crate) dialect: Dialect,
    /// True if chunks with nothing but `usage` are kept from the client, who has not asked for them.
    pub(crate) hides_usage: bool,
    /// True if an error in the answer means that the request failed; false for answers about something else, such as a
    /// stored answer.
    pub(crate) finds_errors: bool,
}

impl Dialect {
    /// The dialect of the answers at an endpoint.
    pub(crate) fn of(endpoint: Option<Endpoint>) -> Self {
        match endpoint {
            Some(Endpoint::Responses) => Self::Responses,
            Some(Endpoint::Messages) => Self::Messages,
            Some(Endpoint::Generate) => Self::Generate,
            Some(_) => Self::Chat,
            None => Self::Other,
        }
    }

    /// The dialect of the errors at a path, with or without a prompt.
    pub(crate) fn at(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Messages,
            _ => Self::Other,
        }
    }
}

impl Default for AnswerFormat {
    fn default() -> Self {
        Self { dialect: Dialect::Chat, hides_usage: false, finds_errors: false }
    }
}

/// Parses a value; none if it is missing or of another type.
pub(super) fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}
