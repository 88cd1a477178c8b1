//! Engines: where they are, how they do, and connections to them.

mod address;
mod answer_head;
mod chunked;
mod condition;
mod connection;
mod counts;
mod fault;
mod framing;
mod health;
mod kind;
mod pool;
mod questions;
mod recent;
mod reported;
mod side_route;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use hyper::header::HeaderValue;
use kvatlas_prompt::Dialect;
use kvatlas_routing::WorkerId;
use serde_json::{Value, json};
use tokio_rustls::rustls::ClientConfig;

pub use self::address::Address;
pub(crate) use self::answer_head::Head;
pub(crate) use self::condition::{Condition, RefusedEvents, Trouble};
pub(crate) use self::connection::Connection;
pub(crate) use self::counts::Counts;
pub(crate) use self::fault::{Fault, NAMES as FAULTS};
pub(crate) use self::framing::Framing;
pub(crate) use self::health::Health;
pub use self::health::HealthState;
pub(crate) use self::kind::Kind;
use self::kind::takes_image_ids;
pub(crate) use self::pool::Pool;
pub(crate) use self::questions::{ask, get, whole};
pub(crate) use self::recent::Recent;
pub(crate) use self::reported::loads;
pub(crate) use self::side_route::{Outcome, SideRoutes, Turn};
use crate::clock::millis;
use crate::config::{Config, EngineConfig, Handover, Role};
use crate::error::Error;
use crate::lock;

/// An engine.
pub struct Engine {
    /// The engine's name.
    pub name: Arc<str>,
    /// The engine's address.
    pub address: Address,
    /// The engine's settings.
    pub config: EngineConfig,
    /// The routes at which the engine is asked about prompts.
    pub(crate) side_routes: Arc<SideRoutes>,
    /// The models that the engine serves.
    pub models: ArcSwap<Models>,
    /// True if the engine has been asked what it serves, whatever came of it, or that was said of it.
    pub(crate) is_known: AtomicBool,
    /// The kind of engine that it says it is, once it has been asked.
    pub(crate) kind: ArcSwapOption<Kind>,
    pub(crate) health: Arc<Health>,
    /// True if the engine may hold nothing of what is known of it, as only a number says that it has not restarted.
    pub(crate) is_unverified: AtomicBool,
    pub(crate) counts: Arc<Counts>,
    /// Counts of how the engine's last requests ended.
    pub(crate) recent: Arc<Recent>,
    /// Reason why the engine is down, if it is.
    pub(crate) why_down: Arc<Mutex<Option<String>>>,
    /// The worst thing that is known of the engine, as seen last.
    pub(crate) condition: Mutex<Option<Condition>>,
    pub(crate) refused: Mutex<RefusedEvents>,
    pub(crate) pool: Pool,
    tls: Option<Arc<ClientConfig>>,
    connect_timeout: Duration,
    /// The value of the `Authorization` header that the engine wants.
    pub(crate) authorization: Option<String>,
    /// The decision core's ids of the engine's ranks, once the engine is there.
    pub(crate) ids: OnceLock<Box<[WorkerId]>>,
    /// The engine's name, as a header's value.
    pub(crate) header: HeaderValue,
}

/// The models and adapters that an engine serves.
#[derive(Debug, Clone, Default)]
pub struct Models {
    /// Models and adapters in the engine's own order. Empty: nobody knows, and it takes any.
    pub names: Vec<Model>,
}

/// A model or an adapter that an engine serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// The name that clients use.
    pub name: String,
    /// For an adapter: the model that it adapts.
    pub parent: Option<String>,
    /// The entry in the engine's own `/v1/models`.
    pub card: Value,
}

impl Models {
    /// True if requests for `model` can go to the engine.
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
            side_routes: Arc::default(),
            models: ArcSwap::from_pointee(models),
            is_known,
            kind: ArcSwapOption::empty(),
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

