//! What a router is told when it starts. Its JSON form is what `kvatlas router` hands over, already checked there;
//! durations are in seconds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kvatlas_http::{Secret, TlsConfig};
use kvatlas_service::log::LogConfig;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::Error;
pub use crate::ranks::{RankHeader, Ranks};

/// Everything.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Clients.
    pub http: HttpConfig,
    /// Engines, as far as they are known at the start. More can be registered later.
    pub engines: Vec<EngineConfig>,
    /// How engines are spoken to.
    pub upstream: UpstreamConfig,
    /// How it is known whether an engine works.
    pub health: HealthConfig,
    /// The service in this process, which follows the engines' events; none if `index` is given or nobody looks.
    pub service: Option<Value>,
    /// The address of a service elsewhere, `http://host:port` or `https://host:port`, that is asked what engines hold.
    pub index: Option<String>,
    /// The key to show there.
    pub index_key: Option<Secret>,
    /// The address of a service above many sites, if the engines are sites: it is asked what each can hold.
    pub global_url: Option<String>,
    /// The admin key to show there.
    pub global_key: Option<Secret>,
    /// Within which it must answer.
    #[serde(with = "seconds")]
    pub global_timeout: Duration,
    /// The addresses of other routers in front of the same engines, which are told what this one has there.
    pub peers: Vec<String>,
    /// The key to show there.
    pub peer_key: Option<Secret>,
    /// The routing group of the engines in the index.
    pub routing_group: String,
    /// Who decides: `kvatlas`, `round-robin`, ...
    pub policy: String,
    /// The policy's settings.
    pub policy_options: Map<String, Value>,
    /// Where chance begins.
    pub seed: u64,
    /// How the decision core keeps its books.
    pub routing: RoutingConfig,
    /// Whether what engines hold is predicted from what was sent to them, as their events are not to be had.
    pub no_events: bool,
    /// A `tokenizer.json`, or a directory with one and a chat template; `engine` to ask the engine's `/tokenize`; none
    /// to go without tokens.
    pub tokenizer: Option<String>,
    /// The same for single models, by name.
    pub tokenizers: Map<String, Value>,
    /// Tokens of a block where the index does not say.
    pub block_size: u32,
    /// The header that names a session; empty for none.
    pub session_header: String,
    /// How long a session stays with its engine after its last request; 0 for not at all.
    #[serde(with = "seconds")]
    pub session_ttl: Duration,
    /// The header with a request's priority, an integer, higher first; empty for none.
    pub priority_header: String,
    /// Whether answers tell in headers who made them, and why.
    pub response_headers: bool,
    /// Prompt tokens not in any cache up to which a request needs no prefill engine of its own.
    pub decode_alone: u32,
    /// Whether engines get completions as token ids, where those are the ones that they would make themselves.
    pub forward_tokens: bool,
    /// Whether engines are asked for the usage of streams whose clients do not ask for it.
    pub ask_usage: bool,
    /// A file to which decisions are written.
    pub record: Option<PathBuf>,
    /// How many of the last decisions are kept to look at.
    pub decisions: usize,
    /// Paths besides the known ones that are forwarded: a path, or a beginning that ends in `*`.
    pub forward: Vec<String>,
    /// Ranks of all engines up to which clients may add some.
    pub max_ranks: usize,
    /// How much is logged. The first of a process decides.
    pub log: LogConfig,
}

/// How clients come in.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Where to listen; port 0 lets the system choose.
    pub bind: SocketAddr,
    /// Where to listen besides, for health, readiness and metrics only: without TLS and without a key.
    pub admin_bind: Option<SocketAddr>,
    /// Threads that serve; 0 for one a core.
    pub threads: usize,
    /// The bearer key that clients must show; none for no check.
    pub key: Option<Secret>,
    /// A file with that key instead, read again when it changes.
    pub key_file: Option<PathBuf>,
    /// The bearer key for changes of the fleet; none if `key` is enough for that.
    pub admin_key: Option<Secret>,
    /// A file with that key instead, read again when it changes.
    pub admin_key_file: Option<PathBuf>,
    /// Host names that requests may name, besides this machine's own and addresses. If there are none, they are checked
    /// only where the router listens on loopback and asks for no key.
    pub hosts: Vec<String>,
    /// Origins, besides the router's own, whose web pages may send requests and read answers.
    pub origins: Vec<String>,
    /// Certificate and key of the router; none for plain HTTP.
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
    /// From the first byte of a request to the last of its body.
    #[serde(with = "seconds")]
    pub request_timeout: Duration,
    /// Without a request, until a connection is closed.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// Within which a client must take the next 16 KiB of an answer that is there, or the rest of it.
    #[serde(with = "seconds")]
    pub write_timeout: Duration,
    /// Whether each request is logged.
    pub access_log: bool,
}

