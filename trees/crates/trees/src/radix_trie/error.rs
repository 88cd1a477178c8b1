//! Errors of calls to a trie.

/// The reason why a call was refused. A refused call has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The page size is 0.
    #[error("page_size must be at least 1, got {got}")]
    PageSize {
        /// The given page size.
        got: u64,
    },
    /// The tokens of an insert are not whole pages.
    #[error("{tokens} tokens are not whole pages of {page_size}: insert full pages only, and keep the rest")]
    Unaligned {
        /// Number of tokens.
        tokens: usize,
        /// Tokens in a page.
        page_size: usize,
    },
    /// An insert needs one block for each page.
    #[error("{blocks} blocks for {tokens} tokens: pages of {page_size} tokens need exactly {}", tokens / page_size)]
    BlockCount {
        /// Number of tokens.
        tokens: usize,
        /// Tokens in a page.
        page_size: usize,
        /// Number of blocks.
        blocks: usize,
    },
    /// The call had no tokens.
    #[error("tokens must not be empty")]
    Empty,
    /// The handle's node, or its end, has been evicted.
    #[error("at least the last page of the node was evicted: match the tokens again to find what is left")]
    EvictedNode,
    /// The sequence has not marked this node.
    #[error("sequence {sequence} does not use the node: mark it first, and release it once")]
    NotInUse {
        /// The sequence's number.
        sequence: i64,
    },
    /// The trie has no numbers left for more nodes.
    #[error("the trie is full: it has {nodes} nodes")]
    Full {
        /// Number of nodes in the trie.
        nodes: usize,
    },
}

impl Error {
    /// The error's code, the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::PageSize { .. } => "invalid_page_size",
            Self::Unaligned { .. } => "token_count",
            Self::BlockCount { .. } => "length_mismatch",
            Self::Empty => "no_tokens",
            Self::EvictedNode => "evicted_node",
            Self::NotInUse { .. } => "not_in_use",
            Self::Full { .. } => "index_full",
        }
    }
}
