//! Many sites: what a service publishes of its indexes, and what the one above them knows.
//!
//! A site's service makes digests of its keyspaces; the service in the role `global` takes them in and
//! answers which sites can hold how much of a prompt.

mod config;
mod digests;
mod tops;

use kvatlas_digest::State;

pub use config::{Role, SitesConfig};
pub(crate) use digests::Digests;
pub use digests::KeyspaceDigest;
pub use tops::{Top, Tops};

/// The name of a site's state in answers and metrics.
#[must_use]
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Known => "known",
        State::Unknown => "unknown",
        State::Doubted => "doubted",
    }
}
