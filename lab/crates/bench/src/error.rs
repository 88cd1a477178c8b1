//! Errors that prevent a load test from beginning.

use std::io;

/// Reason why a plan or a load test cannot begin. A failure *during* a load test is in its result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A column of a plan (the list of one property of all its operations) is invalid.
    #[error("{0}")]
    Plan(String),
    /// A file is not a plan, is truncated, or was altered.
    #[error("{path}: {what}")]
    File {
        /// Path of the file that is not a valid plan.
        path: String,
        /// Description of what is wrong with the file.
        what: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file that could not be read or written.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// An option of the load test is unknown or has an impossible value.
    #[error("{0}")]
    Options(String),
    /// The tested index could not be created.
    #[error("{0}")]
    Index(String),
    /// The load test was interrupted. Its threads have ended.
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
