//! Settings of an HTTP server: the section `http` of a service and of a router. Python declares and checks them, and
//! passes them as JSON; durations are in seconds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use kvatlas_settings::{Secret, seconds};

/// Settings of an HTTP server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address to listen on; port 0 lets the system choose.
    pub bind: SocketAddr,
    /// Second address, for health, readiness and metrics only, without TLS and without a key; None for no such
    /// listener.
    pub admin_bind: Option<SocketAddr>,
    /// Number of serving threads; 0 for one per core.
    pub threads: usize,
    /// Bearer key that clients must send; None for open access.
    pub key: Option<Secret>,
    /// File with the key, read again when it changes; None if there is none.
    pub key_file: Option<PathBuf>,
    /// Bearer key for requests that change something; None if `key` suffices.
    pub admin_key: Option<Secret>,
    /// File with the admin key, read again when it changes; None if there is none.
    pub admin_key_file: Option<PathBuf>,
    /// Host names that requests may use, besides this machine's own and addresses. If the list is empty, hosts are
    /// checked only if the server listens on loopback without a key.
    pub hosts: Vec<String>,
    /// Origins, besides the server's own, whose web pages may send requests and read answers. Used only by the router.
    #[serde(default)]
    pub origins: Vec<String>,
    /// Certificate and key of the server; None for plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Maximum size of a request's body in bytes.
    pub max_body: usize,
    /// Maximum size of the bodies of all requests together, in bytes; None for four times `max_body`, and at least 64
    /// MiB.
    pub body_memory: Option<usize>,
    /// Maximum size of a request's head in bytes.
    pub max_head: usize,
    /// Maximum number of lines in a request's head.
    pub max_headers: usize,
    /// Maximum number of open connections; further ones wait to be accepted.
    pub max_connections: usize,
    /// Longest time from the first byte of a request to the last one of its body.
    #[serde(with = "seconds")]
    pub request_timeout: Duration,
    /// Time without a request after which a connection is closed.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// Time limit for a client to take the next 16 KiB of an available answer, or the rest of it.
    #[serde(with = "seconds")]
    pub write_timeout: Duration,
    /// True if each request is written to the access log.
    pub access_log: bool,
}

/// The settings of an HTTP server that can change while it runs.
#[derive(Debug, Clone, Deserialize)]
pub struct LiveSettings {
    /// Host names that requests may use, as in [`Config`].
    pub hosts: Vec<String>,
    /// Origins of web pages, as in [`Config`].
    #[serde(default)]
    pub origins: Vec<String>,
    /// True if each request is written to the access log.
    pub access_log: bool,
}

impl From<&Config> for LiveSettings {
    fn from(config: &Config) -> Self {
        Self { hosts: config.hosts.clone(), origins: config.origins.clone(), access_log: config.access_log }
    }
}

impl Config {
    /// Checks the settings again, for programs in Rust; Python has checked its own.
    ///
    /// # Errors
    /// The name of a setting that must be above 0 and is not.
    pub fn check(&self) -> Result<(), String> {
        for (name, is_zero) in [
            ("http.max_body", self.max_body == 0),
            ("http.max_connections", self.max_connections == 0),
            ("http.request_timeout", self.request_timeout.is_zero()),
        ] {
            if is_zero {
                return Err(format!("{name} must be above 0"));
            }
        }
        Ok(())
    }

    /// Maximum size of the bodies of all requests together, in bytes.
    #[must_use]
    pub fn body_memory(&self) -> usize {
        self.body_memory.unwrap_or_else(|| self.max_body.saturating_mul(4).max(64 << 20))
    }
}

/// PEM files for TLS.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificate chain, the server's own certificate first.
    pub cert: PathBuf,
    /// Private key of the server's certificate.
    pub key: PathBuf,
    /// Authorities that sign client certificates; None if clients need no certificate.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}
