//! Errors of digests.

/// Error in a digest, or in a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The grain is 0.
    #[error("the grain must be at least 1 block, got 0")]
    Grain,
    /// The site's name is empty or too long.
    #[error("a site's name has 1 to {most} bytes, got {got}")]
    Name {
        /// Bytes given.
        got: usize,
        /// Most bytes allowed.
        most: usize,
    },
    /// The bytes are not a digest.
    #[error("not a digest: {what}")]
    Invalid {
        /// Description of the fault.
        what: String,
    },
    /// The digest has another grain than the index of sites.
    #[error("the digest has a grain of {got} blocks, and this index of sites has {expected}: use the same everywhere")]
    OtherGrain {
        /// Grain of the digest.
        got: u32,
        /// Grain of the index.
        expected: u32,
    },
    /// A digest is missing before this one, or the site has restarted.
    #[error("a whole digest is wanted: {why}")]
    WholeWanted {
        /// Reason to request a whole digest.
        why: &'static str,
    },
    /// The index has as many sites as it can.
    #[error("there are {most} sites already, and no more can be numbered")]
    TooMany {
        /// Largest number of sites.
        most: usize,
    },
}

impl Error {
    /// Stable code of the error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Grain => "invalid_grain",
            Self::Name { .. } => "invalid_site_name",
            Self::Invalid { .. } => "invalid_digest",
            Self::OtherGrain { .. } => "other_grain",
            Self::WholeWanted { .. } => "whole_wanted",
            Self::TooMany { .. } => "too_many_sites",
        }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }
}
