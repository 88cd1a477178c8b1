//! Errors of starting a router and of changing its fleet of engines.

/// Error at the start of a router or in a change of its fleet. The message states what was wrong and what would be
/// right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting has a value that cannot be used.
    #[error("{message}")]
    Config {
        /// Description of the fault in the setting.
        message: String,
    },
    /// Failure to start the router.
    #[error("{message}")]
    Start {
        /// Reason for the failure, as text.
        message: String,
    },
    /// Unknown engine: the fleet has none of this name.
    #[error("there is no engine of the name {name:?}")]
    Unknown {
        /// Name of the engine that is not in the fleet.
        name: String,
    },
    /// Refusal of an engine that a client adds under the name of another engine.
    #[error("there is an engine of the name {name:?} at {url}: choose another name, or remove that engine first")]
    Taken {
        /// Name under which the client adds an engine, and which another engine has.
        name: String,
        /// URL of the engine that already has the name.
        url: String,
    },
    /// Refusal of an engine that a client adds over HTTP, because the fleet would have too many ranks.
    #[error("with {ranks} ranks the fleet would be larger than POST /engines may make it: {most} (router.max_ranks)")]
    Full {
        /// Number of ranks that the fleet would have with the new engine.
        ranks: usize,
        /// Maximum number of ranks of the fleet, counting all engines.
        most: usize,
    },
    /// The router was called after it had been stopped.
    #[error("the router is closed")]
    Closed,
}

impl Error {
    /// Makes an error about an unusable value of a setting.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config { message: message.into() }
    }

    /// Makes an error about a failure to start the router.
    pub fn start(message: impl Into<String>) -> Self {
        Self::Start { message: message.into() }
    }

    /// Returns the stable error code, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config { .. } => "invalid_config",
            Self::Start { .. } => "cannot_start",
            Self::Unknown { .. } => "unknown_engine",
            Self::Taken { .. } => "name_taken",
            Self::Full { .. } => "too_many_engines",
            Self::Closed => "closed",
        }
    }
}

impl From<kvatlas_routing::Error> for Error {
    fn from(error: kvatlas_routing::Error) -> Self {
        Self::config(error.to_string())
    }
}

impl From<kvatlas_http::Error> for Error {
    fn from(error: kvatlas_http::Error) -> Self {
        Self::start(error.0)
    }
}

impl From<kvatlas_follow::Error> for Error {
    fn from(error: kvatlas_follow::Error) -> Self {
        match error {
            kvatlas_follow::Error::Config { message } => Self::Config { message },
            other => Self::start(other.to_string()),
        }
    }
}
