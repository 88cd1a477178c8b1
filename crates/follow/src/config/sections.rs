//! Sections of the configuration, one struct each, and settings for blocks that engines can load from beyond their
//! device memory.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use kvatlas_index::{BlockIndex, Members, OffloadSettings, SharedPool, Tier};
use kvatlas_settings::Secret;
use kvatlas_stream::limits::LimitsConfig;
use kvatlas_stream::machine::MachineConfig;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::lmcache::LmcacheConfig;

/// Settings for following engines.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Networks, and patterns of host names and of `ipc://` paths, whose endpoints may be registered over HTTP or by
    /// discovery. If empty: everything where registering needs a key, else loopback.
    pub allow: Vec<String>,
    /// Addresses at which the service listens for engines that connect to it instead of listening themselves.
    pub bind: Vec<SocketAddr>,
    /// Number of threads that apply events.
    pub threads: usize,
    /// Silence after which a stream is no longer trusted, if its replay socket does not answer either.
    #[serde(with = "kvatlas_settings::seconds")]
    pub stale_after: Duration,
    /// Silence of a stream after which its replay socket is asked for missing batches.
    #[serde(with = "kvatlas_settings::seconds")]
    pub probe_interval: Duration,
    /// Longest wait for the next batch of a replay.
    #[serde(with = "kvatlas_settings::seconds")]
    pub replay_timeout: Duration,
    /// Longest total time of all replays for one purpose.
    #[serde(with = "kvatlas_settings::seconds")]
    pub replay_total_timeout: Duration,
    /// Maximum number of replays tried for one gap.
    pub replay_attempts: u32,
    /// Longest wait for a missing batch to arrive by itself, for engines without a replay socket.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reorder_grace: Duration,
    /// First wait before a lost connection is tried again; doubles with each failure, up to `reconnect_max`.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reconnect_min: Duration,
    /// Longest wait before a lost connection is tried again.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reconnect_max: Duration,
    /// Longest time for which an engine that has sent nothing yet holds back readiness.
    #[serde(with = "kvatlas_settings::seconds")]
    pub settle_timeout: Duration,
    /// Maximum number of batches of one stream that wait for earlier, missing ones.
    pub buffer_batches: usize,
    /// Maximum total size, in bytes, of batches that wait for earlier ones.
    pub buffer_bytes: usize,
    /// True if indexes identify blocks by words that depend on a key of this process, instead of by content hashes.
    pub keyed_identity: bool,
    /// Effect of a reset of an engine's prefix cache on blocks that the engine has offloaded.
    pub resets: Resets,
    /// Shared stores (pools) that several engines put blocks in and load from.
    pub pools: Vec<PoolConfig>,
    /// Limits on the memory that engines and clients can make the service use.
    pub limits: LimitsConfig,
}

impl StreamConfig {
    /// Settings for blocks that engines can load from beyond their device memory.
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

/// Settings for adopting blocks that engines announced before this service followed them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptConfig {
    /// Share of one core that the adoption thread may use, from 0 (no adoption) to 1.
    pub share: f64,
    /// Values of `PYTHONHASHSEED` that engines were started with.
    pub hash_seeds: Vec<String>,
}

/// Settings for keeping snapshots of streams' holdings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotConfig {
    /// Directory of snapshots; `None` to keep none on disk.
    pub dir: Option<PathBuf>,
    /// Time from the end of writing one snapshot to the beginning of the next.
    #[serde(with = "kvatlas_settings::seconds")]
    pub every: Duration,
    /// Time for which streams loaded from a snapshot wait for their engines to be registered.
    #[serde(with = "kvatlas_settings::seconds")]
    pub keep: Duration,
    /// True if streams wait for a snapshot of another service, or for word that there is none: see
    /// [`Follower::load_snapshot`](crate::Follower::load_snapshot).
    pub from_peer: bool,
    /// Maximum size of a snapshot, in bytes, both compressed and unpacked.
    pub max_bytes: u64,
}

