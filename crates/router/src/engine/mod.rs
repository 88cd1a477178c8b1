//! Engines: where they are, how they do, and connections to them.

mod address;
mod chunked;
mod connection;
mod fault;
mod health;
mod pool;
mod recent;
mod reported;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::header::HeaderValue;
use kvatlas_routing::WorkerId;
use serde_json::{Value, json};
use tokio_rustls::rustls::ClientConfig;

pub use self::address::Address;
pub(crate) use self::connection::{Connection, Framing, Head};
pub(crate) use self::fault::{Fault, NAMES as FAULTS};
pub(crate) use self::health::Health;
pub use self::health::Standing;
pub(crate) use self::pool::Pool;
pub(crate) use self::recent::Recent;
pub(crate) use self::reported::loads;
use crate::clock::millis;
use crate::condition::{Condition, Refused};
use crate::config::{Config, EngineConfig, Role};
use crate::error::Error;
use crate::lock;

/// An engine.
pub struct Engine {
    /// What it is called.
    pub name: Arc<str>,
    /// Where it is.
    pub address: Address,
    /// What was said of it.
    pub config: EngineConfig,
    /// What it serves.
    pub models: ArcSwap<Models>,
    /// Whether it has been asked what it serves, whatever came of it, or that was said of it.
    pub(crate) is_known: AtomicBool,
    pub(crate) health: Arc<Health>,
    /// Whether it may hold nothing of what is known of it, as only a number says that it has not restarted.
    pub(crate) is_unverified: AtomicBool,
    pub(crate) counts: Arc<Counts>,
    /// How its last requests ended.
    pub(crate) recent: Arc<Recent>,
    /// Why it is down, if it is.
    pub(crate) why_down: Arc<Mutex<Option<String>>>,
    /// The worst thing that is known of it, as seen last.
    pub(crate) condition: Mutex<Option<Condition>>,
    pub(crate) refused: Mutex<Refused>,
    pub(crate) pool: Pool,
    tls: Option<Arc<ClientConfig>>,
    connect_timeout: Duration,
    /// The value of the `Authorization` header that it wants.
    pub(crate) authorization: Option<String>,
    /// What the decision core calls its ranks, once it is there.
    pub(crate) ids: OnceLock<Box<[WorkerId]>>,
    /// Its name, as a header's value.
    pub(crate) header: HeaderValue,
}

/// The models and adapters that an engine serves.
#[derive(Debug, Clone, Default)]
pub struct Models {
    /// By name, in the engine's own order. Empty: nobody knows, and it takes any.
    pub names: Vec<Model>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// What clients call it.
    pub name: String,
    /// For an adapter: the model that it adapts.
    pub parent: Option<String>,
    /// What the engine's own `/v1/models` says of it.
    pub card: Value,
}

/// What has happened with an engine.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Answers by the first digit of their status, from 1 on.
    pub(crate) answers: [AtomicU64; 5],
    /// Requests that got no answer, by [`FAULTS`].
    pub(crate) faults: [AtomicU64; FAULTS.len()],
    /// Answers that broke off in the middle.
    pub(crate) broken: AtomicU64,
    /// Requests that the client gave up.
    pub(crate) cancelled: AtomicU64,
    /// Requests there now.
    pub(crate) in_flight: AtomicUsize,
    /// Of those, the ones without a byte of an answer's body.
    pub(crate) waiting: AtomicUsize,
    /// When a byte last came; when the first request came while there was none.
    pub(crate) last_byte: AtomicU64,
    /// Connections made.
    pub(crate) connections: AtomicU64,
    /// How often it was left alone because of failures.
    pub(crate) opened: AtomicU64,
    /// Prompt tokens that it says it had cached, and prompt tokens of the same requests.
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    /// Tokens that it says it has generated.
    pub(crate) output_tokens: AtomicU64,
}

impl Models {
    /// Whether requests for `model` can go there.
    #[must_use]
    pub fn serves(&self, model: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|known| known.name == model)
    }

    /// The model behind a name: itself, or what it adapts.
    #[must_use]
    pub fn base<'a>(&'a self, model: &'a str) -> &'a str {
        let known = self.names.iter().find(|known| known.name == model);
        known.and_then(|known| known.parent.as_deref()).unwrap_or(model)
    }
}

