//! Errors when a router is started or its fleet is changed.

/// Error with a message that says what was wrong, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting cannot be used.
    #[error("{message}")]
    Config {
        /// Text that says what is wrong with the setting.
        message: String,
    },
    /// The router cannot be started.
    #[error("{message}")]
    Start {
        /// The reason, as text.
        message: String,
    },
    /// The fleet has no engine of this name.
    #[error("there is no engine of the name {name:?}")]
    Unknown {
        /// The unknown name.
        name: String,
    },
    /// A client adds an engine under the name of another one.
    #[error("there is an engine of the name {name:?} at {url}: choose another name, or remove that engine first")]
    Taken {
        /// The name.
        name: String,
        /// URL of the engine that has the name.
        url: String,
    },
    /// More ranks than clients may add over HTTP.
    #[error("with {ranks} ranks the fleet would be larger than POST /engines may make it: {most} (router.max_ranks)")]
    Full {
        /// Number of ranks that the fleet would have.
        ranks: usize,
        /// Maximum number of ranks of the fleet.
        most: usize,
    },
    /// The router has been stopped.
    #[error("the router is closed")]
    Closed,
}

impl Error {
    /// Makes an error about a setting that cannot be used.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config { message: message.into() }
    }

    /// Makes an error about the start of the router.
    pub fn start(message: impl Into<String>) -> Self {
        Self::Start { message: message.into() }
    }

    /// Returns the error's code for programs, which never changes.
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
