//! Settings of a router. They are declared in Python with their types, defaults and help texts
//! (`python/kvatlas/router/config`); Python validates them and passes them as JSON with the same names, durations in
//! seconds. Every field is required.

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
    /// Settings of the HTTP server.
    pub http: kvatlas_http::Config,
    /// Engines known at the start. More can be registered later.
    pub engines: Vec<EngineConfig>,
    /// Settings of the connections to engines.
    pub upstream: UpstreamConfig,
    /// Settings of the engines' health checks.
    pub health: HealthConfig,
    /// Settings of the follower of the engines' events in this process; None if `index` is set or the policy does not
    /// use the index.
    pub service: Option<Value>,
    /// URL of an index service in another process, `http://host:port` or `https://host:port`, which is queried for what
    /// engines hold; None for no such service.
    pub index: Option<String>,
    /// Key for the service at `index`.
    pub index_key: Option<Secret>,
    /// URL of the service that indexes many sites, if this router's engines are sites.
    pub global_url: Option<String>,
    /// Admin key for the service at `global_url`.
    pub global_key: Option<Secret>,
    /// Time limit for an answer of the service at `global_url`.
    #[serde(with = "seconds")]
    pub global_timeout: Duration,
    /// URLs of other routers in front of the same engines, to which this router reports its requests.
    pub peers: Vec<String>,
    /// Key for the routers in `peers`.
    pub peer_key: Option<Secret>,
    /// Routing group of the engines in the index.
    pub routing_group: String,
    /// Name of the routing policy: `kvatlas`, `round-robin`, ...
    pub policy: String,
    /// Settings of the routing policy.
    pub policy_options: Map<String, Value>,
    /// Seed of the random choices.
    pub seed: u64,
    /// Settings of the decision core that users can change, by the core's own names.
    pub routing: kvatlas_routing::Config,
    /// Longest time that a request waits in the router if no engine is up; 0 to refuse it at once.
    #[serde(with = "seconds")]
    pub wait_for_engine: Duration,
    /// True if the blocks that engines hold are predicted from the requests sent to them, as the engines publish no
    /// events.
    pub no_events: bool,
    /// Path of a `tokenizer.json`, or of a directory with one and a chat template; `engine` to use the engines'
    /// `/tokenize`; None to route without tokens.
    pub tokenizer: Option<String>,
    /// Tokenizers of single models, by model name, each given as in `tokenizer`.
    pub tokenizers: Map<String, Value>,
    /// Block size, in tokens, where the index does not state one.
    pub block_size: u32,
    /// Places of a request that may name its session, in the order in which they are searched; empty to ignore
    /// sessions.
    pub session_sources: Vec<Source>,
    /// Name of the operator's own header with a session's id; empty for none.
    pub session_header: String,
    /// Name of the header with a request's priority, an integer, higher first; empty for none.
    pub priority_header: String,
    /// True if the headers of an answer name the chosen engine and the reason for the choice.
    pub response_headers: bool,
    /// Time without a token after which the client of a stream gets a comment, and pause between two comments; 0 for no
    /// comments.
    #[serde(with = "seconds")]
    pub comment_after: Duration,
    /// Number of uncached prompt tokens up to which a request is sent to a decode engine alone, without a prefill
    /// engine.
    pub decode_alone: u32,
    /// Prompt tokens that an engine which joins, or comes back empty, is brought by pulls at most; 0 for none.
    pub warm_up: u64,
    /// True if completions are sent to engines as token ids, where the router's tokenizer agrees with the engine's.
    pub forward_tokens: bool,
    /// True if engines are asked for the usage of streams even if the client has not asked for it.
    pub ask_usage: bool,
    /// Images to which the router assigns a `uuid`, for engines that identify images by `uuid`.
    pub image_ids: ImageIds,
    /// Clients that may send the fields reserved for the router and its engines: parameters of the handover of blocks,
    /// and ranks.
    pub engine_fields: EngineFields,
    /// Quantile of the times to the first token after which a streamed request is sent to a second engine too (a
    /// hedge); 0 for never.
    pub hedge_after: f64,
    /// File to which routing decisions are written; None to write none.
    pub record: Option<PathBuf>,
    /// Address of the gRPC server on which gateways ask for an engine; None for no such server.
    pub gateway_bind: Option<SocketAddr>,
    /// Address of a gRPC server with only the health service, without TLS; None for no such server.
    pub gateway_health_bind: Option<SocketAddr>,
    /// True if the gRPC server for gateways uses TLS.
    pub gateway_tls: bool,
    /// Path of the certificate chain of the gRPC server for gateways, in PEM; None for a certificate created at the
    /// start.
    pub gateway_tls_cert: Option<PathBuf>,
    /// Path of the private key of `gateway_tls_cert`.
    pub gateway_tls_key: Option<PathBuf>,
    /// True to let clients of gateways choose an engine by a header, as conformance tests do.
    pub gateway_conformance: bool,
    /// Number of recent decisions that are kept for inspection.
    pub decisions: usize,
    /// Further paths that are forwarded to engines: a whole path, or a prefix followed by `*`.
    pub forward: Vec<String>,
    /// Maximum number of ranks, of all engines together, that clients can reach by adding engines.
    pub max_ranks: usize,
    /// Settings of the log. The first settings given in a process apply.
    pub log: LogConfig,
}

