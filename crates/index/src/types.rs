//! Types of the index's interface: block hash, tier, view, event; and the errors of its calls. A refused call has
//! changed nothing.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

/// The engine's own identity of a block, brought to 64 bits.
///
/// Engines name blocks by unsigned or signed integers of any width or by raw digests. An unsigned 64-bit
/// integer is its own canonical form; every other name is spread over the 64 bits by a bijection
/// (negative 64-bit integers) or by XXH3-64 of its bytes, so that `-1` and `2**64 - 1` stay different blocks.
/// The mapping has no secret and no state: a dump replayed elsewhere still answers to the engine's names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub struct BlockHash(pub u64);

impl BlockHash {
    /// Canonical form of a block hash that is a signed integer.
    #[must_use]
    pub fn from_i64(name: i64) -> Self {
        if name >= 0 { Self(name.unsigned_abs()) } else { Self(scramble(name as u64)) }
    }

    /// Canonical form of a block hash that is a raw digest, or of a wide integer's little-endian two's complement
    /// bytes.
    #[must_use]
    pub fn from_bytes(name: &[u8]) -> Self {
        Self(xxh3_64(name))
    }
}

impl From<u64> for BlockHash {
    fn from(name: u64) -> Self {
        Self(name)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of the 64-bit integers.
fn scramble(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The medium that holds a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Tier {
    /// Device memory: blocks that an engine can use without a copy.
    #[default]
    Gpu,
    /// Host memory.
    Cpu,
    /// Local storage.
    Disk,
    /// Any shared or remote storage.
    External,
}

impl Tier {
    /// All tiers, nearest first.
    pub const ALL: [Self; 4] = [Self::Gpu, Self::Cpu, Self::Disk, Self::External];

    /// The tier's name: `gpu`, `cpu`, `disk` or `external`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Disk => "disk",
            Self::External => "external",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Tier {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|t| t.name() == name).ok_or_else(|| Error::UnknownTier { name: name.to_owned() })
    }
}

/// Choice of the tiers whose blocks count in a depth. Each view has all tiers of the narrower ones; a chain may change
/// tiers from block to block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum View {
    /// Blocks in device memory.
    #[default]
    Device,
    /// Blocks in device and host memory.
    Host,
    /// Blocks in memory and on local storage.
    Local,
    /// Blocks on any tier.
    AnyTier,
}

impl View {
    /// All views, narrowest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Local, Self::AnyTier];
}

impl From<Tier> for View {
    /// The view of all tiers up to `tier`, nearest first.
    fn from(tier: Tier) -> Self {
        Self::ALL[tier as usize]
    }
}

/// Change of the blocks that a worker holds. A dump of an index is a list of events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Consecutive blocks of one chain were cached; the first continues `parent`, each other the one before it.
    Store {
        /// The worker's name.
        worker: Box<str>,
        /// The data-parallel rank within the worker.
        rank: u32,
        /// Tier that the blocks are on.
        tier: Tier,
        /// Block hash of the block before the first; `None` at the start of a prompt.
        parent: Option<BlockHash>,
        /// The engine's block hashes, in chain order.
        block_hashes: Vec<BlockHash>,
        /// The content hash of each block.
        content_hashes: Vec<u64>,
    },
    /// Blocks were evicted.
    Remove {
        /// The worker's name.
        worker: Box<str>,
        /// The data-parallel rank within the worker.
        rank: u32,
        /// Tier that the blocks were on.
        tier: Tier,
        /// The engine's block hashes, in any order.
        block_hashes: Vec<BlockHash>,
    },
    /// A worker, or one rank or tier of a worker, lost all its blocks.
    Clear {
        /// The worker's name.
        worker: Box<str>,
        /// The rank that was cleared; `None` for all ranks.
        rank: Option<u32>,
        /// The tier that was cleared; `None` for all tiers.
        tier: Option<Tier>,
    },
    /// A worker is gone, with all its blocks.
    Drop {
        /// The worker's name.
        worker: Box<str>,
    },
}

/// Reason why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block size of 0.
    #[error("block_size must be at least 1, got {got}")]
    BlockSize {
        /// Block size that was requested, in tokens.
        got: u64,
    },
    /// A store with lists of different lengths.
    #[error(
        "{block_hashes} block hashes but {content_hashes} content hashes: a store needs one content hash for each block hash"
    )]
    LengthMismatch {
        /// Number of block hashes.
        block_hashes: usize,
        /// Number of content hashes.
        content_hashes: usize,
    },
    /// A store whose number of tokens does not fill its blocks exactly.
    #[error("{tokens} tokens for {block_hashes} block hashes: blocks of {block_size} tokens need exactly {}", block_hashes * block_size)]
    TokenCount {
        /// Number of tokens.
        tokens: usize,
        /// Number of block hashes.
        block_hashes: usize,
        /// Block size of the index, in tokens.
        block_size: usize,
    },
    /// A name that no tier has.
    #[error("unknown tier {name:?}: it is one of \"gpu\", \"cpu\", \"disk\", \"external\"")]
    UnknownTier {
        /// The unknown name.
        name: String,
    },
    /// Bytes that are no snapshot of an index.
    #[error("not a snapshot of an index: {what}")]
    Snapshot {
        /// Description of what is wrong with them.
        what: String,
    },
    /// The index cannot number any more of something.
    #[error("the index is full: {what}")]
    Full {
        /// Description of what ran out.
        what: &'static str,
    },
}

impl Error {
    /// A name that stays the same in every release, for programs to test.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::BlockSize { .. } => "invalid_block_size",
            Self::LengthMismatch { .. } => "length_mismatch",
            Self::TokenCount { .. } => "token_count",
            Self::UnknownTier { .. } => "unknown_tier",
            Self::Snapshot { .. } => "invalid_snapshot",
            Self::Full { .. } => "index_full",
        }
    }
}
