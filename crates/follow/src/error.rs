//! Errors of requests to a follower. A refused request has no effect.

use std::borrow::Cow;

/// Error code for a JSON value of the wrong type.
pub const WRONG_TYPE: &str = "wrong_type";

/// Error of a refused request to a follower.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration of the follower is invalid.
    #[error("configuration: {message}")]
    Config {
        /// Message that names the wrong setting and says why the value is wrong.
        message: String,
    },
    /// A value in the request, or a combination of values, cannot be used.
    #[error("{message}")]
    Invalid {
        /// Error code for programs, equal in every release.
        code: &'static str,
        /// Message that says what is wrong and what is expected.
        message: Cow<'static, str>,
    },
    /// The request contradicts an earlier registration.
    #[error("{message}")]
    Conflict {
        /// Error code for programs, equal in every release.
        code: &'static str,
        /// Message that describes how the request contradicts the earlier registration.
        message: String,
    },
    /// The configuration of the service does not allow the request.
    #[error("{message}")]
    Forbidden {
        /// Error code for programs, equal in every release.
        code: &'static str,
        /// Message that says what is not allowed, and which setting would allow it.
        message: String,
    },
    /// The object that the request names does not exist.
    #[error("{message}")]
    Unknown {
        /// Error code for programs, equal in every release.
        code: &'static str,
        /// Message that names the object which does not exist.
        message: String,
    },
    /// Handling of the request panicked, which is a bug. The request had no effect.
    #[error("internal error; the service's log has the details")]
    Internal,
    /// The service was shut down before or during the request.
    #[error("the service is closed")]
    Closed,
    /// The object that the request names does not exist now, but may soon.
    #[error("{message}")]
    Unavailable {
        /// Error code for programs, equal in every release.
        code: &'static str,
        /// Message that says what does not exist yet, and what the client can do.
        message: String,
    },
    /// A snapshot cannot be read or written.
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
    /// Returns the error code, equal in every release, for programs to compare.
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

    /// Creates the error for a request by content hashes to a service whose indexes identify blocks by hashes under a
    /// secret key. `instead` says what the client can do instead.
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

    /// Creates the error for a request that concerns an object which does not exist.
    #[must_use]
    pub fn unknown(code: &'static str, message: String) -> Self {
        Self::Unknown { code, message }
    }
}
