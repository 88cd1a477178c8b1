//! Settings for what engines can load beyond their device memory.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use kvatlas_index::{BlockIndex, Members, OffloadSettings, SharedPool, Tier};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

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
