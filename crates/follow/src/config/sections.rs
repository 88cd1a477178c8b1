//! Sections of a follower's configuration, one struct each, and settings for KV blocks that engines load from outside
//! their device memory.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use kvatlas_index::{BlockIndex, EvictionOrder, Members, OffloadSettings, SharedPool, Tier};
use kvatlas_settings::Secret;
use kvatlas_stream::limits::LimitsConfig;
use kvatlas_stream::machine::MachineConfig;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::lmcache::LmcacheConfig;

use crate::endpoint::Endpoint;

/// Settings for reading engines' event streams.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Networks, patterns of host names and patterns of `ipc://` paths that engines' endpoints must match to be
    /// registered over HTTP or by discovery. If empty, any endpoint is allowed where registration requires a key, and
    /// only loopback addresses otherwise.
    pub allow: Vec<String>,
    /// Addresses at which the service listens for engines whose event sockets connect to the service instead of
    /// listening.
    pub bind: Vec<SocketAddr>,
    /// Number of threads that apply engines' events to the indexes.
    pub threads: usize,
    /// Time without a message after which a stream is no longer trusted, if the engine's replay socket does not answer
    /// either.
    #[serde(with = "kvatlas_settings::seconds")]
    pub stale_after: Duration,
    /// Time without a message after which the engine's replay socket is asked for batches that may be missing.
    #[serde(with = "kvatlas_settings::seconds")]
    pub probe_interval: Duration,
    /// Maximum wait for the next batch during a replay (the resending of missed batches by an engine).
    #[serde(with = "kvatlas_settings::seconds")]
    pub replay_timeout: Duration,
    /// Maximum total time of all replays for one purpose, such as filling one gap in a stream.
    #[serde(with = "kvatlas_settings::seconds")]
    pub replay_total_timeout: Duration,
    /// Maximum number of replays requested for one gap (missing batches between two received ones).
    pub replay_attempts: u32,
    /// Maximum wait for a missing batch to arrive late, for engines without a replay socket.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reorder_grace: Duration,
    /// Wait before the first attempt to restore a lost connection. The wait doubles with each failure, up to
    /// `reconnect_max`.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reconnect_min: Duration,
    /// Maximum wait between attempts to restore a lost connection.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reconnect_max: Duration,
    /// Maximum time for which an engine that has not sent any message yet keeps the service from being ready.
    #[serde(with = "kvatlas_settings::seconds")]
    pub settle_timeout: Duration,
    /// Maximum number of batches of one stream that are buffered while earlier batches are missing.
    pub buffer_batches: usize,
    /// Maximum total size, in bytes, of batches that are buffered while earlier batches are missing.
    pub buffer_bytes: usize,
    /// True if indexes identify blocks by hashes that depend on a secret key of this process, instead of by content
    /// hashes.
    pub keyed_identity: bool,
    /// Effect that resetting an engine's prefix cache has on the blocks that the engine has offloaded to other tiers.
    pub resets: Resets,
    /// Shared stores (pools) that several engines put blocks in and load from.
    pub pools: Vec<PoolConfig>,
    /// Limits on the memory that engines and clients can make the service use.
    pub limits: LimitsConfig,
}

impl StreamConfig {
    /// Returns the settings for KV blocks that engines load from outside their device memory.
    #[must_use]
    pub fn loading(&self) -> LoadingConfig {
        LoadingConfig { resets: self.resets, pools: self.pools.clone() }
    }
}

impl From<&StreamConfig> for MachineConfig {
    fn from(config: &StreamConfig) -> Self {
        Self {
            stale_after: config.stale_after,
            probe_interval: config.probe_interval,
            replay_timeout: config.replay_timeout,
            replay_total_timeout: config.replay_total_timeout,
            replay_attempts: config.replay_attempts,
            reorder_grace: config.reorder_grace,
            reconnect_min: config.reconnect_min,
            reconnect_max: config.reconnect_max,
            buffer_batches: config.buffer_batches,
            buffer_bytes: config.buffer_bytes,
            all_buffer_bytes: config.limits.buffer_bytes,
        }
    }
}

/// Settings for adopting blocks (adding them to the index) that engines announced before this service followed them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptConfig {
    /// Share of one CPU core that may be used for adding blocks to the index that were announced before this service
    /// followed their engines; from 0 (never added) to 1.
    pub share: f64,
    /// Values of the environment variable `PYTHONHASHSEED` that engines were started with; the block hashes of vLLM
    /// depend on it.
    pub hash_seeds: Vec<String>,
}