/// One engine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// What it is called, in the index too; its URL without the scheme if not given.
    #[serde(default)]
    pub name: Option<String>,
    /// `http://host:port`, with a path if it has one.
    pub url: String,
    /// The models and adapters that it serves; asked for at `/v1/models` if empty.
    #[serde(default)]
    pub models: Vec<String>,
    /// The model's name in the index, if it is another one than that which clients use.
    #[serde(default)]
    pub model: Option<String>,
    /// What it does for requests.
    #[serde(default)]
    pub role: Role,
    /// Its share of the work beside others.
    #[serde(default = "one")]
    pub weight: f64,
    /// Data-parallel ranks that requests can be sent to, each with a cache of its own: how many, or their numbers; 1 if it
    /// has none.
    #[serde(default)]
    pub ranks: Ranks,
    /// By which numbers requests name one of these ranks.
    #[serde(default)]
    pub rank_header: RankHeader,
    /// The bearer key that it wants.
    #[serde(default)]
    pub key: Option<Secret>,
    /// Whether it is shown the key of all engines, if it has none of its own: as a rule, unless a client adds it.
    #[serde(default)]
    pub use_key: Option<bool>,
    /// Blocks that its cache has room for; asked for at `/metrics` if not given.
    #[serde(default)]
    pub capacity_blocks: Option<u64>,
    /// Whose hand-over of blocks it speaks, where prefill and decode are apart.
    #[serde(default)]
    pub handover: Handover,
    /// The port at which SGLang's prefill engines meet their decode engines.
    #[serde(default)]
    pub bootstrap_port: Option<u16>,
    /// True as long as it is being asked whose hand-over it speaks: until then no request goes to it that is split.
    #[serde(default)]
    pub awaits_kind: bool,
    /// Tokens of a block of its cache, where known: for whoever registers its events.
    #[serde(default)]
    pub block_size: Option<u32>,
}

/// What an engine does for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// All of it.
    #[default]
    Both,
    /// Computes prompts for others.
    Prefill,
    /// Takes prompts computed by others.
    Decode,
}

impl Role {
    /// The name in the configuration and in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Whose way of handing a prompt's blocks over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handover {
    /// vLLM's: `kv_transfer_params` from the prefill engine's answer go to the decode engine.
    #[default]
    Vllm,
    /// SGLang's: both get the request at once, with a room to meet in.
    Sglang,
}

/// How engines are spoken to.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamConfig {
    /// Until a connection must be there.
    #[serde(with = "seconds")]
    pub connect_timeout: Duration,
    /// From when a request is sent to the answer's first byte.
    #[serde(with = "seconds")]
    pub first_byte_timeout: Duration,
    /// Between two bytes of an answer.
    #[serde(with = "seconds")]
    pub stall_timeout: Duration,
    /// How often a request is tried again, on another engine where there is one, as long as nothing was answered: once at
    /// most if an engine may have worked on it.
    pub retries: u32,
    /// Connections kept open for the next request, an engine and thread.
    pub idle_connections: usize,
    /// How long they are kept.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// Authorities in PEM for engines and services with `https`; the system's own if none.
    pub ca: Option<PathBuf>,
    /// The bearer key for engines that have none of their own.
    pub key: Option<Secret>,
}

/// How it is known whether an engine works.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthConfig {
    /// What is asked.
    pub path: String,
    /// How often; 0 for never.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Within which it must be answered.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Failures in a row after which an engine is left out: questions, connections, requests that another one answered.
    pub failures: u32,
    /// How long it is left out at first; doubles with each failure after that.
    #[serde(with = "seconds")]
    pub open: Duration,
    /// How long at most.
    #[serde(with = "seconds")]
    pub open_max: Duration,
    /// Without a byte from an engine that has requests, after which it is left out until one comes; 0 for never.
    #[serde(with = "seconds")]
    pub silence: Duration,
    /// How often its metrics are read; 0 for never.
    #[serde(with = "seconds")]
    pub load_interval: Duration,
}

