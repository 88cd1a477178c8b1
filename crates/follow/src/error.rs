//! The errors of a request to the service. A refused request has changed nothing.

use std::borrow::Cow;

/// The code of what is JSON, but not of the types that are wanted.
pub const WRONG_TYPE: &str = "wrong_type";

/// The reason why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is wrong.
    #[error("configuration: {message}")]
    Config {
        /// The setting that is wrong, and why.
        message: String,
    },
    /// A number, string or combination that cannot be used.
    #[error("{message}")]
    Invalid {
        /// A name for it that stays.
        code: &'static str,
        /// An account of what was wrong and what would be right.
        message: Cow<'static, str>,
    },
    /// The request contradicts what is registered already.
    #[error("{message}")]
    Conflict {
        /// A name for it that stays.
        code: &'static str,
        /// An account of what stands against the request.
        message: String,
    },
    /// The configuration does not allow the request.
    #[error("{message}")]
    Forbidden {
        /// A name for it that stays.
        code: &'static str,
        /// An account of what is not allowed, and what to set.
        message: String,
    },
    /// The thing asked for is not there.
    #[error("{message}")]
    Unknown {
        /// A name for it that stays.
        code: &'static str,
        /// An account of what is not there.
        message: String,
    },
    /// A bug: what was asked for met a panic, and nothing of it was done.
    #[error("internal error; the service's log has the details")]
    Internal,
    /// The service has ended, or ended while it was at it.
    #[error("the service is closed")]
    Closed,
    /// The thing asked for is not there now, but may be in a while.
    #[error("{message}")]
    Unavailable {
        /// A name for it that stays.
        code: &'static str,
        /// An account of what is not there, and what to do.
        message: String,
    },
    /// A snapshot cannot be used or made.
    #[error("{message}")]
    Snapshot {
        /// The snapshot, and what is wrong with it.
        message: String,
    },
    /// The service could not be started.
    #[error("{message}")]
    Start {
        /// An account of what could not be done, and why.
        message: String,
    },
}

impl Error {
    /// A name that stays the same in every release, for programs to test.
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

    /// Content hashes are asked for, which nobody outside can make or use where blocks are called otherwise.
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

    /// Something is not there: `message` says what.
    #[must_use]
    pub fn unknown(code: &'static str, message: String) -> Self {
        Self::Unknown { code, message }
    }
}
