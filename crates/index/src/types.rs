//! Types of the index's interface: block hash, tier, view, event, and errors. A call that returns an error has changed
//! nothing.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

/// Engine's own hash of a block and all blocks before it, converted to 64 bits.
///
/// Engines use unsigned or signed integers of any width or raw digests. An unsigned 64-bit integer is its own canonical
/// form. Every other form is converted to 64 bits by a bijection (negative 64-bit integers) or by XXH3-64 of its bytes,
/// so that `-1` and `2**64 - 1` stay different blocks. The conversion has no secret and no state, so the engine's
/// hashes can also be looked up in a dump that was loaded elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub struct BlockHash(pub u64);

impl BlockHash {
    /// Converts a block hash that is a signed integer to its canonical form.
    #[must_use]
    pub fn from_i64(name: i64) -> Self {
        if name >= 0 { Self(name.unsigned_abs()) } else { Self(scramble(name as u64)) }
    }

    /// Block hash of the block at position `at` in a chunk with this block hash, for chunks (blocks stored together)
    /// whose stores have no block hashes of single blocks. The last block of a chunk has the chunk's own block hash.
    #[must_use]
    pub fn of_chunk(self, at: u32, blocks: u32) -> Self {
        // One value of the generator SplitMix64 for each position, with the chunk's block hash as its seed.
        let step = u64::from(at) + 1;
        let is_last = step == u64::from(blocks);
        if is_last { self } else { Self(scramble(self.0.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15)))) }
    }

    /// Converts a block hash to its canonical form, from a raw digest, or from the little-endian two's complement bytes
    /// of a wide integer.
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

/// Mixes the bits of an integer by the last step of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64-bit
/// integers.
fn scramble(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Storage medium that holds a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Tier {
    /// Device memory, from which an engine can use blocks without copying them.
    #[default]
    Gpu,
    /// Host memory of the engine's machine.
    Cpu,
    /// Local storage of the engine's machine.
    Disk,
    /// Shared or remote storage of any kind.
    External,
}

impl Tier {
    /// All tiers (places of blocks), nearest to the engine's device first.
    pub const ALL: [Self; 4] = [Self::Gpu, Self::Cpu, Self::Disk, Self::External];

    /// Name of the tier: `gpu`, `cpu`, `disk` or `external`.
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

/// Selection of the tiers whose blocks count in a depth. Each view includes all tiers of the narrower ones; the blocks
/// of a chain may be on different tiers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum View {
    /// View that counts only blocks in device memory.
    #[default]
    Device,
    /// View that counts blocks in device and host memory.
    Host,
    /// View that counts blocks in device memory, in host memory and on local storage.
    Local,
    /// View that counts blocks on any tier.
    AnyTier,
}

impl View {
    /// All views (selections of tiers whose blocks count), narrowest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Local, Self::AnyTier];
}

impl From<Tier> for View {
    /// Narrowest view (selection of tiers) that includes `tier`: all tiers up to this one, nearest first.
    fn from(tier: Tier) -> Self {
        Self::ALL[tier as usize]
    }
}

/// Change of the blocks that a worker holds. A dump of an index is a list of these events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Store of consecutive blocks of one chain. The first block continues `parent`; each further block continues the
    /// block before it.
    Store {
        /// Name of the worker.
        worker: Box<str>,
        /// Data-parallel rank within the worker.
        rank: u32,
        /// Tier on which the blocks were stored.
        tier: Tier,
        /// Block hash of the block before the stored chain's first one; `None` at the start of a prompt.
        parent: Option<BlockHash>,
        /// Block hashes as given by the engine, in the order of the chain.
        block_hashes: Vec<BlockHash>,
        /// Content hash of each block.
        content_hashes: Vec<u64>,
    },
    /// Eviction of blocks from a tier.
    Remove {
        /// Name of the worker.
        worker: Box<str>,
        /// Data-parallel rank within the worker.
        rank: u32,
        /// Tier from which the blocks were removed.
        tier: Tier,
        /// Block hashes as given by the engine, in any order.
        block_hashes: Vec<BlockHash>,
    },
    /// Removal of all blocks of a worker, or of one of its ranks or tiers.
    Clear {
        /// Name of the worker.
        worker: Box<str>,
        /// Rank that was cleared; `None` for all ranks.
        rank: Option<u32>,
        /// Tier that was cleared; `None` for all tiers.
        tier: Option<Tier>,
    },
    /// Removal of a worker with all its blocks.
    Drop {
        /// Name of the worker.
        worker: Box<str>,
    },
}

/// Error of a call of the index, which then has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block size of 0.
    #[error("block_size must be at least 1, got {got}")]
    BlockSize {
        /// Block size that was requested, in tokens.
        got: u64,
    },
    /// Lists of block hashes and content hashes that differ in length.
    #[error(
        "{block_hashes} block hashes but {content_hashes} content hashes: a store needs one content hash for each block hash"
    )]
    LengthMismatch {
        /// Number of block hashes in the store.
        block_hashes: usize,
        /// Number of content hashes in the store.
        content_hashes: usize,
    },
    /// Number of tokens in a store that does not fill its blocks exactly.
    #[error("{tokens} tokens for {block_hashes} block hashes: blocks of {block_size} tokens need exactly {}", block_hashes * block_size)]
    TokenCount {
        /// Number of tokens that were given in the store.
        tokens: usize,
        /// Number of block hashes.
        block_hashes: usize,
        /// Block size of the index, in tokens.
        block_size: usize,
    },
    /// Tier name that does not exist.
    #[error("unknown tier {name:?}: it is one of \"gpu\", \"cpu\", \"disk\", \"external\"")]
    UnknownTier {
        /// The unknown tier name.
        name: String,
    },
    /// Bytes that are not a valid snapshot of an index.
    #[error("not a snapshot of an index: {what}")]
    Snapshot {
        /// Description of what is wrong with the bytes.
        what: String,
    },
    /// A limit of the index is reached, for instance the largest number of runs (lists of consecutive blocks).
    #[error("the index is full: {what}")]
    Full {
        /// Description of what the index cannot number any further, such as runs of blocks.
        what: &'static str,
    },
}

impl Error {
    /// Stable code of the error, for programs.
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