/// Settings for snapshots, in which the service saves the blocks held by each stream's engine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotConfig {
    /// Directory of snapshots; `None` to keep none on disk.
    pub dir: Option<PathBuf>,
    /// Time from the end of writing one snapshot to the beginning of the next.
    #[serde(with = "kvatlas_settings::seconds")]
    pub every: Duration,
    /// Time for which the holdings of a stream, loaded from a snapshot, are kept until the stream's engine is
    /// registered.
    #[serde(with = "kvatlas_settings::seconds")]
    pub keep: Duration,
    /// True if streams wait until another service has sent its snapshot, or has been found to have none; see
    /// [`Follower::load_snapshot`](crate::Follower::load_snapshot).
    pub from_peer: bool,
    /// Maximum size of a snapshot, in bytes; applies to the compressed and to the unpacked form.
    pub max_bytes: u64,
}

/// Settings for publishing changes of the index to a log in NATS, or for reading streams from that log.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// NATS servers to which the changes of all streams are published, separated by commas; each is `nats://HOST:PORT`
    /// or `tls://HOST:PORT`.
    pub publish: Option<String>,
    /// True if the service does nothing but publish streams to the log. The service is then not ready until the log
    /// exists.
    pub dedicated: bool,
    /// NATS servers from which streams are read, instead of from engines; same format as `publish`.
    pub from: Option<String>,
    /// File with the credentials for the NATS servers.
    pub credentials: Option<PathBuf>,
    /// File with the certificates of trusted certificate authorities, which replace the system's.
    pub ca: Option<PathBuf>,
    /// Secret key that content hashes in the log depend on: 64 hexadecimal digits.
    pub key: Option<Secret>,
    /// File that contains the secret key for content hashes in the log, as an alternative to `key`.
    pub key_file: Option<PathBuf>,
    /// Name of the log's JetStream stream.
    pub stream: String,
    /// Maximum age of messages in the log. Takes effect only if this service creates the log.
    #[serde(with = "kvatlas_settings::seconds")]
    pub max_age: Duration,
    /// Maximum size of the log, in bytes. Takes effect only if this service creates the log.
    pub max_bytes: i64,
    /// True if the log is stored in memory instead of on disk. Takes effect only if this service creates the log.
    pub in_memory: bool,
    /// True if readers of the log save snapshots in NATS's object store, and delete log messages that the snapshots
    /// supersede.
    pub snapshots: bool,
    /// Maximum total size, in bytes, of the queues in which all streams' messages wait to be published to the log. A
    /// queue that exceeds the limit is dropped.
    pub buffer_bytes: usize,
    /// Time between two heartbeat messages that are published to the log for a stream without changes.
    #[serde(with = "kvatlas_settings::seconds")]
    pub heartbeat: Duration,
    /// Time without a message from a relay (a service that publishes engines' streams to the log) after which the
    /// relay's streams are no longer trusted.
    #[serde(with = "kvatlas_settings::seconds")]
    pub lost_after: Duration,
    /// Time without a message from a relay (a service that publishes engines' streams to the log) after which the
    /// relay's streams are removed.
    #[serde(with = "kvatlas_settings::seconds")]
    pub forget_after: Duration,
}

/// Role of a service in a deployment of several sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Service of one site, which follows engines.
    Site,
    /// Service above the sites, which receives digests (summaries of the sites' indexes).
    Global,
}

/// Settings for deployments of several sites.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SitesConfig {
    /// Role of the service: the index of one site, or the service above all sites.
    pub role: Role,
    /// Number of blocks between two prefix hashes of a chain in a site's digest (the summary of the site's index). Must
    /// be equal at all sites.
    pub grain: u32,
    /// Time without a digest (summary of a site's index) after which the site is assumed to possibly hold any block.
    #[serde(with = "kvatlas_settings::seconds")]
    pub unknown_after: Duration,
    /// Time without a digest (summary of a site's index) after which the site is removed.
    #[serde(with = "kvatlas_settings::seconds")]
    pub forget_after: Duration,
}

/// Effect that resetting an engine's prefix cache has on the blocks that the engine has offloaded to other tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resets {
    /// The effect of a reset is unknown.
    Unknown,
    /// Offloaded blocks are kept.
    Keep,
    /// Offloaded blocks are deleted.
    Empty,
}

