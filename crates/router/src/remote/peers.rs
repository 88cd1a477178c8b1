//! Other routers in front of the same engines (peers). Each router reports its requests to the others
//! ([`peer_requests`](super::peer_requests)), so that not all of them choose the same least loaded engine.
//!
//! A peer is given as a URL, or as a host name all of whose addresses are peers (`dns:NAME:PORT`, with TLS
//! `dns+https:NAME:PORT`), such as the name of a headless Service of Kubernetes. This router's own address may be among
//! the addresses; the router detects it by receiving its own report. If a peer requests a client certificate, this
//! router presents its own server certificate.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kvatlas_http::Gate;
use parking_lot::Mutex;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, SignatureScheme};

use crate::config::{Config, EngineConfig};
use crate::engines::Engine;
use crate::error::Error;
use crate::ids;

/// Names, in the metrics, of the counts in [`Peers::counts`]: first outcomes of this router's reports, then requests in
/// other routers' reports, at known and at unknown engines.
pub(crate) const RESULTS: [&str; 6] = ["told", "not_taken", "refused", "bad_certificate", "heard", "unknown_engine"];
pub(crate) const TOLD: usize = 0;
pub(crate) const NOT_TAKEN: usize = 1;
pub(crate) const REFUSED: usize = 2;
pub(crate) const BAD_CERTIFICATE: usize = 3;
pub(crate) const HEARD: usize = 4;
pub(crate) const UNKNOWN_ENGINE: usize = 5;

/// Numbers of the last reports accepted from other routers, by the sending router's id.
pub(crate) type Positions = HashMap<u64, u64>;

/// Other routers in front of the same engines, with the state of the exchange of reports about requests.
pub(crate) struct Peers {
    /// Random id by which this router identifies itself to other routers.
    pub(crate) number: u64,
    pub(crate) others: Vec<Arc<Engine>>,
    pub(crate) names: Vec<Name>,
    /// Numbers of reports sent to other routers and of requests reported by them, by the outcome ([`RESULTS`]).
    pub(crate) counts: [AtomicU64; RESULTS.len()],
    pub(crate) positions: Mutex<Positions>,
    /// TLS configuration for connections to other routers.
    tls: Arc<ClientConfig>,
}

/// Host name whose addresses are all those of other routers.
#[derive(Clone)]
pub(crate) struct Name {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// True if connections to the addresses use TLS; each address must then have a certificate for the host name.
    is_https: bool,
}

impl Name {
    /// Parses `dns:NAME:PORT` or `dns+https:NAME:PORT`; None for any other text.
    fn parse(peer: &str) -> Option<Self> {
        let (scheme, rest) = peer.split_once(':')?;
        let is_https = match scheme {
            "dns" => false,
            "dns+https" => true,
            _ => return None,
        };
        let (host, port) = rest.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(Self { host: host.to_owned(), port, is_https }).filter(|name| !name.host.is_empty())
    }
}

impl Peers {
    /// Makes the state from the configuration. `tls`: TLS configuration that verifies the certificates of other
    /// routers; `gate`: has this router's own certificate.
    pub(crate) fn new(config: &Config, tls: &ClientConfig, gate: &Arc<Gate>) -> Result<Self, Error> {
        let mut tls = tls.clone();
        tls.client_auth_cert_resolver = Arc::new(OwnCertificate(gate.clone()));
        let tls = Arc::new(tls);
        let (mut others, mut names) = (Vec::new(), Vec::new());
        for peer in &config.peers {
            match Name::parse(peer) {
                Some(name) => names.push(name),
                None if peer.starts_with("http://") || peer.starts_with("https://") => {
                    others.push(Arc::new(at(config, peer, &tls)?));
                }
                None => {
                    let wanted = "https://host:port, http://host:port, dns+https:name:port or dns:name:port";
                    return Err(Error::config(format!("a peer must be {wanted}, got {peer:?}")));
                }
            }
        }
        let (counts, positions) = (Default::default(), Mutex::default());
        Ok(Self { number: ids::number() >> 11, others, names, counts, positions, tls })
    }

    /// Makes the client of another router, at one of the addresses of a host name.
    pub(crate) fn of_name(&self, config: &Config, name: &Name, address: SocketAddr) -> Result<Arc<Engine>, Error> {
        let scheme = if name.is_https { "https" } else { "http" };
        let mut other = at(config, &format!("{scheme}://{address}"), &self.tls)?;
        other.address.certified = Some(name.host.clone());
        Ok(Arc::new(other))
    }
}

/// Makes the client of another router at the URL `url`.
fn at(config: &Config, url: &str, tls: &Arc<ClientConfig>) -> Result<Engine, Error> {
    // The keys of engines are not for other routers.
    let mut settings = config.clone();
    settings.upstream.key = None;
    let at = EngineConfig { key: config.peer_key.clone(), ..EngineConfig::at(url) };
    Engine::new(at, &settings, 1, Some(tls.clone()))
}

/// This router's own certificate, presented to other routers that request a client certificate.
struct OwnCertificate(Arc<Gate>);

impl fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnCertificate")
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _roots: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.certificate()
    }

    fn has_certs(&self) -> bool {
        self.0.certificate().is_some()
    }
}
