//! Sections of the configuration, one struct each, and settings for what engines can load beyond their device memory.

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

/// Settings for following engines.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Networks, patterns of host names and of `ipc://` paths that may be registered over HTTP or by discovery. If empty:
    /// everything where registering needs a key, else loopback.
    pub allow: Vec<String>,
    /// Addresses for engines that connect instead of listening.
    pub bind: Vec<SocketAddr>,
    /// Threads that apply events.
    pub threads: usize,
    /// Silence, without an answer from the replay socket either, after which a stream is not trusted.
    #[serde(with = "kvatlas_settings::seconds")]
    pub stale_after: Duration,
    /// Silence after which the replay socket is asked for missing batches.
    #[serde(with = "kvatlas_settings::seconds")]
    pub probe_interval: Duration,
    /// Time within which a replay must bring its next batch.
    #[serde(with = "kvatlas_settings::seconds")]
    pub replay_timeout: Duration,
    /// Time that all replays for one purpose may take together.
    #[serde(with = "kvatlas_settings::seconds")]
    pub replay_total_timeout: Duration,
    /// Replays for one gap before it is given up.
    pub replay_attempts: u32,
    /// Time for which a missing batch may still come by itself, without a replay socket.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reorder_grace: Duration,
    /// First wait before a connection is tried again; it doubles up to `reconnect_max`.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reconnect_min: Duration,
    /// Longest wait before a connection is tried again.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reconnect_max: Duration,
    /// Time for which an engine that was never heard holds back readiness.
    #[serde(with = "kvatlas_settings::seconds")]
    pub settle_timeout: Duration,
    /// Batches of one stream that may wait for earlier ones.
    pub buffer_batches: usize,
    /// Bytes of the batches that may wait.
    pub buffer_bytes: usize,
    /// True if indexes use words that depend on a key of this process, instead of content hashes.
    pub keyed_identity: bool,
    /// Effect of a reset of an engine's prefix cache on blocks that the engine has offloaded.
    pub resets: Resets,
    /// Stores that several engines put blocks in and load from.
    pub pools: Vec<PoolConfig>,
    /// Limits on what engines and clients can make grow.
    pub limits: LimitsConfig,
}

impl StreamConfig {
    /// Settings for what engines can load beyond their device memory.
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

/// Settings for adopting blocks that engines announced before they were followed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptConfig {
    /// Share of one core that adopting may take, from 0 (no adoption) to 1.
    pub share: f64,
    /// Values of `PYTHONHASHSEED` that engines were started with.
    pub hash_seeds: Vec<String>,
}

/// Settings for keeping snapshots.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotConfig {
    /// Directory of snapshots; none for no snapshots on disk.
    pub dir: Option<PathBuf>,
    /// Time from the end of one snapshot to the beginning of the next.
    #[serde(with = "kvatlas_settings::seconds")]
    pub every: Duration,
    /// Time for which loaded streams wait to be registered.
    #[serde(with = "kvatlas_settings::seconds")]
    pub keep: Duration,
    /// True if streams wait for a snapshot of another service, or word that there is none: see
    /// [`Follower::load_snapshot`](crate::Follower::load_snapshot).
    pub from_peer: bool,
    /// Largest snapshot, in bytes, compressed and unpacked.
    pub max_bytes: u64,
}

/// Settings for publishing to a log, or reading one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// Servers of NATS that the changes of streams are published to: `nats://HOST:PORT` or `tls://HOST:PORT`, separated by
    /// commas.
    pub publish: Option<String>,
    /// True if the service only publishes: it is not ready before there is a log.
    pub dedicated: bool,
    /// Servers of NATS whose log the streams are read from.
    pub from: Option<String>,
    /// File with the credentials for the servers.
    pub credentials: Option<PathBuf>,
    /// File with certificates of the trusted authorities, instead of the system's.
    pub ca: Option<PathBuf>,
    /// Key that content hashes depend on: 64 hexadecimal digits.
    pub key: Option<Secret>,
    /// File with that key instead.
    pub key_file: Option<PathBuf>,
    /// Name of the JetStream stream.
    pub stream: String,
    /// Time for which the log keeps messages, if it is made here.
    #[serde(with = "kvatlas_settings::seconds")]
    pub max_age: Duration,
    /// Bytes that the log keeps, if it is made here.
    pub max_bytes: i64,
    /// True if the log keeps messages in memory instead of on disk, if it is made here.
    pub in_memory: bool,
    /// True if readers keep snapshots in the log's object store, and purge messages from the log that these do not need.
    pub snapshots: bool,
    /// Bytes in the queues of all streams, above which a queue is dropped.
    pub buffer_bytes: usize,
    /// Time between two heartbeats of a stream without changes.
    #[serde(with = "kvatlas_settings::seconds")]
    pub heartbeat: Duration,
    /// Silence of a relay after which its streams are not trusted.
    #[serde(with = "kvatlas_settings::seconds")]
    pub lost_after: Duration,
    /// Silence of a relay after which its streams are forgotten.
    #[serde(with = "kvatlas_settings::seconds")]
    pub forget_after: Duration,
}