/// How the decision core keeps its books.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoutingConfig {
    /// Requests that may wait in the router for an engine.
    pub queue: usize,
    /// How long one may wait.
    #[serde(with = "seconds")]
    pub queue_timeout: Duration,
    /// Further settings of the core, by name.
    pub options: Map<String, Value>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            http: HttpConfig::default(),
            engines: Vec::new(),
            upstream: UpstreamConfig::default(),
            health: HealthConfig::default(),
            service: None,
            index: None,
            index_key: None,
            global_url: None,
            global_key: None,
            global_timeout: Duration::from_millis(200),
            peers: Vec::new(),
            peer_key: None,
            routing_group: "default".to_owned(),
            policy: "kvatlas".to_owned(),
            policy_options: Map::new(),
            seed: 0,
            routing: RoutingConfig::default(),
            no_events: false,
            tokenizer: None,
            tokenizers: Map::new(),
            block_size: 16,
            session_header: "x-session-id".to_owned(),
            session_ttl: Duration::ZERO,
            priority_header: String::new(),
            response_headers: true,
            decode_alone: 256,
            forward_tokens: false,
            ask_usage: true,
            record: None,
            decisions: 256,
            forward: Vec::new(),
            max_ranks: 1024,
            log: LogConfig::default(),
        }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin_bind: None,
            threads: 0,
            key: None,
            key_file: None,
            admin_key: None,
            admin_key_file: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            tls: None,
            max_body: 64 << 20,
            body_memory: None,
            max_head: 64 << 10,
            max_headers: 128,
            max_connections: 65_536,
            request_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(60),
            access_log: false,
        }
    }
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            first_byte_timeout: Duration::from_secs(600),
            stall_timeout: Duration::from_secs(300),
            retries: 2,
            idle_connections: 256,
            idle_timeout: Duration::from_secs(4),
            ca: None,
            key: None,
        }
    }
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            path: "/health".to_owned(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            failures: 3,
            open: Duration::from_secs(1),
            open_max: Duration::from_secs(30),
            silence: Duration::from_secs(60),
            load_interval: Duration::from_secs(1),
        }
    }
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self { queue: 4096, queue_timeout: Duration::from_secs(60), options: Map::new() }
    }
}

impl HttpConfig {
    /// What the HTTP server is told.
    pub(crate) fn front(&self) -> kvatlas_http::Config {
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
            max_head: self.max_head,
            max_headers: self.max_headers,
            max_connections: self.max_connections,
            request_timeout: self.request_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.write_timeout,
        }
    }
}

impl Config {
    /// From JSON. Missing fields have their defaults.
    ///
    /// # Errors
    /// [`Error::Config`] names the field that is unknown or wrong.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let config: Self = serde_json::from_str(json).map_err(|error| Error::config(error.to_string()))?;
        for (name, zero) in [
            ("http.max_body", config.http.max_body == 0),
            ("http.max_connections", config.http.max_connections == 0),
            ("http.request_timeout", config.http.request_timeout.is_zero()),
            ("upstream.connect_timeout", config.upstream.connect_timeout.is_zero()),
            ("upstream.first_byte_timeout", config.upstream.first_byte_timeout.is_zero()),
            ("health.timeout", config.health.timeout.is_zero()),
            ("health.failures", config.health.failures == 0),
            ("block_size", config.block_size == 0),
            ("global_timeout", config.global_timeout.is_zero()),
        ] {
            if zero {
                return Err(Error::config(format!("{name} must be above 0")));
            }
        }
        let told_by = [config.service.is_some(), config.index.is_some(), config.global_url.is_some()];
        if told_by.iter().filter(|is_given| **is_given).count() > 1 {
            return Err(Error::config(
                "give one of service, index and global_url: each tells the router what engines hold",
            ));
        }
        Ok(config)
    }
}

impl EngineConfig {
    /// An engine at a URL, all else as it is by default.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self {
            name: None,
            url: url.to_owned(),
            models: Vec::new(),
            model: None,
            role: Role::Both,
            weight: one(),
            ranks: Ranks::default(),
            rank_header: RankHeader::default(),
            key: None,
            use_key: None,
            capacity_blocks: None,
            handover: Handover::Vllm,
            bootstrap_port: None,
            awaits_kind: false,
            block_size: None,
        }
    }
}

fn one() -> f64 {
    1.0
}

mod seconds {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer, Error};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| D::Error::custom(format!("a duration is a number of seconds from 0 on, got {seconds}")))
    }
}
