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
mod trie;

pub use trie::{NodeId, RadixTrie};

/// Reason why a call on the trie was refused. A refused call has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The page size is 0.
    #[error("page_size must be at least 1, got {got}")]
    PageSize {
        /// Page size that was given, in tokens.
        got: u64,
    },
    /// The number of tokens of an insert is not a multiple of the page size.
    #[error("{tokens} tokens are not whole pages of {page_size}: insert full pages only, and keep the rest")]
    Unaligned {
        /// Number of tokens given to the insert.
        tokens: usize,
        /// Number of tokens in a page.
        page_size: usize,
    },
    /// The number of blocks of an insert is not the number of its pages.
    #[error("{blocks} blocks for {tokens} tokens: pages of {page_size} tokens need exactly {}", tokens / page_size)]
    BlockCount {
        /// Number of tokens given to the insert.
        tokens: usize,
        /// Number of tokens in a page.
        page_size: usize,
        /// Number of blocks given to the insert.
        blocks: usize,
    },
    /// The call had no tokens.
    #[error("tokens must not be empty")]
    Empty,
    /// The node, or the part of its tokens that the identifier stands for, has been evicted.
    #[error("at least the last page of the node was evicted: match the tokens again to find what is left")]
    EvictedNode,
    /// The sequence has not marked the node as in use, so that it cannot release the node.
    #[error("sequence {sequence} does not use the node: mark it first, and release it once")]
    NotInUse {
        /// Number of the sequence.
        sequence: i64,
    },
    /// The trie cannot number any more nodes.
    #[error("the trie is full: it has {nodes} nodes")]
    Full {
        /// Number of nodes in the trie.
        nodes: usize,
    },
}

impl Error {
    /// Stable code of the error, a word that is the same in every release.
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

/// A sequence of tokens, each stored in 32 bits.
pub trait Tokens {
    /// Number of tokens in the sequence.
    fn len(&self) -> usize;

    /// Token at the index `position`, which must be below [`Tokens::len`].
    fn at(&self, position: usize) -> u32;

    /// True if the sequence has no tokens.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of tokens of this sequence, from index `start` on, that equal the beginning of `kept`.
    fn common(&self, start: usize, kept: &[u32]) -> usize;

    /// Appends the tokens of this sequence from index `start` to before `end` to `kept`.
    fn copy(&self, start: usize, end: usize, kept: &mut Vec<u32>);
}

/// Number of tokens compared at once, before the first difference is located: a loop without branches, which the
/// compiler vectorizes.
const STRIDE: usize = 32;

fn common<T: Copy>(tokens: &[T], kept: &[u32], equal: impl Fn(T, u32) -> bool) -> usize {
    let length = tokens.len().min(kept.len());
    let (tokens, kept) = (&tokens[..length], &kept[..length]);
    let strides = tokens.chunks_exact(STRIDE).zip(kept.chunks_exact(STRIDE));
    let same = strides.take_while(|(a, b)| a.iter().zip(*b).fold(true, |all, (&a, &b)| all & equal(a, b))).count();
    let start = same * STRIDE;
    let rest = tokens[start..].iter().zip(&kept[start..]);
    start + rest.take_while(|&(&a, &b)| equal(a, b)).count()
}

impl Tokens for [u32] {
    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn at(&self, position: usize) -> u32 {
        self[position]
    }

    fn common(&self, start: usize, kept: &[u32]) -> usize {
        common(&self[start..], kept, |a, b| a == b)
    }

    fn copy(&self, start: usize, end: usize, kept: &mut Vec<u32>) {
        kept.extend_from_slice(&self[start..end]);
    }
}

/// Tokens given as 64-bit integers.
///
/// The caller ensures that each is below 2^32; otherwise only the low half is stored.
#[derive(Debug, Clone, Copy)]
pub struct WideTokens<'a>(pub &'a [u64]);

impl Tokens for WideTokens<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn at(&self, position: usize) -> u32 {
        self.0[position] as u32
    }

    fn common(&self, start: usize, kept: &[u32]) -> usize {
        common(&self.0[start..], kept, |a, b| a == u64::from(b))
    }

    fn copy(&self, start: usize, end: usize, kept: &mut Vec<u32>) {
        kept.extend(self.0[start..end].iter().map(|&token| token as u32));
    }
}
