//! Errors of calls to a prefix table, and of its config.

/// The reason why a call was refused. A refused call has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is invalid.
    #[error("{name} must be a whole number from 1 to {most}, got {got}")]
    Setting {
        /// The argument or the environment variable.
        name: &'static str,
        /// The largest valid value.
        most: u64,
        /// The given value.
        got: String,
    },
    /// The two lists of a stored event have different lengths.
    #[error(
        "{block_hashes} block hashes but tokens of {blocks} blocks: an event needs the tokens of each block it names"
    )]
    LengthMismatch {
        /// Number of block hashes.
        block_hashes: usize,
        /// Number of blocks with tokens.
        blocks: usize,
    },
    /// The tokens of an engine's block are not whole blocks of this table.
    #[error(
        "block {block} of the event has {bytes} bytes of tokens, and the blocks of this table have {block_size}: an engine's \
         block must be a multiple; set block_size (AIBRIX_PREFIX_CACHE_BLOCK_SIZE) to 4 times the tokens in its blocks"
    )]
    BlockBytes {
        /// The block's number in the event.
        block: usize,
        /// Number of bytes of the block's tokens.
        bytes: usize,
        /// Bytes in a block of this table.
        block_size: usize,
    },
    /// The background thread could not be started.
    #[error("the thread that evicts could not be started: {why}")]
    Thread {
        /// The system's message.
        why: String,
    },
}

impl Error {
    /// The error's code, the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Setting { .. } => "invalid_config",
            Self::LengthMismatch { .. } => "length_mismatch",
            Self::BlockBytes { .. } => "token_bytes",
            Self::Thread { .. } => "no_thread",
        }
    }
}
