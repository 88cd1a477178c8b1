//! The settings of a router. Python declares them, with their kinds, defaults and texts (`python/kvatlas/router/config`),
//! checks them, and hands them over as JSON by the same names; durations are in seconds. Every field must be there.

mod ranks;
mod session_source;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kvatlas_follow::log::LogConfig;
use kvatlas_routing::{BoxedPolicy, Options, PolicyTable};
use kvatlas_settings::{Secret, seconds};
use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::ranks::{RankHeader, Ranks};
pub use self::session_source::Source;
use crate::error::Error;

/// All settings of a router.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Settings of the server that clients connect to.
    pub http: kvatlas_http::Config,
    /// Engines, as far as they are known at the start. More can be registered later.
    pub engines: Vec<EngineConfig>,
    /// Settings of the connections to engines.
    pub upstream: UpstreamConfig,
    /// Settings of the checks whether engines work.
    pub health: HealthConfig,
    /// Settings of the follower of the engines' events in this process; none if `index` is set or the policy does not
    /// use the index.
    pub service: Option<Value>,
    /// The address of a service elsewhere, `http://host:port` or `https://host:port`, that is asked what engines hold.
    pub index: Option<String>,
    /// The key to show to the service at `index`.
    pub index_key: Option<Secret>,
    /// URL of the service above many sites, if the engines are sites.
    pub global_url: Option<String>,
    /// The admin key to show to the service at `global_url`.
    pub global_key: Option<Secret>,
    /// Time within which the service at `global_url` must answer.
    #[serde(with = "seconds")]
    pub global_timeout: Duration,
    /// URLs of other routers in front of the same engines, to which this one reports its requests.
    pub peers: Vec<String>,
    /// The key to show to the routers in `peers`.
    pub peer_key: Option<Secret>,
    /// The routing group of the engines in the index.
    pub routing_group: String,
    /// Name of the policy that decides: `kvatlas`, `round-robin`, ...
    pub policy: String,
    /// The policy's settings.
    pub policy_options: Map<String, Value>,
    /// Seed of random choices.
    pub seed: u64,
    /// Settings of the decision core that users can change, by its own names.
    pub routing: kvatlas_routing::Config,
    /// Time that a request waits in the router if no engine is up; 0 to refuse it at once.
    #[serde(with = "seconds")]
    pub wait_for_engine: Duration,
    /// True if what engines hold is predicted from what was sent to them, as their events are not to be had.
    pub no_events: bool,
    /// A `tokenizer.json`, or a directory with one and a chat template; `engine` to ask the engine's `/tokenize`; none
    /// to go without tokens.
    pub tokenizer: Option<String>,
    /// Tokenizers of single models by name, each given as in `tokenizer`.
    pub tokenizers: Map<String, Value>,
    /// Tokens of a block where the index does not say.
    pub block_size: u32,
    /// The places of a request where its session may be named, the first one first; none to know of no sessions.
    pub session_sources: Vec<Source>,
    /// The operator's own header that names a session; empty for none.
    pub session_header: String,
    /// The header with a request's priority, an integer, higher first; empty for none.
    pub priority_header: String,
    /// True if answers tell in headers which engine made them, and why.
    pub response_headers: bool,
    /// Time after which the client of a stream that has no token gets a comment, and between two of them; 0 for never.
    #[serde(with = "seconds")]
    pub comment_after: Duration,
    /// Prompt tokens not in any cache up to which a request needs no prefill engine of its own.
    pub decode_alone: u32,
    /// Prompt tokens that an engine which joins, or comes back empty, is brought by pulls at most; 0 for none.
    pub warm_up: u64,
    /// True if engines get completions as token ids, where the router's tokenizer agrees with theirs.
    pub forward_tokens: bool,
    /// True if engines are asked for the usage of streams whose clients do not ask for it.
    pub ask_usage: bool,
    /// The images to which the router gives a `uuid` of its own, where engines call them by it.
    pub image_ids: ImageIds,
    /// Clients that may send fields reserved for the router and its engines: hand-over parameters and ranks.
    pub engine_fields: EngineFields,
    /// Quantile of the times to the first token after which a streamed request is sent to a second engine too; 0 for never.
    pub hedge_after: f64,
    /// A file to which decisions are written.
    pub record: Option<PathBuf>,
    /// An address at which gateways ask over gRPC for an engine; none for no such server.
    pub gateway_bind: Option<SocketAddr>,
    /// An address at which gRPC's health service is asked alone, without TLS; none for no such server.
    pub gateway_health_bind: Option<SocketAddr>,
    /// True if gateways speak TLS.
    pub gateway_tls: bool,
    /// The certificate chain that gateways are shown, and its key, in PEM; none for a certificate made at the start.
    pub gateway_tls_cert: Option<PathBuf>,
    /// The private key of that certificate.
    pub gateway_tls_key: Option<PathBuf>,
    /// True to let clients of gateways choose engines by a header, as conformance tests do.
    pub gateway_conformance: bool,
    /// Number of the last decisions that are kept to look at.
    pub decisions: usize,
    /// Paths besides the known ones that are forwarded: a path, or a beginning that ends in `*`.
    pub forward: Vec<String>,
    /// Ranks of all engines up to which clients may add some.
    pub max_ranks: usize,
    /// Settings of the log. The first of a process decide.
    pub log: LogConfig,
}

