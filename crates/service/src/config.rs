//! The configuration of a service, as JSON from `kvatlas serve`, which has checked it; durations are in seconds.

use kvatlas_follow::Error;
use kvatlas_settings::merge;
use serde::Deserialize;
use serde_json::Value;

/// Defaults of the section `http`, declared in Python and written by `tools/generate_defaults.py`.
const DEFAULTS: &str = include_str!("../defaults.json");

/// The configuration of a service: its HTTP server, and the following of engines.
#[derive(Debug, Clone)]
pub struct Config {
    /// Settings of the HTTP server: the section `http`, without `untrusted`.
    pub http: kvatlas_http::Config,
    /// Treatment of untrusted workers in answers.
    pub untrusted: UntrustedPolicy,
    /// Settings for following engines: all other sections.
    pub follow: kvatlas_follow::Config,
}

/// Treatment, in answers, of workers whose indexed blocks may differ from their engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UntrustedPolicy {
    /// Omits the workers' depths, and lists the workers.
    LeaveOut,
    /// Includes the workers' depths, and lists the workers.
    Flag,
}

impl Config {
    /// Parses the configuration from JSON. Missing fields have their defaults.
    ///
    /// # Errors
    /// [`Error::Config`] names the field that is unknown or wrong.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let wrong = |error: serde_json::Error| Error::Config { message: error.to_string() };
        let mut sections: Value = serde_json::from_str(json).map_err(wrong)?;
        let mut http: Value = serde_json::from_str(DEFAULTS).map_err(wrong)?;
        if let Some(given) = sections.as_object_mut().and_then(|sections| sections.remove("http")) {
            merge(&mut http, given);
        }
        let untrusted = http.as_object_mut().and_then(|http| http.remove("untrusted")).unwrap_or_default();
        let untrusted = serde_json::from_value(untrusted).map_err(wrong)?;
        let http: kvatlas_http::Config = serde_json::from_value(http).map_err(wrong)?;
        http.check().map_err(|message| Error::Config { message })?;
        Ok(Self { http, untrusted, follow: kvatlas_follow::Config::from_value(sections)? })
    }
}
