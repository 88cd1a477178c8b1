//! Settings of a router. The settings are declared in Python with their types, defaults and help texts
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

/// Settings of a router.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Settings of the router's HTTP server.
    pub http: kvatlas_http::Config,
    /// Engines known at the start. Further engines can be registered later.
    pub engines: Vec<EngineConfig>,
    /// Settings of the connections to engines.
    pub upstream: UpstreamConfig,
    /// Settings of the engines' health checks.
    pub health: HealthConfig,
    /// Settings of the part of this process that follows the engines' events; None if `index` is set or the policy does
    /// not use the index.
    pub service: Option<Value>,
    /// URL of an index service in another process, `http://host:port` or `https://host:port`, which is queried for the
    /// blocks that engines hold; None to use no other process.
    pub index: Option<String>,
    /// Key for the index service at the URL `index`; None to send no key.
    pub index_key: Option<Secret>,
    /// URL of the service that indexes many sites (fleets with their own indexes), if this router's engines are sites;
    /// None for other routers.
    pub global_url: Option<String>,
    /// Admin key for the service at the URL `global_url`; None to send no key.
    pub global_key: Option<Secret>,
    /// Time limit for an answer of the service at the URL `global_url`.
    #[serde(with = "seconds")]
    pub global_timeout: Duration,
    /// URLs of other routers in front of the same engines, to which this router reports its requests.
    pub peers: Vec<String>,
    /// Key that the routers in `peers` require; None to send no key.
    pub peer_key: Option<Secret>,
    /// Routing group of the engines in the index: a name for workers that serve requests together.
    pub routing_group: String,
    /// Name of the routing policy: `kvatlas`, `round-robin`, ...
    pub policy: String,
    /// Settings of the routing policy, by their names.
    pub policy_options: Map<String, Value>,
    /// Seed of the policy's random choices.
    pub seed: u64,
    /// Settings of the cost computation and the reservations in `kvatlas_routing`, those that users can change.
    pub routing: kvatlas_routing::Config,
    /// Longest time that a request waits in the router while no engine is available; 0 to refuse the request at once.
    #[serde(with = "seconds")]
    pub wait_for_engine: Duration,
    /// True if engines publish no events, so that the router predicts the blocks that they hold from the requests sent
    /// to them.
    pub no_events: bool,
    /// Path of a `tokenizer.json`, or of a directory with a `tokenizer.json` and a chat template; `engine` to use the
    /// engines' `/tokenize`; None to route without tokens.
    pub tokenizer: Option<String>,
    /// Tokenizers of single models, by model name, with the same values as `tokenizer`.
    pub tokenizers: Map<String, Value>,
    /// Block size in tokens, used where the index does not state a block size.
    pub block_size: u32,
    /// Places of a request that may name its session (a conversation of several requests), in the order in which they
    /// are searched; empty to ignore sessions.
    pub session_sources: Vec<Source>,
    /// Name of a header, chosen by the operator, with the id of a request's session; empty for none.
    pub session_header: String,
    /// Name of the header with a request's priority, an integer, higher first; empty for none.
    pub priority_header: String,
    /// True if the headers of an answer name the chosen engine and the reason for the choice.
    pub response_headers: bool,
    /// Time without a token after which the router sends a comment in a client's stream, and pause between two
    /// comments; 0 for no comments.
    #[serde(with = "seconds")]
    pub comment_after: Duration,
    /// Number of uncached prompt tokens up to which a request is sent to a decode engine alone, without a prefill
    /// engine.
    pub decode_alone: u32,
    /// Maximum number of prompt tokens whose blocks an engine pulls from other engines when it joins or comes back with
    /// an empty cache; 0 to pull none.
    pub warm_up: u64,
    /// True to send completions to engines as token ids, if the router's tokenizer agrees with the engine's.
    pub forward_tokens: bool,
    /// True to request token counts (`usage`) from engines for every stream, even if the client does not request them.
    pub ask_usage: bool,
    /// Images to which the router assigns a `uuid`, for engines that identify images by `uuid`.
    pub image_ids: ImageIds,
    /// Clients that may send the request fields reserved for the router and its engines, which control the transfer of
    /// blocks between engines and select ranks.
    pub engine_fields: EngineFields,
    /// Quantile of the observed times to the first token. A streamed request without a token by this time is sent to a
    /// second engine too (a hedge). 0 for no hedges.
    pub hedge_after: f64,
    /// File to which routing decisions are written; None to write none.
    pub record: Option<PathBuf>,
    /// Address of the gRPC server on which gateways ask for an engine; None for no such server.
    pub gateway_bind: Option<SocketAddr>,
    /// Address of a gRPC server that has only the health service, without TLS; None for no such server.
    pub gateway_health_bind: Option<SocketAddr>,
    /// True if the gRPC server for gateways uses TLS.
    pub gateway_tls: bool,
    /// Path of the certificate chain of the gRPC server for gateways, in PEM; None for a certificate created at the
    /// start.
    pub gateway_tls_cert: Option<PathBuf>,
    /// Path of the private key that belongs to the certificate in `gateway_tls_cert`.
    pub gateway_tls_key: Option<PathBuf>,
    /// True to let clients of gateways choose an engine by a header, as conformance tests of gateways require.
    pub gateway_conformance: bool,
    /// Number of recent routing decisions that are stored for inspection.
    pub decisions: usize,
    /// Paths that are forwarded to engines besides the known ones: a whole path, or a prefix followed by `*`.
    pub forward: Vec<String>,
    /// Maximum number of ranks of all engines together up to which clients can add engines.
    pub max_ranks: usize,
    /// Settings of the log. If one process starts several routers, the first router's settings apply.
    pub log: LogConfig,
}