/// Settings of one engine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Name of the engine, in the index too; its URL without the scheme if not given.
    #[serde(default)]
    pub name: Option<String>,
    /// `http://host:port`, with a path if it has one.
    pub url: String,
    /// The models and adapters that it serves; asked for at `/v1/models` if empty.
    #[serde(default)]
    pub models: Vec<String>,
    /// Further names of its model for clients; the engine gets its own name for it, unless it lists the other one.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Adapters beyond those that it lists.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// Name of the model in the index, if it differs from the clients' name.
    #[serde(default)]
    pub model: Option<String>,
    /// The engine's role: the work that it does for requests.
    #[serde(default)]
    pub role: Role,
    /// The engine's share of the work beside others.
    #[serde(default = "one")]
    pub weight: f64,
    /// Data-parallel ranks that requests can be sent to, each with a cache of its own: how many, or their numbers; 1 if it
    /// has none.
    #[serde(default)]
    pub ranks: Ranks,
    /// The kind of numbers by which requests name one of these ranks.
    #[serde(default)]
    pub rank_header: RankHeader,
    /// The bearer key that it wants.
    #[serde(default)]
    pub key: Option<Secret>,
    /// True if the engine is shown the key of all engines, if it has none of its own. If not given, it is, unless a
    /// client adds it.
    #[serde(default)]
    pub use_key: Option<bool>,
    /// Capacity of its cache in blocks; read from `/metrics` if not given.
    #[serde(default)]
    pub capacity_blocks: Option<u64>,
    /// The engines' way of handing blocks over that it speaks, where prefill and decode are apart; the engine is asked
    /// for its kind if not given, and until it has answered no request goes to it that is split.
    #[serde(default)]
    pub handover: Option<Handover>,
    /// The engine's version, as versions differ in what they make of prompts; asked for if not given.
    #[serde(default)]
    pub version: Option<String>,
    /// The port at which SGLang's prefill engines meet their decode engines; asked for if not given.
    #[serde(default)]
    pub bootstrap_port: Option<u16>,
    /// `HOST:PORT` at which other engines can pull blocks from the host memory of its first rank; each further rank has
    /// the next port. If it is not given, the engine neither pulls nor is pulled from.
    #[serde(default)]
    pub pull: Option<String>,
    /// Name that is the same for all engines that can pull from each other.
    #[serde(default)]
    pub pull_group: Option<String>,
    /// Tokens of a block in its cache, for the registration of its events.
    #[serde(default)]
    pub block_size: Option<u32>,
    /// True if it gets no new requests, false if it gets them, as far as its operator is concerned; if not given, that
    /// stays as it was.
    #[serde(default)]
    pub drain: Option<bool>,
}

/// The work that an engine does for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The engine computes prompts and generates tokens.
    #[default]
    Both,
    /// The engine computes prompts for others.
    Prefill,
    /// The engine takes prompts computed by others.
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

/// The images to which the router gives a `uuid` of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageIds {
    /// Images whose bytes are in the request.
    Auto,
    /// Images given by URL as well; the operator states that the content of a URL never changes.
    Addresses,
    /// None.
    Off,
}

