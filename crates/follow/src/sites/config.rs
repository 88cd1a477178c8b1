//! Settings of services at many sites.

use std::time::Duration;

use serde::Deserialize;

/// The part of a service among many sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The service follows engines.
    Site,
    /// The service takes in the digests of sites.
    Global,
}

/// Settings for many sites that go together.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SitesConfig {
    /// The service's part.
    pub role: Role,
    /// Blocks between two marks of a chain: the same for all sites.
    pub grain: u32,
    /// Time without a digest after which a site may hold anything.
    #[serde(with = "kvatlas_settings::seconds")]
    pub unknown_after: Duration,
    /// Time without a digest after which a site is forgotten.
    #[serde(with = "kvatlas_settings::seconds")]
    pub forget_after: Duration,
}