/// Settings of a pool: a store that several engines put blocks in and load from.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Name of the pool.
    pub name: Box<str>,
    /// Workers that may load blocks from the shared pool; `None` if all workers may.
    pub members: Option<Vec<Box<str>>>,
    /// Number of blocks in a chunk, the pool's unit of storage. `None` to use the number that the pool's members
    /// report, or that their store events show.
    pub chunk: Option<NonZeroU32>,
    /// Tier (medium) that the workers' events name for blocks in the pool.
    #[serde(deserialize_with = "beyond_the_device")]
    pub tier: Tier,
    /// True if the workers that use the pool announce when blocks are removed from it.
    pub announces_removals: bool,
    /// Seconds from a block's latest announcement until the block no longer counts as held; `None` for no limit.
    pub lifetime: Option<f64>,
    /// Capacity of the pool, in blocks; `None` for no limit.
    pub room: Option<NonZeroU64>,
    /// True if blocks that were used longest ago leave a full pool first, false if those announced longest ago do.
    pub evicts_used: bool,
    /// Directory with one file per chunk, which is scanned to see which chunks exist; `None` to rely on the announced
    /// events alone.
    pub directory: Option<PathBuf>,
    /// URL of the metrics of the Mooncake master whose objects the pool's blocks are; `None` for other pools.
    pub mooncake: Option<Box<str>>,
    /// Endpoint of the master's event stream; `None` to ask the master for its keys alone.
    #[serde(deserialize_with = "endpoint")]
    pub events: Option<Endpoint>,
    /// Beginning of the keys of the pool's objects before `@tp_rank:`, such as `PREFIX@MODEL`; `None` to take all keys that
    /// name the model of the index.
    pub key_prefix: Option<Box<str>>,
    /// Number of objects that one block is in each of its cache groups; `None` for what the keys show.
    pub objects: Option<NonZeroU32>,
    /// Time between two scans of the pool's directory for removed files, or between two lists of the store's keys.
    #[serde(with = "kvatlas_settings::seconds")]
    pub look_every: Duration,
    /// Settings of a pool that LMCache fills; `None` for other pools.
    pub lmcache: Option<LmcacheConfig>,
}

fn endpoint<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Endpoint>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    text.parse().map(Some).map_err(D::Error::custom)
}

fn beyond_the_device<'de, D: Deserializer<'de>>(from: D) -> Result<Tier, D::Error> {
    match String::deserialize(from)?.parse() {
        Ok(Tier::Gpu) => Err(D::Error::custom("a pool is on another tier than \"gpu\"")),
        Ok(tier) => Ok(tier),
        Err(error) => Err(D::Error::custom(error)),
    }
}

impl PoolConfig {
    /// The pool as an index with blocks of `block_size` tokens has it.
    pub(crate) fn shared(&self, block_size: u32) -> SharedPool {
        let Self { name, members, chunk, tier, announces_removals, lifetime, room, evicts_used, lmcache, .. } =
            self.clone();
        let evicts = if evicts_used { EvictionOrder::Used } else { EvictionOrder::Announced };
        let members = members.map_or(Members::All, Members::Named);
        // An object of Mooncake's store is a part of one block, whatever the length of the stores that announce it.
        let own = if self.mooncake.is_some() { chunk.or(NonZeroU32::new(1)) } else { chunk };
        let chunk = lmcache.as_ref().map_or(own, |lmcache| lmcache.chunk(block_size));
        let from_beginning = lmcache.is_some();
        SharedPool {
            name,
            members,
            tier,
            chunk,
            announces_removals,
            lifetime,
            room,
            evicts,
            follows_store: false,
            from_beginning,
        }
    }
}

/// Settings for KV blocks that engines load from outside their device memory: effect of cache resets, and shared pools.
#[derive(Debug, Clone)]
pub struct LoadingConfig {
    /// Effect that resetting an engine's prefix cache has on the blocks that the engine has offloaded to other tiers.
    pub resets: Resets,
    /// Pools: stores that several engines put blocks in and load from.
    pub pools: Vec<PoolConfig>,
}

impl Default for LoadingConfig {
    fn default() -> Self {
        Self { resets: Resets::Unknown, pools: Vec::new() }
    }
}

impl LoadingConfig {
    /// Applies the settings to an index.
    pub(crate) fn tell(&self, index: &BlockIndex) {
        let resets_keep = match self.resets {
            Resets::Unknown => None,
            Resets::Keep => Some(true),
            Resets::Empty => Some(false),
        };
        index.set_usual_offloading(OffloadSettings { resets_keep, ..OffloadSettings::default() });
        self.pools.iter().for_each(|pool| index.add_pool(pool.shared(index.config().block_size)));
    }
}
