//! Routers beside this one, in front of the same engines: each tells the others what it has at each engine, so that they
//! do not all choose the one that has least to do.
//!
//! Routers tell sums of requests, tokens and blocks to come, and which requests these are, with the hashes of their
//! prompts' blocks: it counts in the decision core like this router's own, until the other says otherwise or falls
//! silent. Engines are told apart by name.
//!
//! A peer is a URL, or a name of which every address is one (`dns:NAME:PORT`): those of a headless Service of Kubernetes,
//! among them this router's own, which is found out when it hears itself.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kvatlas_routing::Work;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::{Config, EngineConfig};
use crate::engine::Engine;
use crate::error::Error;
use crate::names;

/// Time for which a message counts; the longest that is believed; time within which it must be taken.
pub(crate) const COUNTS: Duration = Duration::from_secs(2);
pub(crate) const MOST_SECONDS: f64 = 60.0;
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// Bytes of what another tells.
pub(crate) const MOST_BYTES: usize = 4 << 20;

/// The outcomes of what was told: by this router, and to it.
pub(crate) const RESULTS: [&str; 4] = ["told", "not_taken", "heard", "unknown_engine"];

/// The position of a router that tells of its requests: its number, and that of its last message that was taken in.
pub(crate) type Positions = std::collections::HashMap<u64, u64>;

/// The routers beside this one.
pub(crate) struct Peers {
    /// Number that stands for this router, for the others.
    pub(crate) number: u64,
    pub(crate) others: Vec<Arc<Engine>>,
    pub(crate) names: Vec<Name>,
    /// Engines' ranks that were told and heard of, and messages that were not taken, by [`RESULTS`].
    pub(crate) counts: [AtomicU64; RESULTS.len()],
    pub(crate) positions: Mutex<Positions>,
}

/// A name of which every address is a router's.
#[derive(Clone)]
pub(crate) struct Name {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Name {
    /// Parses `dns:NAME:PORT`; none if it is something else.
    fn parse(peer: &str) -> Option<Self> {
        let (host, port) = peer.strip_prefix("dns:")?.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(Self { host: host.to_owned(), port }).filter(|name| !name.host.is_empty())
    }
}

/// The work that a router has at one rank of an engine.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) engine: String,
    pub(crate) rank: u32,
    requests: u32,
    waiting: u32,
    queued_tokens: f64,
    queued_prompt_tokens: f64,
    context_tokens: f64,
    #[serde(default)]
    used_blocks: f64,
    output_tokens_left: f64,
}

impl Row {
    pub(crate) fn new(engine: &str, rank: u32, work: &Work) -> Self {
        Self {
            engine: engine.to_owned(),
            rank,
            requests: work.requests,
            waiting: work.waiting,
            queued_tokens: work.queued_tokens,
            queued_prompt_tokens: work.queued_prompt_tokens,
            context_tokens: work.context_tokens,
            used_blocks: work.used_blocks,
            output_tokens_left: work.output_tokens_left,
        }
    }

    pub(crate) fn work(&self) -> Work {
        Work {
            requests: self.requests,
            waiting: self.waiting,
            queued_tokens: self.queued_tokens,
            queued_prompt_tokens: self.queued_prompt_tokens,
            context_tokens: self.context_tokens,
            used_blocks: self.used_blocks,
            output_tokens_left: self.output_tokens_left,
        }
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
        Ok(Self {
            number: names::number() >> 11,
            others,
            names,
            counts: Default::default(),
            positions: Mutex::default(),
        })
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
