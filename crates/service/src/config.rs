//! The configuration of a service. Its JSON form is what `kvatlas serve` hands over, already checked there; durations
//! are in seconds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kvatlas_follow::Error;
use kvatlas_follow::seconds;
use kvatlas_http::{Secret, TlsConfig};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The configuration of a service: how queries come in, and how engines are followed.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Queries: the section `http` of the JSON form.
    pub http: HttpConfig,
    /// Engines: all its other sections.
    pub follow: kvatlas_follow::Config,
}

/// Settings for how queries come in.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// The address to listen on; port 0 lets the system choose.
    pub bind: SocketAddr,
    /// An address to listen on besides, for health, readiness and metrics only: without TLS and without a key.
    pub admin_bind: Option<SocketAddr>,
    /// Threads that answer; 0 for one a core.
    pub threads: usize,
    /// The bearer key that clients must show to ask; none for no check.
    pub key: Option<Secret>,
    /// A file with that key instead, read again when it changes.
    pub key_file: Option<PathBuf>,
    /// The bearer key that clients must show to register, unregister and dump; none if `key` is enough for that.
    pub admin_key: Option<Secret>,
    /// A file with that key instead, read again when it changes.
    pub admin_key_file: Option<PathBuf>,
    /// Host names that requests may name, besides this machine's own, where the service listens on loopback and asks
    /// for no key.
    pub hosts: Vec<String>,
    /// Certificate and key of the server; none for plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Bytes of a request's body at most.
    pub max_body: usize,
    /// Bytes of the bodies of all requests together; none for four times `max_body`, and 64 MiB at least.
    pub body_memory: Option<usize>,
    /// Connections at most; more wait to be accepted.
    pub max_connections: usize,
    /// From the first byte of a request's head to its last byte, and from there to the answer.
    #[serde(with = "seconds")]
    pub request_timeout: Duration,
    /// Without a request, until a connection is closed.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// True if each request is logged.
    pub access_log: bool,
    /// The policy on workers that are not trusted: answers leave them out, or only list them.
    pub untrusted: UntrustedPolicy,
}

/// The policy of answers on workers whose holdings may not be what the engine holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UntrustedPolicy {
    /// The workers' depths are left out, and the answer lists them.
    #[default]
    LeaveOut,
    /// The workers' depths are in, and the answer lists them.
    Flag,
}

/// Bytes and lines of a request's head at most.
const MAX_HEAD: (usize, usize) = (64 << 10, 100);

impl HttpConfig {
    /// The configuration of the HTTP server.
    pub(crate) fn front(&self) -> kvatlas_http::Config {
        let (max_head, max_headers) = MAX_HEAD;
        kvatlas_http::Config {
            bind: self.bind,
            admin_bind: self.admin_bind,
            threads: self.threads,
            key: self.key.clone(),
            key_file: self.key_file.clone(),
            admin_key: self.admin_key.clone(),
            admin_key_file: self.admin_key_file.clone(),
            hosts: self.hosts.clone(),
            tls: self.tls.clone(),
            max_body: self.max_body,
            body_memory: self.body_memory,
            max_head,
            max_headers,
            max_connections: self.max_connections,
            request_timeout: self.request_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.request_timeout,
        }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from(([127, 0, 0, 1], 8090)),
            admin_bind: None,
            threads: 0,
            key: None,
            key_file: None,
            admin_key: None,
            admin_key_file: None,
            hosts: Vec::new(),
            tls: None,
            max_body: 8 << 20,
            body_memory: None,
            max_connections: 4096,
            request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            access_log: false,
            untrusted: UntrustedPolicy::LeaveOut,
        }
    }
}

impl Config {
    /// Reads the configuration from JSON. Missing fields have their defaults.
    ///
    /// # Errors
    /// [`Error::Config`] names the field that is unknown or wrong.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let wrong = |error: serde_json::Error| Error::Config { message: error.to_string() };
        let mut sections: Map<String, Value> = serde_json::from_str(json).map_err(wrong)?;
        let http = sections.remove("http").map(serde_json::from_value).transpose().map_err(wrong)?;
        let http: HttpConfig = http.unwrap_or_default();
        for (name, zero) in [
            ("http.max_body", http.max_body == 0),
            ("http.max_connections", http.max_connections == 0),
            ("http.request_timeout", http.request_timeout.is_zero()),
        ] {
            if zero {
                return Err(Error::Config { message: format!("{name} must be above 0") });
            }
        }
        Ok(Self { http, follow: kvatlas_follow::Config::from_value(Value::Object(sections))? })
    }
}
