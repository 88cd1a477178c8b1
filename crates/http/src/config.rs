//! Settings of an HTTP server: the section `http` in the settings of a service or a router. Python declares and checks
//! the settings, and passes them as JSON; durations are in seconds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use kvatlas_settings::{Secret, seconds};

/// Settings of an HTTP server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address at which the server listens; port 0 lets the system choose a port.
    pub bind: SocketAddr,
    /// Second address at which the server listens, for health, readiness and metrics only, without TLS and without a
    /// key; None for no such listener.
    pub admin_bind: Option<SocketAddr>,
    /// Number of serving threads; 0 for one per core.
    pub threads: usize,
    /// Key that clients must send as a bearer token; None for open access.
    pub key: Option<Secret>,
    /// File with the key for clients, read again when it changes; None for no file.
    pub key_file: Option<PathBuf>,
    /// Key that clients must send as a bearer token to make changes; None if `key` suffices.
    pub admin_key: Option<Secret>,
    /// File with the admin key, read again when it changes; None for no file.
    pub admin_key_file: Option<PathBuf>,
    /// Host names that requests may use for this server, besides this machine's own names and IP addresses. If the list
    /// is empty, hosts are checked only if the server listens on loopback without a key.
    pub hosts: Vec<String>,
    /// Origins (scheme, host and port), besides the server's own, whose web pages may send requests and read answers.
    /// Used only by the router.
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
    /// Maximum number of open connections; further connections wait to be accepted.
    pub max_connections: usize,
    /// Longest time from the first byte of a request to the last byte of its body.
    #[serde(with = "seconds")]
    pub request_timeout: Duration,
    /// Time without a request after which a connection is closed.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// Time limit for a client to read the next 16 KiB of an available answer, or the rest of the answer.
    #[serde(with = "seconds")]
    pub write_timeout: Duration,
    /// True if each request is written to the access log.
    pub access_log: bool,
}

/// Settings of an HTTP server that can change while it runs.
#[derive(Debug, Clone, Deserialize)]
pub struct LiveSettings {
    /// Host names that requests may use for this server; see `hosts` in [`Config`].
    pub hosts: Vec<String>,
    /// Origins whose web pages may send requests; see `origins` in [`Config`].
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
    /// Checks the settings again, for programs in Rust, as Python checks only those passed from Python.
    ///
    /// # Errors
    /// The name of a setting that is 0 and must be above 0.
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

    /// Returns the maximum size of the bodies of all requests together, in bytes.
    #[must_use]
    pub fn body_memory(&self) -> usize {
        self.body_memory.unwrap_or_else(|| self.max_body.saturating_mul(4).max(64 << 20))
    }
}

/// PEM files for TLS: certificate, private key and certificate authorities.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// File with the certificate chain, the server's own certificate first.
    pub cert: PathBuf,
    /// File with the private key of the server's certificate.
    pub key: PathBuf,
    /// File with the authorities that sign client certificates; None if clients need no certificate.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}