/// Settings of one inference engine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Name of the engine in the router and the index; None to use the engine's URL without the scheme.
    #[serde(default)]
    pub name: Option<String>,
    /// URL of the engine: `http://host:port`, with a path if its API has a prefix.
    pub url: String,
    /// Models and adapters that the engine serves; if empty, the router asks the engine at `/v1/models`.
    #[serde(default)]
    pub models: Vec<String>,
    /// Further names by which clients can request the engine's model. The router replaces an alias by the engine's own
    /// name for the model, unless the engine lists the alias itself.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// LoRA adapters that the engine serves besides those that it lists.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// Name of the engine's model in the index, if different from the name that clients use.
    #[serde(default)]
    pub model: Option<String>,
    /// Role of the engine in serving requests: prefill, decode or both.
    #[serde(default)]
    pub role: Role,
    /// Weight of the engine relative to other engines, in proportion to which requests are distributed.
    #[serde(default = "one")]
    pub weight: f64,
    /// Data-parallel ranks of the engine that requests can address, each with its own cache: their number, or a list of
    /// their ids; 1 for an engine without ranks.
    #[serde(default)]
    pub ranks: Ranks,
    /// Numbering of ranks in the request header that selects a rank of the engine.
    #[serde(default)]
    pub rank_header: RankHeader,
    /// Key that the router sends to the engine as a bearer token; None if the engine has no key of its own.
    #[serde(default)]
    pub key: Option<Secret>,
    /// True to send the key configured for all engines (`upstream.key`) to this engine, if `key` is None. None: the key
    /// is sent unless a client added the engine.
    #[serde(default)]
    pub use_key: Option<bool>,
    /// Capacity of the engine's cache in blocks; None to read it from the engine's `/metrics`.
    #[serde(default)]
    pub capacity_blocks: Option<u64>,
    /// Protocol by which the engine transfers blocks between prefill and decode engines. None to detect the protocol
    /// from the kind of engine; until then the engine gets no request that is split into prefill and decode.
    #[serde(default)]
    pub handover: Option<Handover>,
    /// Version of the engine, which determines how it renders prompts; None to ask the engine.
    #[serde(default)]
    pub version: Option<String>,
    /// Port at which an SGLang prefill engine arranges transfers with decode engines (the bootstrap port); None to ask
    /// the engine.
    #[serde(default)]
    pub bootstrap_port: Option<u16>,
    /// Address `HOST:PORT` at which other engines can pull blocks from the host memory of the engine's first rank; each
    /// further rank has the next port. None if the engine neither pulls blocks nor is pulled from.
    #[serde(default)]
    pub pull: Option<String>,
    /// Name of the group of engines that can pull blocks from each other, equal for all of them; None for no group.
    #[serde(default)]
    pub pull_group: Option<String>,
    /// Block size of the engine's cache in tokens, used when its event stream is registered.
    #[serde(default)]
    pub block_size: Option<u32>,
    /// True if the operator wants the engine to get no new requests (draining), false to end draining; None to leave
    /// the present state.
    #[serde(default)]
    pub drain: Option<bool>,
}