    /// Takes over what is known of `old`, which is the same engine with other settings.
    pub(crate) fn goes_on_from(&mut self, old: &Self) {
        self.health = old.health.clone();
        self.counts = old.counts.clone();
        self.recent = old.recent.clone();
        self.why_down = old.why_down.clone();
        self.condition = Mutex::new(lock(&old.condition).clone());
        self.refused = Mutex::new(lock(&old.refused).clone());
        self.is_unverified.store(old.is_unverified.load(Relaxed), Relaxed);
        self.kind.store(old.kind.load_full());
        self.side_routes = old.side_routes.clone();
        if self.config.models.is_empty() && old.config.models.is_empty() {
            self.models.store(old.models.load_full());
            self.is_known.store(old.is_known.load(Relaxed), Relaxed);
        }
    }

    /// The engine's way of handing blocks over; None until it is known.
    pub(crate) fn handover(&self) -> Option<Handover> {
        self.config.handover.or_else(|| self.kind.load().as_ref().map(|kind| kind.handover))
    }

    /// The engine's way of preparing chats; that of the newest vLLM until its kind is known.
    pub(crate) fn dialect(&self) -> Dialect {
        let Some(handover) = self.handover() else { return Dialect::default() };
        match (&self.config.version, self.kind.load().as_ref()) {
            (None, Some(kind)) if kind.handover == handover => kind.dialect,
            (version, _) => Dialect::of(handover.kind(), version.as_deref()),
        }
    }

    /// True if it can be asked what its like make of prompts for a model: it is up, prepares chats in this way, and does
    /// more than computing prompts.
    pub(crate) fn prepares(&self, model: Option<&str>, dialect: Dialect) -> bool {
        self.config.role != Role::Prefill
            && self.dialect() == dialect
            && self.health.standing() == HealthState::Up
            && model.is_none_or(|model| self.models.load().serves(model))
    }

    /// True if it calls images by the `uuid` that a request has for them, by the version that it says it is, or that it is
    /// configured to be.
    pub(crate) fn takes_image_ids(&self) -> bool {
        match (&self.config.version, self.config.handover, self.kind.load().as_ref()) {
            (None, _, Some(kind)) => kind.takes_image_ids && self.handover() == Some(kind.handover),
            (Some(version), Some(Handover::Vllm), _) => takes_image_ids(version),
            (Some(version), None, Some(kind)) => kind.handover == Handover::Vllm && takes_image_ids(version),
            _ => false,
        }
    }

    /// The port at which it meets decode engines, if it is SGLang's.
    pub(crate) fn bootstrap_port(&self) -> Option<u16> {
        self.config.bootstrap_port.or_else(|| self.kind.load().as_ref().and_then(|kind| kind.bootstrap_port))
    }

    /// Returns a connection to the engine, kept or new.
    pub(crate) async fn connection(&self, shard: usize) -> Result<Connection, Fault> {
        match self.pool.take(shard) {
            Some(connection) => Ok(connection),
            None => self.new_connection().await,
        }
    }

    /// Makes a new connection to the engine.
    pub(crate) async fn new_connection(&self) -> Result<Connection, Fault> {
        self.counts.connections.fetch_add(1, Relaxed);
        Connection::connect(&self.address, self.tls.as_ref(), self.connect_timeout).await
    }

    /// Notes that a request goes to the engine.
    pub(crate) fn sent(&self) {
        self.health.sent();
        self.counts.waiting.fetch_add(1, Relaxed);
        if self.counts.in_flight.fetch_add(1, Relaxed) == 0 {
            self.counts.last_byte.store(millis(), Relaxed);
        }
    }

    /// Notes that a request has failed there, and that the request is not the cause.
    pub(crate) fn blame(&self) {
        if self.health.note_failure() {
            self.counts.opened.fetch_add(1, Relaxed);
            tracing::warn!(
                engine = &*self.name,
                "several requests in a row have failed: the engine is left out for a while"
            );
        }
    }

    /// Notes that something came from the engine.
    pub(crate) fn note_sign_of_life(&self) {
        let now = millis();
        // Written once a millisecond at most: all threads read and write it.
        if self.counts.last_byte.load(Relaxed) != now {
            self.counts.last_byte.store(now, Relaxed);
        }
    }

    /// Returns the time for which the engine has had requests and said nothing.
    pub(crate) fn silence(&self) -> Duration {
        if self.counts.in_flight.load(Relaxed) == 0 {
            return Duration::ZERO;
        }
        Duration::from_millis(millis().saturating_sub(self.counts.last_byte.load(Relaxed)))
    }
}
