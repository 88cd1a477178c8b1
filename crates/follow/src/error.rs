//! Errors of requests to the service. A refused request has changed nothing.

use std::borrow::Cow;

/// Code of an error for JSON values of wrong types.
pub const WRONG_TYPE: &str = "wrong_type";

/// Reason of a refused request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is wrong.
    #[error("configuration: {message}")]
    Config {
        /// Message that names the wrong setting and says why the value is wrong.
        message: String,
    },
    /// A value, or a combination of values, cannot be used.
    #[error("{message}")]
    Invalid {
        /// Stable code of the error.
        code: &'static str,
        /// Message that says what was wrong and what would be right.
        message: Cow<'static, str>,
    },
    /// The request contradicts an earlier registration.
    #[error("{message}")]
    Conflict {
        /// Stable code of the error.
        code: &'static str,
        /// Message that describes the contradiction.
        message: String,
    },
    /// The configuration does not allow the request.
    #[error("{message}")]
    Forbidden {
        /// Stable code of the error.
        code: &'static str,
        /// Message that says what is not allowed, and which setting would allow it.
        message: String,
    },
    /// The requested object does not exist.
    #[error("{message}")]
    Unknown {
        /// Stable code of the error.
        code: &'static str,
        /// Message that names what does not exist.
        message: String,
    },
    /// A bug: handling the request caused a panic; the request had no effect.
    #[error("internal error; the service's log has the details")]
    Internal,
    /// The service shut down, before or during the request.
    #[error("the service is closed")]
    Closed,
    /// The requested object does not exist now, but may soon.
    #[error("{message}")]
    Unavailable {
        /// Stable code of the error.
        code: &'static str,
        /// Message that says what does not exist yet, and what the client can do.
        message: String,
    },
    /// A snapshot cannot be used or made.
    #[error("{message}")]
    Snapshot {
        /// Message that names the snapshot and says what is wrong with it.
        message: String,
    },
    /// The service could not be started.
    #[error("{message}")]
    Start {
        /// Message that says what could not be done, and why.
        message: String,
    },
}

impl Error {
    /// Stable code of the error, for programs to compare.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config { .. } => "invalid_config",
            Self::Invalid { code, .. }
            | Self::Conflict { code, .. }
            | Self::Forbidden { code, .. }
            | Self::Unknown { code, .. }
            | Self::Unavailable { code, .. } => code,
            Self::Internal => "internal",
            Self::Closed => "closed",
            Self::Snapshot { .. } => "invalid_snapshot",
            Self::Start { .. } => "not_started",
        }
    }

    pub(crate) fn config(message: String) -> Self {
        Self::Config { message }
    }

    /// Error of a request for content hashes to a service whose indexes identify blocks by words under a key of its
    /// own. `instead`: what the client can do instead.
    #[must_use]
    pub fn keyed_identity(instead: &str) -> Self {
        let message = format!(
            "this service calls blocks by words that depend on a key of its own (streams.keyed_identity), and has no \
             content hashes: {instead}"
        );
        Self::conflict("keyed_identity", message)
    }

    pub(crate) fn invalid(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid { code, message: message.into() }
    }

    pub(crate) fn conflict(code: &'static str, message: String) -> Self {
        Self::Conflict { code, message }
    }

    /// Error of a request for an object that does not exist.
    #[must_use]
    pub fn unknown(code: &'static str, message: String) -> Self {
        Self::Unknown { code, message }
    }
}