/// Role of an engine in serving requests: prefill, decode or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The engine does both prefill and decode.
    #[default]
    Both,
    /// The engine only computes prompts (prefill), for decode engines.
    Prefill,
    /// The engine only generates answers (decode), for prompts computed by prefill engines.
    Decode,
}

impl Role {
    /// Returns the name of the role in the configuration and in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Choice of the images in requests to which the router assigns a `uuid`, by which engines identify equal images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageIds {
    /// The router assigns a `uuid` only to images whose bytes are in the request.
    Auto,
    /// The router assigns a `uuid` to images whose bytes are in the request, and to images given by URL; the operator
    /// asserts that the content of a URL never changes.
    Addresses,
    /// The router assigns a `uuid` to no image.
    Off,
}

/// Clients that may send the request fields reserved for the router and its engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineFields {
    /// Only clients that send the router's admin key.
    Admin,
    /// All clients, with or without a key.
    All,
}

/// Protocol for transferring a prompt's KV blocks from a prefill engine to a decode engine, named after the engines
/// that use the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handover {
    /// Protocol of vLLM: the router copies the `kv_transfer_params` of the prefill engine's answer into the decode
    /// engine's request.
    Vllm,
    /// Protocol of SGLang: both engines get the request at the same time, with the same number (the bootstrap room), by
    /// which they find each other.
    Sglang,
}

impl Handover {
    /// Returns the kind of engine that uses the protocol.
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
    /// Maximum number of retries of a request that got no answer. At most one retry is made if an engine may have begun
    /// to process the request.
    pub retries: u32,
    /// Maximum number of idle connections to one engine that a thread keeps open.
    pub idle_connections: usize,
    /// Time after which an idle connection is closed.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// PEM file of certificate authorities that sign the certificates of engines and services with `https`; None for
    /// the system's authorities.
    pub ca: Option<PathBuf>,
    /// Key that the router sends as a bearer token to engines without a key of their own; None to send none.
    pub key: Option<Secret>,
}

/// Settings of the engines' health checks.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthConfig {
    /// Path of the health check at engines, such as `/health`.
    pub path: String,
    /// Time between two health checks of an engine; 0 for no checks.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Time limit for an engine's answer to a health check while the engine is not busy.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Number of successive failures after which an engine gets no requests for a while. Failures are failed health
    /// checks, failed connections, and failed requests that another engine then answered.
    pub failures: u32,
    /// Time for which a failing engine gets no requests at first; doubled by each further failure.
    #[serde(with = "seconds")]
    pub open: Duration,
    /// Longest time for which a failing engine gets no requests before it is tried again.
    #[serde(with = "seconds")]
    pub open_max: Duration,
    /// Time without a byte from an engine with open requests after which the engine gets no new requests; 0 for no
    /// limit.
    #[serde(with = "seconds")]
    pub silence: Duration,
    /// Time between two readings of an engine's load from its metrics; 0 to read none.
    #[serde(with = "seconds")]
    pub load_interval: Duration,
}

/// Default settings as JSON. They are declared in Python; `tools/generate_defaults.py` writes the file.
const DEFAULTS: &str = include_str!("../../defaults.json");

impl Default for Config {
    /// Returns the default settings, for programs and tests in Rust: no engines, no tokenizer, no events.
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
    /// Makes the routing policy that the settings name, which must be in `policies`.
    ///
    /// # Errors
    /// [`Error::Config`] if no policy has the name, or the policy rejects an option.
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
    /// Returns the settings of an engine at a URL, with defaults for all others.
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