/// Settings of one engine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Name of the engine, in the index too; None for its URL without the scheme.
    #[serde(default)]
    pub name: Option<String>,
    /// URL of the engine: `http://host:port`, with a path if its API has a prefix.
    pub url: String,
    /// Models and adapters that the engine serves; if empty, it is asked for them at `/v1/models`.
    #[serde(default)]
    pub models: Vec<String>,
    /// Further names of the engine's model for clients. The router replaces them by the engine's own name, unless the
    /// engine lists the alias itself.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Adapters besides those that the engine lists.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// Name of the model in the index, if it differs from the name that clients use.
    #[serde(default)]
    pub model: Option<String>,
    /// Role of the engine: the part of the work on requests that it does.
    #[serde(default)]
    pub role: Role,
    /// The engine's share of the work, relative to other engines.
    #[serde(default = "one")]
    pub weight: f64,
    /// Data-parallel ranks that can be addressed, each with its own cache: their number, or a list of their ids; 1 for
    /// an engine without ranks.
    #[serde(default)]
    pub ranks: Ranks,
    /// Numbering by which requests to the engine name a rank.
    #[serde(default)]
    pub rank_header: RankHeader,
    /// Bearer key for requests to the engine.
    #[serde(default)]
    pub key: Option<Secret>,
    /// True if the key of all engines is sent to the engine when it has none of its own. None: the key is sent, unless
    /// a client added the engine.
    #[serde(default)]
    pub use_key: Option<bool>,
    /// Capacity of the engine's cache in blocks; None to read it from the engine's `/metrics`.
    #[serde(default)]
    pub capacity_blocks: Option<u64>,
    /// Protocol by which the engine hands blocks over between prefill and decode. None to detect it from the kind of
    /// engine; until that is known, the engine gets no request that is split into prefill and decode.
    #[serde(default)]
    pub handover: Option<Handover>,
    /// Version of the engine, as versions differ in how they render prompts; None to ask the engine.
    #[serde(default)]
    pub version: Option<String>,
    /// Bootstrap port at which SGLang's prefill engines meet their decode engines; None to ask the engine.
    #[serde(default)]
    pub bootstrap_port: Option<u16>,
    /// `HOST:PORT` at which other engines can pull blocks from the host memory of the engine's first rank; each further
    /// rank has the next port. None if the engine neither pulls blocks nor is pulled from.
    #[serde(default)]
    pub pull: Option<String>,
    /// Name shared by all engines that can pull blocks from each other.
    #[serde(default)]
    pub pull_group: Option<String>,
    /// Block size of the engine's cache in tokens, used when its event stream is registered.
    #[serde(default)]
    pub block_size: Option<u32>,
    /// True if the operator wants the engine to get no new requests, false if it shall get them; None to leave the
    /// present state.
    #[serde(default)]
    pub drain: Option<bool>,
}

