//! Errors: what can be wrong with a call. A refused call has changed nothing.

/// Reason why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The index was asked for blocks of no tokens.
    #[error("block_size must be at least 1, got {got}")]
    BlockSize {
        /// Block size that was asked for.
        got: u64,
    },
    /// A store has lists of different lengths.
    #[error(
        "{block_hashes} block hashes but {content_hashes} content hashes: a store needs one content hash for each block hash"
    )]
    LengthMismatch {
        /// Number of block hashes.
        block_hashes: usize,
        /// Number of content hashes.
        content_hashes: usize,
    },
    /// The tokens of a store do not fill its blocks.
    #[error("{tokens} tokens for {block_hashes} block hashes: blocks of {block_size} tokens need exactly {}", block_hashes * block_size)]
    TokenCount {
        /// Number of tokens.
        tokens: usize,
        /// Number of block hashes.
        block_hashes: usize,
        /// Tokens in a block of this index.
        block_size: usize,
    },
    /// No tier has this name.
    #[error("unknown tier {name:?}: it is one of \"gpu\", \"cpu\", \"disk\", \"external\"")]
    UnknownTier {
        /// Name that was given.
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