impl Engine {
    pub(crate) fn new(
        config: EngineConfig,
        all: &Config,
        shards: usize,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self, Error> {
        let (name, address) = Self::place(&config)?;
        let name: Arc<str> = name.into();
        if name.is_empty() || name.len() > 256 {
            return Err(Error::config(format!("an engine's name must have 1 to 256 bytes, got {} bytes", name.len())));
        }
        if !(config.weight > 0.0 && config.weight.is_finite()) {
            return Err(Error::config(format!("engine {name}: weight must be above 0, got {}", config.weight)));
        }
        if !config.ranks.are_valid() {
            let wanted = "ranks must be a number from 1 to 1024, or a list of so many numbers in ascending order";
            return Err(Error::config(format!("engine {name}: {wanted}")));
        }
        let card = |name: &String| Model {
            name: name.clone(),
            parent: None,
            card: json!({ "id": name, "object": "model", "owned_by": "kvatlas" }),
        };
        let is_known = AtomicBool::new(!config.models.is_empty());
        let models = Models { names: config.models.iter().map(card).collect() };
        let common = all.upstream.key.as_ref().filter(|_| config.use_key != Some(false));
        let key = config.key.as_ref().or(common);
        Ok(Self {
            address,
            models: ArcSwap::from_pointee(models),
            is_known,
            health: Arc::new(Health::new(&all.health)),
            is_unverified: AtomicBool::new(false),
            counts: Arc::default(),
            recent: Arc::default(),
            why_down: Arc::default(),
            condition: Mutex::default(),
            refused: Mutex::default(),
            pool: Pool::new(shards, all.upstream.idle_connections, all.upstream.idle_timeout),
            tls,
            connect_timeout: all.upstream.connect_timeout,
            authorization: key.map(|key| format!("Bearer {}", key.reveal())),
            ids: OnceLock::new(),
            header: HeaderValue::from_bytes(name.as_bytes()).unwrap_or_else(|_| HeaderValue::from_static("?")),
            name,
            config,
        })
    }

    /// The name and the address of an engine.
    pub(crate) fn place(config: &EngineConfig) -> Result<(String, Address), Error> {
        let address: Address = config.url.parse()?;
        let default_name = || format!("{}{}", address.authority, address.base);
        Ok((config.name.clone().unwrap_or_else(default_name), address))
    }

    /// True if it is shown the key of all engines, if it has none of its own.
    pub(crate) fn uses_key(&self) -> bool {
        self.config.use_key != Some(false)
    }

    /// It is the one that `old` is, with other settings: what is known of that stays so.
    pub(crate) fn goes_on_from(&mut self, old: &Self) {
        self.health = old.health.clone();
        self.counts = old.counts.clone();
        self.recent = old.recent.clone();
        self.why_down = old.why_down.clone();
        self.condition = Mutex::new(lock(&old.condition).clone());
        if self.config.models.is_empty() && old.config.models.is_empty() {
            self.models.store(old.models.load_full());
            self.is_known.store(old.is_known.load(Relaxed), Relaxed);
        }
    }

    /// A connection, kept or new.
    pub(crate) async fn connection(&self, shard: usize) -> Result<Connection, Fault> {
        match self.pool.take(shard) {
            Some(connection) => Ok(connection),
            None => self.new_connection().await,
        }
    }

    /// A new connection.
    pub(crate) async fn new_connection(&self) -> Result<Connection, Fault> {
        self.counts.connections.fetch_add(1, Relaxed);
        Connection::connect(&self.address, self.tls.as_ref(), self.connect_timeout).await
    }

    /// Whether it does such work.
    pub(crate) fn does(&self, role: Role) -> bool {
        self.config.role == role || self.config.role == Role::Both || role == Role::Both
    }

    /// A request goes there.
    pub(crate) fn sent(&self) {
        self.health.sent();
        self.counts.waiting.fetch_add(1, Relaxed);
        if self.counts.in_flight.fetch_add(1, Relaxed) == 0 {
            self.counts.last_byte.store(millis(), Relaxed);
        }
    }

    /// A request has failed there, and the request is not the cause.
    pub(crate) fn blame(&self) {
        if self.health.failed() {
            self.counts.opened.fetch_add(1, Relaxed);
            tracing::warn!(
                engine = &*self.name,
                "several requests in a row have failed: the engine is left out for a while"
            );
        }
    }

    /// Something came from there.
    pub(crate) fn heard(&self) {
        let now = millis();
        // Written once a millisecond at most: all threads read and write it.
        if self.counts.last_byte.load(Relaxed) != now {
            self.counts.last_byte.store(now, Relaxed);
        }
    }

    /// For how long it has had requests and said nothing.
    pub(crate) fn silence(&self) -> Duration {
        if self.counts.in_flight.load(Relaxed) == 0 {
            return Duration::ZERO;
        }
        Duration::from_millis(millis().saturating_sub(self.counts.last_byte.load(Relaxed)))
    }
}
