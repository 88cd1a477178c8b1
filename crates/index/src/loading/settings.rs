//! Settings of engines that offload, and of pools.

use std::num::{NonZeroU32, NonZeroU64};

use crate::types::Tier;

/// Settings of a worker's engine that offloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OffloadSettings {
    /// Blocks in a chunk of host memory, of local disks, and of what is external; none for what is learnt from stores.
    pub chunks: [Option<NonZeroU32>; 3],
    /// True if a reset of the engine's prefix cache leaves what it has offloaded; none if that is not known. Engines do
    /// either and do not say which.
    pub resets_keep: Option<bool>,
}

/// Workers that may load from a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Members {
    /// All that there are.
    All,
    /// Workers of these names, whether they have ever announced anything or not.
    Named(Vec<Box<str>>),
}

impl Members {
    pub(super) fn has(&self, worker: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|name| **name == *worker),
        }
    }
}

/// A store that several engines put blocks in and load from, such as a shared folder.
#[derive(Clone, PartialEq, Debug)]
pub struct SharedPool {
    /// Name of the pool.
    pub name: Box<str>,
    /// Workers that put blocks in it and may load from it.
    pub members: Members,
    /// Tier under which members' events announce the pool's blocks; never the device.
    pub tier: Tier,
    /// Blocks in a chunk; none for what its members' stores show.
    pub chunk: Option<NonZeroU32>,
    /// True if its members announce what is removed. Otherwise blocks may go unnoticed.
    pub announces_removals: bool,
    /// Seconds after which a block counts no more unless it was announced again; none for no limit.
    pub lifetime: Option<f64>,
    /// Blocks that it has room for: of more, those that were announced longest ago count no more. None for no limit.
    pub room: Option<NonZeroU64>,
}
