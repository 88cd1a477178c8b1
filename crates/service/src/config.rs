//! Configuration of the index service, passed as JSON by `kvatlas serve`, which has validated it. Durations are in
//! seconds.

use kvatlas_follow::Error;
use kvatlas_settings::merge;
use serde::Deserialize;
use serde_json::Value;

/// Default settings of the section `http` as JSON, declared in Python and written by `tools/generate_defaults.py`.
const DEFAULTS: &str = include_str!("../defaults.json");

/// Configuration of the index service: settings of its HTTP server, and settings for following engines.
#[derive(Debug, Clone)]
pub struct Config {
    /// Settings of the HTTP server: the section `http`, except for the field `untrusted`.
    pub http: kvatlas_http::Config,
    /// Treatment, in answers, of workers whose indexed blocks may differ from their engine's.
    pub untrusted: UntrustedPolicy,
    /// Settings for following engines: all sections other than `http`.
    pub follow: kvatlas_follow::Config,
}

/// Treatment, in answers, of workers whose indexed blocks may differ from their engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UntrustedPolicy {
    /// Leaves the workers' depths out of answers, and names the workers in a separate list.
    LeaveOut,
    /// Includes the workers' depths in answers, and also names the workers in a separate list.
    Flag,
}

impl Config {
    /// Parses the configuration from JSON. Missing fields get their default values.
    ///
    /// # Errors
    /// [`Error::Config`] names the field that is unknown or invalid.
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
