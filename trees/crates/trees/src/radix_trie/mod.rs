//! `RadixTrie`: the cached pages that a prompt can use, inside one engine with paged attention.
//!
//! A radix trie over whole pages of tokens, one block for each page. The engine's allocator inserts computed pages,
//! matches new prompts, marks pages used by running sequences, and evicts when its pool is empty: the least recently
//! used unmarked leaf, from its end.
//!
//! Names and behaviour are those of MAX's `RadixTrie`; intended differences are documented at each method.
//!
//! | call | time |
//! |---|---|
//! | [`insert`](RadixTrie::insert), [`match_prefix`](RadixTrie::match_prefix) | O(tokens), and O(length of the node) if one is split |
//! | [`mark_in_use_by`](RadixTrie::mark_in_use_by), [`mark_not_in_use_by`](RadixTrie::mark_not_in_use_by) | O(nodes up to the root) |
//! | [`evict_blocks`](RadixTrie::evict_blocks) | O(evicted · log leaves) |
//!
//! Children are found in one hash table by parent and first page. The unmarked leaves are kept in the order of their
//! stamps. A parent is not among them while it has a child, so the eviction of children before parents follows from the
//! structure and not from times. Times are a counter: without ties, and independent of the clock.
//!
//! ```
//! use kvatlas_trees::radix_trie::RadixTrie;
//!
//! let mut trie = RadixTrie::new(2)?;
//! let end = trie.insert([1, 2, 3, 4].as_slice(), &mut vec!["a", "b"], None)?;
//! let (node, blocks) = trie.match_prefix([1, 2, 3, 9].as_slice(), None)?;
//! assert_eq!(blocks, ["a"]);
//! trie.mark_in_use_by(node, 7)?;
//! assert_eq!(trie.evict_blocks(10), ["b"]);
//! assert!(trie.tokens(end).is_err());
//! # Ok::<(), kvatlas_trees::radix_trie::Error>(())
//! ```

mod inspect;
mod sequences;
#[cfg(test)]
mod tests;
mod tokens;
mod trie;

pub use tokens::{Tokens, WideTokens};
pub use trie::{NodeId, RadixTrie};

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
