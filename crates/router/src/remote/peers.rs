//! Peers: other routers in front of the same engines. Each reports its requests to the others
//! ([`peer_requests`](super::peer_requests)), so that they do not all choose the engine with the least to do.
//!
//! A peer is a URL, or a host name whose addresses are all peers (`dns:NAME:PORT`), such as that of a headless Service of
//! Kubernetes. This router's own address may be among them: it finds out when it hears itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::config::{Config, EngineConfig};
use crate::engines::Engine;
use crate::error::Error;
use crate::ids;

/// Names of [`Peers::counts`]: reports of this router that were accepted and not, and requests in reports of others that
/// count here and that are at an engine of no name here.
pub(crate) const RESULTS: [&str; 4] = ["told", "not_taken", "heard", "unknown_engine"];

/// Number of the last report accepted from each router, by the router's number.
pub(crate) type Positions = HashMap<u64, u64>;

/// The other routers, and the exchange with them.
pub(crate) struct Peers {
    /// Random number that identifies this router to the others.
    pub(crate) number: u64,
    pub(crate) others: Vec<Arc<Engine>>,
    pub(crate) names: Vec<Name>,
    /// Counts by [`RESULTS`].
    pub(crate) counts: [AtomicU64; RESULTS.len()],
    pub(crate) positions: Mutex<Positions>,
}

/// A host name whose addresses are all peers.
#[derive(Clone)]
pub(crate) struct Name {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Name {
    /// Parses `dns:NAME:PORT`.
    fn parse(peer: &str) -> Option<Self> {
        let (host, port) = peer.strip_prefix("dns:")?.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(Self { host: host.to_owned(), port }).filter(|name| !name.host.is_empty())
    }
}

impl Peers {
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let (mut others, mut names) = (Vec::new(), Vec::new());
        for peer in &config.peers {
            match Name::parse(peer) {
                Some(name) => names.push(name),
                None if peer.starts_with("http://") => others.push(other(config, peer)?),
                None => {
                    let message = format!("a peer must be http://host:port or dns:name:port, got {peer:?}");
                    return Err(Error::config(message));
                }
            }
        }
        Ok(Self { number: ids::number() >> 11, others, names, counts: Default::default(), positions: Mutex::default() })
    }
}

/// Another router, at its address.
pub(crate) fn other(config: &Config, url: &str) -> Result<Arc<Engine>, Error> {
    // The keys of engines are not for other routers.
    let mut settings = config.clone();
    settings.upstream.key = None;
    let at = EngineConfig { key: config.peer_key.clone(), ..EngineConfig::at(url) };
    Engine::new(at, &settings, 1, None).map(Arc::new)
}
