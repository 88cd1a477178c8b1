//! The settings of an HTTP server: the section `http` of a service and of a router. Python declares and checks them, and
//! hands them over as JSON; durations are in seconds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use kvatlas_settings::{Secret, seconds};

/// The settings of an HTTP server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The address to listen on; port 0 lets the system choose.
    pub bind: SocketAddr,
    /// A second address, for health, readiness and metrics only: without TLS and without a key.
    pub admin_bind: Option<SocketAddr>,
    /// Threads that serve; 0 for one a core.
    pub threads: usize,
    /// The bearer key that clients must show to ask; none for no check.
    pub key: Option<Secret>,
    /// A file with that key instead, read again when it changes.
    pub key_file: Option<PathBuf>,
    /// The bearer key for changes; none if `key` is enough for that.
    pub admin_key: Option<Secret>,
    /// A file with that key instead, read again when it changes.
    pub admin_key_file: Option<PathBuf>,
    /// Host names that requests may name, besides this machine's own and addresses. If there are none, they are checked
    /// only where the server listens on loopback and asks for no key.
    pub hosts: Vec<String>,
    /// Origins, besides the server's own, whose web pages may send requests and read answers. Only a router has some.
    #[serde(default)]
    pub origins: Vec<String>,
    /// Certificate and key of the server; none for plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Bytes of a request's body at most.
    pub max_body: usize,
    /// Bytes of the bodies of all requests together; none for four times `max_body`, and 64 MiB at least.
    pub body_memory: Option<usize>,
    /// Bytes of a request's head at most.
    pub max_head: usize,
    /// Lines of a request's head at most.
    pub max_headers: usize,
    /// Connections at most; more wait to be accepted.
    pub max_connections: usize,
    /// The longest time from the first byte of a request to the last of its body.
    #[serde(with = "seconds")]
    pub request_timeout: Duration,
    /// The time without a request after which a connection is closed.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// The time within which a client must take the next 16 KiB of an answer that is there, or the rest of it.
    #[serde(with = "seconds")]
    pub write_timeout: Duration,
    /// True if each request is logged.
    pub access_log: bool,
}

impl Config {
    /// Checks what Python has checked already, for programs in Rust.
    ///
    /// # Errors
    /// The name of a setting that must be above 0, and is not.
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

    /// Bytes of the bodies of all requests together.
    #[must_use]
    pub fn body_memory(&self) -> usize {
        self.body_memory.unwrap_or_else(|| self.max_body.saturating_mul(4).max(64 << 20))
    }
}

/// Files in PEM for TLS.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The chain, the server's own certificate first.
    pub cert: PathBuf,
    /// The private key of the server's certificate.
    pub key: PathBuf,
    /// Authorities one of which must have signed the certificate of a client; none if clients need no certificate.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}
