//! Sparse index of the cached blocks of many sites: bounds on the number of a prompt's leading blocks that each site
//! holds, in little memory.
//!
//! A *site* is a fleet of workers with an exact index of its own. It publishes a *digest*: a *mark*, the prefix hash,
//! at every G-th block of each chain that one of its ranks holds from the start of a prompt. G is the *grain*. A digest
//! is a set of marks, sent as the changes since the last one. The index of sites ([`Sites`]) keeps, for each mark, the
//! set of sites that have it, and answers with bounds: a site with the prefix hash at depth 3 G, and not the one at 4
//! G, holds at least 3 G and at most 4 G − 1 blocks. Routers then ask the exact indexes of the few best sites.
//!
//! ```text
//! index of a site ──▶ marks ──▶ Publisher ──Digest──▶ Sites ──▶ bounds by site
//!                     (of a rank)   (differences)       table + sets + trust
//! ```
//!
//! | file | what |
//! |---|---|
//! | `marks.rs` | prefix hashes at the grain, of a rank's blocks and of a prompt |
//! | `message.rs` | the bytes of a digest |
//! | `publisher.rs` | a site's side: marks that came and went since the last digest |
//! | `table.rs` | prefix hash to set of sites, in 12 bytes and some free space |
//! | `status.rs` | the status of each site, the share of its claims that has held, and counts |
//! | `sites.rs` | the index of sites, and its answers |
//!
//! This crate has no I/O and no clock; callers pass the time.

mod marks;
mod message;
mod publisher;
mod sites;
mod status;
mod table;

pub use marks::{marks_of_prompt, marks_of_rank};
pub use message::Digest;
pub use publisher::{LookCounts, Publisher};
pub use sites::{Answer, DigestEffect, Level, Sites};
pub use status::{Counts, Proof, SiteStatus, State};
pub use table::MAX_SITES;

/// Error in a digest, or in a setting of digests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The grain, the number of blocks between the prefix hashes of a digest, is 0.
    #[error("the grain must be at least 1 block, got 0")]
    Grain,
    /// The site's name in a digest is empty or too long.
    #[error("a site's name has 1 to {most} bytes, got {got}")]
    Name {
        /// Length of the given site name, in bytes.
        got: usize,
        /// Maximum length of a site's name in a digest, in bytes.
        most: usize,
    },
    /// The bytes are not a valid digest.
    #[error("not a digest: {what}")]
    Invalid {
        /// Description of what is wrong with the bytes of a digest.
        what: String,
    },
    /// A site's digest has another grain (number of blocks between its prefix hashes) than the index of sites.
    #[error("the digest has a grain of {got} blocks, and this index of sites has {expected}: use the same everywhere")]
    OtherGrain {
        /// Grain of the digest: the number of blocks between its prefix hashes.
        got: u32,
        /// Grain of the index of sites: the number of blocks between the prefix hashes that it expects.
        expected: u32,
    },
    /// A whole digest is needed, because an earlier digest is missing or the site has restarted.
    #[error("a whole digest is wanted: {why}")]
    WholeWanted {
        /// Reason why a whole digest, instead of changes, is needed.
        why: &'static str,
    },
    /// A site cannot be added, because there are too many.
    #[error("there are {most} sites already, and no more can be numbered")]
    TooMany {
        /// Maximum number of sites in the index of sites.
        most: usize,
    },
}

impl Error {
    /// Stable code of the error, a word for programs.
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
