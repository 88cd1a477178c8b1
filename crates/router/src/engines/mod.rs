//! Inference engines behind the router: their addresses, connections, health and known properties.

mod address;
mod agreement;
mod answer;
mod connection;
mod counts;
pub(crate) mod diagnosis;
mod fault;
pub(crate) mod fleet;
mod health;
pub(crate) mod health_check;
pub(crate) mod json_fields;
mod kind;
mod models;
mod questions;
mod reported;
pub(crate) mod request_head;
mod side_route;
pub(crate) mod slowness;
mod trouble;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use hyper::header::HeaderValue;
use kvatlas_prompt::Dialect;
use kvatlas_routing::WorkerId;
use parking_lot::Mutex;
use tokio_rustls::rustls::ClientConfig;

pub(crate) use self::address::{Address, PullAddress};
pub(crate) use self::agreement::{CacheBelief, OtherCount, TokenAgreement};
pub(crate) use self::answer::{Framing, Head};
pub(crate) use self::connection::{Connection, Pool};
use self::counts::BusyAnswers;
pub(crate) use self::counts::{Counts, EngineModelCounts, Recent};
pub(crate) use self::diagnosis::EngineRecord;
pub(crate) use self::fault::{Fault, NAMES as FAULTS};
pub use self::health::DrainedBy;
pub(crate) use self::health::HealthState;
pub(crate) use self::health::{Finding, Health};
pub(crate) use self::health_check::{SLEEP_PATH, Signs, read as read_sleep};
pub(crate) use self::kind::Kind;
use self::kind::{pulls, takes_image_ids};
pub(crate) use self::models::{MAX_MODELS, MAX_NAME, Serving, denies_model};
pub(crate) use self::models::{Model, Models};
pub(crate) use self::questions::{LIST, SHORT, ask, get, lines, status, whole};
pub(crate) use self::reported::EngineMetrics;
pub(crate) use self::side_route::{Outcome, SideRoutes, Turn};
use self::slowness::SpeedGap;
pub(crate) use self::trouble::{Condition, RefusedEvents, Trouble};
use crate::clock::millis;
use crate::config::{Config, EngineConfig, Handover, Role};
use crate::error::Error;

