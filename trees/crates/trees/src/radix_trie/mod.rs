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

mod error;
mod evict;
mod inspect;
mod node;
mod sequences;
#[cfg(test)]
mod tests;
mod tokens;
mod trie;

pub use error::Error;
pub use node::NodeId;
pub use tokens::{Tokens, WideTokens};
pub use trie::RadixTrie;
