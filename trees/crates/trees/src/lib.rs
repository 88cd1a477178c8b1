//! Prefix trees and tables of existing routers and engines, under their known names and methods.
//!
//! The index of `kvatlas-index` is updated by engines' events about their caches; these structures are updated by a
//! router's decisions or by an engine's allocator.
//!
//! | structure | answers | updated by |
//! |---|---|---|
//! | [`string_tree::StringTree`] | which tenant has the longest prefix of a text | the router's own decisions |
//! | [`token_tree::TokenTree`] | which tenant has the longest prefix of a list of token ids, in pages | the router's own decisions |
//! | [`radix_trie::RadixTrie`] | which cached pages a prompt can use, inside one engine | the engine's allocator |
//! | [`prefix_table::SyncPrefixHashTable`] | what share of a prompt each pod has | engines' events, routing decisions |

#[macro_use]
#[path = "tree/methods.rs"]
mod tree_methods;

pub mod prefix_table;
pub mod radix_trie;
pub mod string_tree;
pub mod token_tree;
pub mod tree;

pub use tree::{EvictionPolicy, GLOBAL_EVICTION_HASH, PathHasher, TreeError, hash_node_path, hash_token_path};
