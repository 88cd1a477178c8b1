//! What can be wrong with a request to the service. A refused request has changed nothing.

use std::borrow::Cow;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is wrong.
    #[error("configuration: {message}")]
    Config {
        /// Which, and why.
        message: String,
    },
    /// A number, string or combination that cannot be used.
    #[error("{message}")]
    Invalid {
        /// A name for it that stays.
        code: &'static str,
        /// What was wrong and what would be right.
        message: Cow<'static, str>,
    },
    /// What is registered already stands against it.
    #[error("{message}")]
    Conflict {
        /// A name for it that stays.
        code: &'static str,
        /// What stands against it.
        message: String,
    },
    /// It is not allowed by the configuration.
    #[error("{message}")]
    Forbidden {
        /// A name for it that stays.
        code: &'static str,
        /// What is not allowed, and what to set.
        message: String,
    },
    /// It is not there.
    #[error("{message}")]
    Unknown {
        /// A name for it that stays.
        code: &'static str,
        /// What is not there.
        message: String,
    },
    /// A bug: what was asked for met a panic, and nothing of it was done.
    #[error("internal error; the service's log has the details")]
    Internal,
    /// The service has ended, or ended while it was at it.
    #[error("the service is closed")]
    Closed,
    /// A snapshot cannot be used or made.
    #[error("{message}")]
    Snapshot {
        /// Which, and what is wrong.
        message: String,
    },
    /// The service could not be started.
    #[error("{message}")]
    Start {
        /// What could not be done, and why.
        message: String,
    },
}

impl From<kvatlas_http::Error> for Error {
    fn from(error: kvatlas_http::Error) -> Self {
        Self::Start { message: error.0 }
    }
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
            | Self::Unknown { code, .. } => code,
            Self::Internal => "internal",
            Self::Closed => "closed",
            Self::Snapshot { .. } => "invalid_snapshot",
            Self::Start { .. } => "not_started",
        }
    }

    pub(crate) fn config(message: String) -> Self {
        Self::Config { message }
    }

    pub(crate) fn invalid(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid { code, message: message.into() }
    }

    pub(crate) fn conflict(code: &'static str, message: String) -> Self {
        Self::Conflict { code, message }
    }

    pub(crate) fn unknown(code: &'static str, message: String) -> Self {
        Self::Unknown { code, message }
    }
}
