//! Settings of services at many sites.

use std::time::Duration;

use serde::Deserialize;

/// The part of a service among many sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The service follows engines.
    #[default]
    Site,
    /// The service takes in the digests of sites.
    Global,
}

/// Settings for many sites that go together.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SitesConfig {
    /// The service's part.
    pub role: Role,
    /// Blocks between two marks of a chain: the same for all sites.
    pub grain: u32,
    /// Time without a digest after which a site may hold anything.
    #[serde(with = "crate::seconds")]
    pub unknown_after: Duration,
    /// Time without a digest after which a site is forgotten.
    #[serde(with = "crate::seconds")]
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
