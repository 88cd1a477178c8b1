//! The configuration of a service. Its JSON form is what `kvatlas serve` hands over, already checked there; durations
//! are in seconds.

use kvatlas_follow::Error;
use kvatlas_settings::merge;
use serde::Deserialize;
use serde_json::Value;

/// The defaults of the section `http`, which Python declares: `tools/generate_defaults.py` writes the file.
const DEFAULTS: &str = include_str!("../defaults.json");

/// The configuration of a service: how queries come in, and how engines are followed.
#[derive(Debug, Clone)]
pub struct Config {
    /// The HTTP server: the section `http` of the JSON form, without `untrusted`.
    pub http: kvatlas_http::Config,
    /// The policy on workers that are not trusted: answers leave them out, or only list them.
    pub untrusted: UntrustedPolicy,
    /// Engines: all other sections.
    pub follow: kvatlas_follow::Config,
}

/// The policy of answers on workers whose holdings may not be what the engine holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UntrustedPolicy {
    /// The workers' depths are left out, and the answer lists them.
    LeaveOut,
    /// The workers' depths are in, and the answer lists them.
    Flag,
}

impl Config {
    /// Reads the configuration from JSON. What is missing has its default.
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
