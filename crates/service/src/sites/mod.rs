//! Many sites: what a service publishes of its indexes, and what the one above them knows.
//!
//! A site's service makes digests of its keyspaces; the service in the role `global` takes them in and
//! answers which sites can hold how much of a prompt.

mod digests;
mod tops;

use std::time::Duration;

use serde::Deserialize;

pub(crate) use digests::Digests;
pub use digests::KeyspaceDigest;
pub(crate) use tops::{Top, Tops};

/// What a service is among many sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It follows engines.
    #[default]
    Site,
    /// It takes in the digests of sites.
    Global,
}

/// How many sites go together.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SitesConfig {
    /// What the service is.
    pub role: Role,
    /// Blocks between two marks of a chain: the same for all sites.
    pub grain: u32,
    /// Time without a digest after which a site may hold anything.
    #[serde(with = "crate::config::seconds")]
    pub unknown_after: Duration,
    /// Time without a digest after which a site is forgotten.
    #[serde(with = "crate::config::seconds")]
    pub forget_after: Duration,
}

impl Default for SitesConfig {
    fn default() -> Self {
        Self {
            role: Role::default(),
            grain: 32,
            unknown_after: Duration::from_secs(30),
            forget_after: Duration::from_secs(3600),
        }
    }
}