/// The part of the work on requests that an engine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The engine does both prefill and decode.
    #[default]
    Both,
    /// The engine does only prefill, for decode engines.
    Prefill,
    /// The engine does only decode, for prompts computed by prefill engines.
    Decode,
}

impl Role {
    /// Name of the role in the configuration and in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Images to which the router assigns a `uuid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageIds {
    /// Images whose bytes are in the request.
    Auto,
    /// Images whose bytes are in the request, and images given by URL; the operator asserts that the content of a URL
    /// never changes.
    Addresses,
    /// No images.
    Off,
}

/// Clients that may send fields reserved for the router and its engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineFields {
    /// Clients that send the admin key.
    Admin,
    /// All clients.
    All,
}

/// Protocol for handing a prompt's blocks over from a prefill engine to a decode engine, named after the engines that
/// use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handover {
    /// vLLM's: the `kv_transfer_params` in the prefill engine's answer are sent to the decode engine.
    Vllm,
    /// SGLang's: both engines get the request at the same time, with a bootstrap room in which they meet.
    Sglang,
}

impl Handover {
    /// The kind of engine that uses the protocol.
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
    /// Time limit for connecting to an engine.
    #[serde(with = "seconds")]
    pub connect_timeout: Duration,
    /// Longest time from sending a request to the first byte of the answer.
    #[serde(with = "seconds")]
    pub first_byte_timeout: Duration,
    /// Longest time between two successive bytes of an answer.
    #[serde(with = "seconds")]
    pub stall_timeout: Duration,
    /// Maximum number of retries of a request that got no answer; at most one if an engine may have worked on the
    /// request.
    pub retries: u32,
    /// Maximum number of idle connections kept open, for each engine and thread.
    pub idle_connections: usize,
    /// Time after which an idle connection is closed.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// PEM file of certificate authorities for engines and services with `https`; None for those of the system.
    pub ca: Option<PathBuf>,
    /// Bearer key for engines that have none of their own.
    pub key: Option<Secret>,
}

/// Settings of the engines' health checks.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthConfig {
    /// Path of the health check at engines.
    pub path: String,
    /// Time between two health checks of an engine; 0 for no checks.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Time limit for the answer of an engine that is not busy.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Number of successive failures after which an engine is left out: failed health checks, connections, or requests
    /// that another engine then answered.
    pub failures: u32,
    /// Time for which an engine is first left out; doubles with each further failure.
    #[serde(with = "seconds")]
    pub open: Duration,
    /// Longest time for which an engine is left out.
    #[serde(with = "seconds")]
    pub open_max: Duration,
    /// Time without a byte from an engine with open requests after which the engine gets no new ones; 0 for never.
    #[serde(with = "seconds")]
    pub silence: Duration,
    /// Time between two readings of an engine's metrics; 0 to read none.
    #[serde(with = "seconds")]
    pub load_interval: Duration,
}

/// Default settings as JSON. They are declared in Python; `tools/generate_defaults.py` writes the file.
const DEFAULTS: &str = include_str!("../../defaults.json");

impl Default for Config {
    /// The default settings, for programs and tests in Rust: no engines, no tokenizer, no events.
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
    /// Makes the policy that the configuration names, which must be one of `policies`.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no policy of this name, or the policy rejects an option.
    pub fn make_policy(&self, policies: &PolicyTable) -> Result<BoxedPolicy, Error> {
        let options = Value::Object(self.policy_options.clone()).to_string();
        Ok(policies.make(&self.policy, Options::from_json(&options)?, self.seed)?)
    }

    /// Parses the configuration that Python passes as JSON, with every field.
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
    /// Settings of an engine at this URL, the others at their defaults.
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
