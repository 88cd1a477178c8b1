//! Errors before a run begins.

use std::io;

/// The reason why a plan or a run cannot begin. A failure *during* a run is in its result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A column of a plan is invalid.
    #[error("{0}")]
    Plan(String),
    /// A file is not a plan, is truncated, or was altered.
    #[error("{path}: {what}")]
    File {
        /// The file's path.
        path: String,
        /// The fault in the file.
        what: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file's path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// An option is unknown or impossible.
    #[error("{0}")]
    Options(String),
    /// The index could not be made.
    #[error("{0}")]
    Index(String),
    /// The run was interrupted. Its threads have ended.
    #[error("the run was interrupted")]
    Interrupted,
}

impl Error {
    /// The error's code, the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Plan(_) => "plan",
            Self::File { .. } => "plan_file",
            Self::Io { .. } => "io",
            Self::Options(_) => "options",
            Self::Index(_) => "index",
            Self::Interrupted => "interrupted",
        }
    }
}