/// Clients that may send fields reserved for the router and its engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineFields {
    /// Clients that show the admin key.
    Admin,
    /// All clients.
    All,
}

/// A way of handing a prompt's blocks over, by the engines that have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handover {
    /// vLLM's: `kv_transfer_params` from the prefill engine's answer go to the decode engine.
    Vllm,
    /// SGLang's: both get the request at once, with a room to meet in.
    Sglang,
}

impl Handover {
    /// The kind of engine that has it.
    pub(crate) const fn kind(self) -> kvatlas_prompt::Engine {
        match self {
            Self::Vllm => kvatlas_prompt::Engine::Vllm,
            Self::Sglang => kvatlas_prompt::Engine::Sglang,
        }
    }
}

/// Settings of the connections to engines.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamConfig {
    /// Time limit for connecting.
    #[serde(with = "seconds")]
    pub connect_timeout: Duration,
    /// The longest time from when a request is sent to the answer's first byte.
    #[serde(with = "seconds")]
    pub first_byte_timeout: Duration,
    /// The longest time between two bytes of an answer.
    #[serde(with = "seconds")]
    pub stall_timeout: Duration,
    /// Number of retries of a request that got no answer; at most one if an engine may have worked on it.
    pub retries: u32,
    /// Connections kept open for the next request, an engine and thread.
    pub idle_connections: usize,
    /// Time for which idle connections are kept.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// Authorities in PEM for engines and services with `https`; the system's own if none.
    pub ca: Option<PathBuf>,
    /// The bearer key for engines that have none of their own.
    pub key: Option<Secret>,
}

/// Settings of the checks whether engines work.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthConfig {
    /// Path at which engines are asked.
    pub path: String,
    /// Time between two questions to an engine; 0 to ask none.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Time within which a question must be answered, by an engine that is not busy.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Failures in a row after which an engine is left out: questions, connections, requests that another one answered.
    pub failures: u32,
    /// Time for which an engine is left out at first; doubles with each failure after that.
    #[serde(with = "seconds")]
    pub open: Duration,
    /// The longest time for which an engine is left out.
    #[serde(with = "seconds")]
    pub open_max: Duration,
    /// Time without a byte from an engine with open requests after which it gets no new ones; 0 for never.
    #[serde(with = "seconds")]
    pub silence: Duration,
    /// Time between two readings of an engine's metrics; 0 to read none.
    #[serde(with = "seconds")]
    pub load_interval: Duration,
}

/// The defaults, which Python's table of settings declares and this crate only reads: `tools/generate_defaults.py` writes the file.
const DEFAULTS: &str = include_str!("../../defaults.json");

impl Default for Config {
    /// The defaults, for programs and tests in Rust: no engines, no tokenizer, and no events.
    fn default() -> Self {
        kvatlas_settings::defaults(DEFAULTS)
    }
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Config::default().upstream
    }
}

impl Default for HealthConfig {
    fn default() -> Self {
        Config::default().health
    }
}

impl Config {
    /// Makes the policy that the configuration names, one of `policies`.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none of that name, or it cannot use an option.
    pub fn make_policy(&self, policies: &PolicyTable) -> Result<BoxedPolicy, Error> {
        let options = Value::Object(self.policy_options.clone()).to_string();
        Ok(policies.make(&self.policy, Options::from_json(&options)?, self.seed)?)
    }

    /// The configuration that Python hands over as JSON, with every field.
    ///
    /// # Errors
    /// [`Error::Config`] names the field that is unknown or wrong.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let config: Self = serde_json::from_str(json).map_err(|error| Error::config(error.to_string()))?;
        config.http.check().map_err(Error::config)?;
        for (name, zero) in [
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
    /// An engine at a URL with default settings.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self {
            name: None,
            url: url.to_owned(),
            models: Vec::new(),
            aliases: Vec::new(),
            adapters: Vec::new(),
            model: None,
            role: Role::Both,
            weight: one(),
            ranks: Ranks::default(),
            rank_header: RankHeader::default(),
            key: None,
            use_key: None,
            capacity_blocks: None,
            handover: None,
            version: None,
            bootstrap_port: None,
            pull: None,
            pull_group: None,
            block_size: None,
            drain: None,
        }
    }
}

fn one() -> f64 {
    1.0
}
