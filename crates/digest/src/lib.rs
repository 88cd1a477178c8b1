//! Sparse index of many sites: bounds on the leading blocks of a prompt that each site holds, in little memory.
//!
//! A *site* is a fleet of workers with an exact index of its own. It publishes a *digest*: the prefix hash at every G-th
//! block of each chain that one of its ranks holds from the start of a prompt. G is the *grain*. A digest is a set, sent
//! as the changes since the last one. The index of sites ([`Sites`]) keeps, for each prefix hash, the set of
//! sites that have it, and answers with bounds: a site with the prefix hash at depth 3 G, and not the one at 4 G, holds at
//! least 3 G and at most 4 G − 1 blocks. Routers ask the exact indexes of the few sites that matter.
//!
//! ```text
//! index of a site ──▶ marks ──▶ Publisher ──Digest──▶ Sites ──▶ bounds by site
//!                     (of a rank)   (differences)       table + sets + trust
//! ```
//!
//! | file | what |
//! |---|---|
//! | `error.rs` | errors of digests |
//! | `marks.rs` | prefix hashes at the grain, of a rank's blocks and of a prompt |
//! | `message.rs` | the bytes of a digest |
//! | `publisher.rs` | a site's side: marks that came and went since the last digest |
//! | `table.rs`, `sets.rs` | prefix hash to set of sites, in 12 bytes and a little room |
//! | `trust.rs` | the share of a site's claims that has held |
//! | `status.rs` | the status of each site, and counts |
//! | `sites.rs` | the index of sites, and its answers |
//!
//! No I/O and no clock: time is an argument.

mod error;
mod marks;
mod message;
mod publisher;
mod sets;
mod sites;
mod status;
mod table;
mod trust;

pub use error::Error;
pub use marks::{marks_of_prompt, marks_of_rank};
pub use message::Digest;
pub use publisher::{LookCounts, Publisher};
pub use sets::MAX_SITES;
pub use sites::{Answer, DigestEffect, Level, Sites};
pub use status::{Counts, SiteStatus, State};
pub use trust::Proof;