/// Settings for publishing changes to a log in NATS, or reading streams from one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// NATS servers to which the changes of streams are published: `nats://HOST:PORT` or `tls://HOST:PORT`, separated
    /// by commas.
    pub publish: Option<String>,
    /// True if publishing is the service's only purpose: the service is then not ready until the log exists.
    pub dedicated: bool,
    /// NATS servers from whose log streams are read, in the form of `publish`.
    pub from: Option<String>,
    /// File with the credentials for the NATS servers.
    pub credentials: Option<PathBuf>,
    /// File with certificates of trusted authorities, used instead of the system's.
    pub ca: Option<PathBuf>,
    /// Key that content hashes depend on: 64 hexadecimal digits.
    pub key: Option<Secret>,
    /// File with the key that content hashes depend on, instead of `key`.
    pub key_file: Option<PathBuf>,
    /// Name of the log's JetStream stream.
    pub stream: String,
    /// Time for which the log keeps messages, if this service creates the log.
    #[serde(with = "kvatlas_settings::seconds")]
    pub max_age: Duration,
    /// Maximum size of the log, in bytes, if this service creates the log.
    pub max_bytes: i64,
    /// True if the log keeps messages in memory instead of on disk, if this service creates the log.
    pub in_memory: bool,
    /// True if readers of the log keep snapshots in its object store, and purge messages that these make unneeded.
    pub snapshots: bool,
    /// Maximum total size, in bytes, of all streams' queues to the log; a queue that exceeds it is dropped.
    pub buffer_bytes: usize,
    /// Time between two heartbeats in the log for a stream without changes.
    #[serde(with = "kvatlas_settings::seconds")]
    pub heartbeat: Duration,
    /// Silence of a relay after which its streams are no longer trusted.
    #[serde(with = "kvatlas_settings::seconds")]
    pub lost_after: Duration,
    /// Silence of a relay after which its streams are removed.
    #[serde(with = "kvatlas_settings::seconds")]
    pub forget_after: Duration,
}

/// Role of a service in a deployment of several sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Service of one site, which follows engines.
    Site,
    /// Service above the sites, which receives their digests.
    Global,
}

/// Settings for deployments of several sites.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SitesConfig {
    /// Role of the service: of one site, or above all sites.
    pub role: Role,
    /// Number of blocks between two marks of a chain in digests; must be equal at all sites.
    pub grain: u32,
    /// Time without a digest after which a site is assumed to possibly hold any block.
    #[serde(with = "kvatlas_settings::seconds")]
    pub unknown_after: Duration,
    /// Time without a digest after which a site is removed.
    #[serde(with = "kvatlas_settings::seconds")]
    pub forget_after: Duration,
}

/// Effect of a reset of an engine's prefix cache on blocks that the engine has offloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resets {
    /// The effect of a reset is unknown.
    Unknown,
    /// Offloaded blocks stay in their store.
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
    /// Workers that may load from the pool; `None` for all workers.
    pub members: Option<Vec<Box<str>>>,
    /// Number of blocks in a chunk, the pool's unit of storage; none for the length that its members tell or their stores
    /// show.
    pub chunk: Option<NonZeroU32>,
    /// Tier by which the events of the pool's members name the pool.
    #[serde(deserialize_with = "beyond_the_device")]
    pub tier: Tier,
    /// True if the pool's members announce the removal of blocks.
    pub announces_removals: bool,
    /// Seconds after which a block no longer counts as held unless announced again; `None` for no limit.
    pub lifetime: Option<f64>,
    /// Capacity of the pool, in blocks; `None` for no limit.
    pub room: Option<NonZeroU64>,
    /// Directory with one file per chunk, scanned to see which chunks exist; `None` to trust the announced events.
    pub directory: Option<PathBuf>,
    /// Time between two scans of the directory.
    #[serde(with = "kvatlas_settings::seconds")]
    pub look_every: Duration,
    /// Settings of a pool that LMCache fills; `None` for other pools.
    pub lmcache: Option<LmcacheConfig>,
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
    fn shared(&self, block_size: u32) -> SharedPool {
        let Self { name, members, chunk, tier, announces_removals, lifetime, room, lmcache, .. } = self.clone();
        let members = members.map_or(Members::All, Members::Named);
        let chunk = lmcache.as_ref().map_or(chunk, |lmcache| lmcache.chunk(block_size));
        let from_beginning = lmcache.is_some();
        SharedPool { name, members, tier, chunk, announces_removals, lifetime, room, from_beginning }
    }
}

/// Settings for blocks that engines can load from beyond their device memory: effect of resets, and pools.
#[derive(Debug, Clone)]
pub struct LoadingConfig {
    /// Effect of a reset of an engine's prefix cache on blocks that the engine has offloaded.
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
    /// Applies these settings to an index.
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