/// Engine known to the router, with its settings, state, counters and connections.
pub(crate) struct Engine {
    /// Name of the engine, in the router and in the index.
    pub name: Arc<str>,
    /// Address of the engine for requests.
    pub address: Address,
    /// Settings of the engine.
    pub config: EngineConfig,
    /// Address at which other engines pull blocks from the engine; None if pulling is not configured.
    pub(crate) pull: Option<PullAddress>,
    /// State of the engine's routes for questions about prompts, such as `/tokenize`: whether each one works at
    /// present.
    pub(crate) side_routes: Arc<SideRoutes>,
    /// Models and adapters that the engine serves.
    pub models: ArcSwap<Models>,
    /// True if the engine's models are configured, or the router has asked the engine for its models, with or without
    /// success.
    pub(crate) is_known: AtomicBool,
    /// True once the engine has counted a different number of tokens in a prompt than the router.
    pub(crate) makes_other_tokens: AtomicBool,
    /// Comparison of the engine's token counts of prompts with the router's.
    pub(crate) token_agreement: Arc<TokenAgreement>,
    /// Kind of the engine, vLLM or SGLang; None until the kind is known.
    pub(crate) kind: ArcSwapOption<Kind>,
    pub(crate) health: Arc<Health>,
    /// True if the index's record of the engine's blocks may be outdated, as only a sequence number indicates that the
    /// engine has not restarted.
    pub(crate) is_unverified: AtomicBool,
    pub(crate) counts: Arc<Counts>,
    /// Outcomes of the engine's recent requests: numbers of successes and failures.
    pub(crate) recent: Arc<Recent>,
    pub(crate) signs: Arc<Signs>,
    /// Reason why the engine is down or busy, as text; None for an engine in another state.
    pub(crate) why_not: Arc<Mutex<Option<String>>>,
    /// Time at which the engine was added to the fleet.
    pub(crate) added: Instant,
    /// State of the engine at its last periodic examination.
    pub(crate) record: Arc<Mutex<EngineRecord>>,
    /// Number of requests of the last minute that the engine refused as busy.
    pub(crate) busy_answers: Mutex<BusyAnswers>,
    /// Comparison of the engine's speed with its peers if the engine is slow; None otherwise.
    pub(crate) slowness: Mutex<Option<SpeedGap>>,
    pub(crate) refused: Mutex<RefusedEvents>,
    /// Estimate of how reliable the blocks announced by each rank are, by the rank's number in routing decisions. A
    /// rank has an estimate once the engine has reported cached tokens.
    pub(crate) beliefs: Mutex<BTreeMap<WorkerId, CacheBelief>>,
    pub(crate) pool: Pool,
    tls: Option<Arc<ClientConfig>>,
    connect_timeout: Duration,
    /// Value of the `Authorization` header for requests to the engine; None for no header.
    pub(crate) authorization: Option<String>,
    /// Numbers that identify the engine's ranks in routing decisions; unset until the engine is registered.
    pub(crate) ids: OnceLock<Box<[WorkerId]>>,
    /// Name of the engine as the value of a header.
    pub(crate) header: HeaderValue,
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
        for (setting, name) in Self::names(&config, &name) {
            if name.len() > MAX_NAME || name.chars().any(char::is_control) {
                let shown: String = name.chars().take(64).collect();
                return Err(Error::config(format!(
                    "an engine's {setting} must have {MAX_NAME} bytes at most, and no control characters, got {shown:?}"
                )));
            }
        }
        if !(config.weight > 0.0 && config.weight.is_finite()) {
            return Err(Error::config(format!("engine {name}: weight must be above 0, got {}", config.weight)));
        }
        if !config.ranks.are_valid() {
            let wanted = "ranks must be a number from 1 to 1024, or a list of so many numbers in ascending order";
            return Err(Error::config(format!("engine {name}: {wanted}")));
        }
        let pull = config.pull.as_deref().map(|text| PullAddress::parse(&name, text)).transpose()?;
        let is_known = AtomicBool::new(!config.models.is_empty());
        let models = Models::new(&config, None);
        let common = all.upstream.key.as_ref().filter(|_| config.use_key != Some(false));
        let key = config.key.as_ref().or(common);
        Ok(Self {
            address,
            pull,
            side_routes: Arc::default(),
            models: ArcSwap::from_pointee(models),
            is_known,
            makes_other_tokens: AtomicBool::new(false),
            token_agreement: Arc::default(),
            kind: ArcSwapOption::empty(),
            health: Arc::new(Health::new(&all.health)),
            is_unverified: AtomicBool::new(false),
            counts: Arc::default(),
            recent: Arc::default(),
            signs: Arc::default(),
            why_not: Arc::default(),
            added: Instant::now(),
            record: Arc::default(),
            busy_answers: Mutex::default(),
            slowness: Mutex::default(),
            refused: Mutex::default(),
            beliefs: Mutex::default(),
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

    /// Returns the name and the address that an engine's settings give it.
    pub(crate) fn place(config: &EngineConfig) -> Result<(String, Address), Error> {
        let address: Address = config.url.parse()?;
        let default_name = || format!("{}{}", address.authority, address.base);
        Ok((config.name.clone().unwrap_or_else(default_name), address))
    }

    /// Returns all names in an engine's settings (engine, models, adapters, version), each with the name of the setting.
    fn names<'a>(config: &'a EngineConfig, name: &'a str) -> impl Iterator<Item = (&'static str, &'a str)> {
        let lists = [("models", &config.models), ("aliases", &config.aliases), ("adapters", &config.adapters)];
        let listed = lists.into_iter().flat_map(|(setting, names)| names.iter().map(move |name| (setting, &**name)));
        let single = [("model", config.model.as_deref()), ("version", config.version.as_deref()), ("name", Some(name))];
        single.into_iter().filter_map(|(setting, name)| Some((setting, name?))).chain(listed)
    }

    /// True if the engine gets the key configured for all engines, unless it has a key of its own.
    pub(crate) fn uses_key(&self) -> bool {
        self.config.use_key != Some(false)
    }

    /// Copies the state of the engine `old` into this engine, which is the same engine with other settings.
    pub(crate) fn goes_on_from(&mut self, old: &Self) {
        self.health = old.health.clone();
        self.counts = old.counts.clone();
        self.recent = old.recent.clone();
        self.signs = old.signs.clone();
        self.why_not = old.why_not.clone();
        self.added = old.added;
        // Shared: the old one is looked at for a moment longer, and each change of it is said once.
        self.record = old.record.clone();
        self.busy_answers = Mutex::new(old.busy_answers.lock().clone());
        self.slowness = Mutex::new(*old.slowness.lock());
        self.refused = Mutex::new(old.refused.lock().clone());
        self.is_unverified.store(old.is_unverified.load(Relaxed), Relaxed);
        self.kind.store(old.kind.load_full());
        self.side_routes = old.side_routes.clone();
        self.token_agreement = old.token_agreement.clone();
        self.makes_other_tokens.store(old.makes_other_tokens.load(Relaxed), Relaxed);
        let names = |config: &EngineConfig| (config.models.clone(), config.aliases.clone(), config.adapters.clone());
        if names(&self.config) == names(&old.config) {
            self.models.store(old.models.load_full());
            self.is_known.store(old.is_known.load(Relaxed), Relaxed);
        }
    }

    /// Returns the protocol by which the engine transfers blocks between prefill and decode; None until the protocol is
    /// known.
    pub(crate) fn handover(&self) -> Option<Handover> {
        self.config.handover.or_else(|| self.kind.load().as_ref().map(|kind| kind.handover))
    }

    /// Returns the engine's dialect (way of rendering chats as prompts); the newest vLLM's until the engine's
    /// kind is known.
    pub(crate) fn dialect(&self) -> Dialect {
        let Some(handover) = self.handover() else { return Dialect::default() };
        match (&self.config.version, self.kind.load().as_ref()) {
            (None, Some(kind)) if kind.handover == handover => kind.dialect,
            (version, _) => Dialect::of(handover.kind(), version.as_deref()),
        }
    }

    /// True if the engine can tokenize prompts for engines of the dialect `dialect` (way of rendering chats): it has
    /// this dialect, may serve the model, is up, and is no prefill engine.
    pub(crate) fn prepares(&self, model: Option<&str>, dialect: Dialect) -> bool {
        self.config.role != Role::Prefill
            && self.dialect() == dialect
            && self.health.standing() == HealthState::Up
            && self.models.load().may_serve(model)
    }

    /// True if the model is in the engine's list of models, or if `model` is None.
    pub(crate) fn lists(&self, model: Option<&str>) -> bool {
        model.is_none_or(|model| self.models.load().serving(model) == Serving::Listed)
    }

    /// True if the engine identifies images by the `uuid` in a request, according to its reported or configured
    /// version.
    pub(crate) fn takes_image_ids(&self) -> bool {
        match (&self.config.version, self.config.handover, self.kind.load().as_ref()) {
            (None, _, Some(kind)) => kind.takes_image_ids && self.handover() == Some(kind.handover),
            (Some(version), Some(Handover::Vllm), _) => takes_image_ids(version),
            (Some(version), None, Some(kind)) => kind.handover == Handover::Vllm && takes_image_ids(version),
            _ => false,
        }
    }

    /// True if requests can make the engine pull blocks from other engines: the operator has configured its pull
    /// address, and its reported or configured version supports pulling.
    pub(crate) fn pulls(&self) -> bool {
        let knows_how = match (&self.config.version, self.handover()) {
            (Some(version), Some(Handover::Vllm)) => pulls(version),
            (None, Some(Handover::Vllm)) => self.kind.load().as_ref().is_some_and(|kind| kind.pulls),
            _ => false,
        };
        knows_how && self.pull.is_some()
    }

    /// Replaces the engine's list of models by `said`, the list that the engine reported. Recent answers of the engine
    /// that it does not have a model stay recorded. Returns true if the list has changed.
    pub(crate) fn takes_list(&self, said: Vec<Model>) -> bool {
        let models = Models::new(&self.config, Some(said));
        let is_new = !self.models.load().lists_same(&models);
        if is_new {
            self.models.rcu(|before| models.clone().after(before));
        }
        is_new
    }

    /// Records the engine's answer that it does not have a model.
    pub(crate) fn note_denied(&self, model: &str) {
        self.models.rcu(|before| before.denying(model));
    }

    /// Returns the context length for a model in tokens; None if unknown, or if the engine truncates longer prompts.
    pub(crate) fn max_len(&self, model: Option<&str>) -> Option<u32> {
        let kind = self.kind.load();
        if kind.as_ref().is_some_and(|kind| kind.cuts_prompts) {
            return None;
        }
        self.models.load().max_len(model).or_else(|| kind.as_ref()?.max_len)
    }

    /// False if a request certainly exceeds the engine's context length. `room`: number of tokens that the request
    /// needs; 0 if not counted.
    pub(crate) fn has_room(&self, model: Option<&str>, room: u32) -> bool {
        room == 0 || self.makes_other_tokens.load(Relaxed) || self.max_len(model).is_none_or(|most| room <= most)
    }

    /// Returns the port at which an SGLang prefill engine arranges transfers with decode engines (the bootstrap port);
    /// None if unknown.
    pub(crate) fn bootstrap_port(&self) -> Option<u16> {
        self.config.bootstrap_port.or_else(|| self.kind.load().as_ref().and_then(|kind| kind.bootstrap_port))
    }

    /// Returns an idle connection to the engine, or opens a new one. `shard`: number of the thread whose idle
    /// connections are used.
    pub(crate) async fn connection(&self, shard: usize) -> Result<Connection, Fault> {
        match self.pool.take(shard) {
            Some(connection) => Ok(connection),
            // In a place of its own: a new one is seldom made, and this is a part of what each request moves.
            None => Box::pin(self.new_connection()).await,
        }
    }

    /// Opens a new connection to the engine.
    pub(crate) async fn new_connection(&self) -> Result<Connection, Fault> {
        self.counts.connections.fetch_add(1, Relaxed);
        Connection::connect(&self.address, self.tls.as_ref(), self.connect_timeout).await
    }

    /// Records that a request is sent to the engine.
    pub(crate) fn sent(&self) {
        self.health.sent();
        self.counts.waiting.fetch_add(1, Relaxed);
        if self.counts.in_flight.fetch_add(1, Relaxed) == 0 {
            self.counts.last_byte.store(millis(), Relaxed);
        }
    }

    /// Records that a request failed and that the engine was the cause.
    pub(crate) fn blame(&self) {
        if self.health.note_failure() {
            self.counts.opened.fetch_add(1, Relaxed);
            tracing::warn!(
                engine = &*self.name,
                "several requests in a row have failed: the engine is left out for a while"
            );
        }
    }

    /// Records that data have arrived from the engine.
    pub(crate) fn note_sign_of_life(&self) {
        let now = millis();
        // Written once a millisecond at most: all threads read and write it.
        if self.counts.last_byte.load(Relaxed) != now {
            self.counts.last_byte.store(now, Relaxed);
        }
    }

    /// True if the engine has requests, from this router or, according to its metrics, from others.
    pub(crate) fn is_at_work(&self) -> bool {
        self.counts.in_flight.load(Relaxed) > 0 || self.signs.reported() > 0
    }

    /// True if the engine can be given requests: it is up, or only its health checks are late while tokens of its answers
    /// keep coming. A late health check alone proves little, as it waits behind all other work of the engine's API server.
    pub(crate) fn takes_requests(&self) -> bool {
        match self.health.standing() {
            HealthState::Up => true,
            HealthState::Busy => {
                let begun = self.counts.in_flight.load(Relaxed) > self.counts.waiting.load(Relaxed);
                begun && self.silence() <= self.health.time_limit()
            }
            _ => false,
        }
    }

    /// Returns the time for which the engine has sent no data of any kind, and the time of the last data in
    /// milliseconds of the router's clock.
    pub(crate) fn stillness(&self) -> (Duration, u64) {
        let last = self.counts.last_byte.load(Relaxed).max(self.signs.last());
        (Duration::from_millis(millis().saturating_sub(last)), last)
    }

    /// Returns the time for which the engine has had requests and not sent a byte; zero without requests.
    pub(crate) fn silence(&self) -> Duration {
        if self.counts.in_flight.load(Relaxed) == 0 {
            return Duration::ZERO;
        }
        Duration::from_millis(millis().saturating_sub(self.counts.last_byte.load(Relaxed)))
    }
}