/// Role of a service among several sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The service follows engines.
    Site,
    /// The service takes in the digests of sites.
    Global,
}

/// Settings for services at several sites.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SitesConfig {
    /// Role of the service.
    pub role: Role,
    /// Blocks between two marks of a chain; the same at all sites.
    pub grain: u32,
    /// Time without a digest after which a site may hold any block.
    #[serde(with = "kvatlas_settings::seconds")]
    pub unknown_after: Duration,
    /// Time without a digest after which a site is forgotten.
    #[serde(with = "kvatlas_settings::seconds")]
    pub forget_after: Duration,
}

/// Effect of a reset of an engine's prefix cache on blocks that the engine has offloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resets {
    /// An effect that is not known.
    Unknown,
    /// Blocks stay.
    Keep,
    /// Blocks go.
    Empty,
}

/// A pool: a store that several engines put blocks in and load from.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Name of the pool.
    pub name: Box<str>,
    /// Workers that may load from it; none for all.
    pub members: Option<Vec<Box<str>>>,
    /// Blocks in a chunk; none for what its members tell, or their stores show.
    pub chunk: Option<NonZeroU32>,
    /// The tier by which its members' events call it.
    #[serde(deserialize_with = "beyond_the_device")]
    pub tier: Tier,
    /// True if its members announce what is removed.
    pub announces_removals: bool,
    /// Seconds after which a block counts no more unless it was announced again; none for no limit.
    pub lifetime: Option<f64>,
    /// Blocks that it has room for; none for no limit.
    pub room: Option<NonZeroU64>,
    /// Directory with a file for each chunk, which is looked at; none to believe what is announced.
    pub directory: Option<PathBuf>,
    /// Time between two looks at the directory.
    #[serde(with = "kvatlas_settings::seconds")]
    pub look_every: Duration,
}

fn beyond_the_device<'de, D: Deserializer<'de>>(from: D) -> Result<Tier, D::Error> {
    match String::deserialize(from)?.parse() {
        Ok(Tier::Gpu) => Err(D::Error::custom("a pool is on another tier than \"gpu\"")),
        Ok(tier) => Ok(tier),
        Err(error) => Err(D::Error::custom(error)),
    }
}

impl From<&PoolConfig> for SharedPool {
    fn from(config: &PoolConfig) -> Self {
        let PoolConfig { name, members, chunk, tier, announces_removals, lifetime, room, .. } = config.clone();
        let members = members.map_or(Members::All, Members::Named);
        Self { name, members, tier, chunk, announces_removals, lifetime, room }
    }
}

/// All of these settings.
#[derive(Debug, Clone)]
pub struct LoadingConfig {
    /// Effect of resets.
    pub resets: Resets,
    /// Pools that engines share.
    pub pools: Vec<PoolConfig>,
}

impl Default for LoadingConfig {
    fn default() -> Self {
        Self { resets: Resets::Unknown, pools: Vec::new() }
    }
}

impl LoadingConfig {
    /// Tells an index.
    pub(crate) fn tell(&self, index: &BlockIndex) {
        let resets_keep = match self.resets {
            Resets::Unknown => None,
            Resets::Keep => Some(true),
            Resets::Empty => Some(false),
        };
        index.set_usual_offloading(OffloadSettings { resets_keep, ..OffloadSettings::default() });
        self.pools.iter().for_each(|pool| index.add_pool(pool.into()));
    }
}
