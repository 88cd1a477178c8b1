//! A radix tree shared by many tenants: the common part of [`StringTree`](super::string_tree::StringTree) and
//! [`TokenTree`](super::token_tree::TokenTree).
//!
//! ```text
//!   "You are a helpful "      held by a, b, c          a node: an edge (a range of a shared buffer), its holders
//!        ├── "assistant."     held by a, b             with their last access, and its children by their first unit
//!        └── "poet."          held by c
//! ```
//!
//! - **A tenant of a node is on all its ancestors.** The algorithms rely on this: the depth of every tenant is read off
//!   one path from below, attaching stops at the first ancestor already held, a node without holders has no children.
//! - **Edges** are ranges of buffers that an insert makes once; a split shares the buffer (`text.rs` and `tokens.rs`
//!   store units in less than their own size, and compare them without unpacking).
//! - **Accesses** write one number at the node where they end. Accesses not written to ancestors are recovered when
//!   leaves are evicted: a leaf passes its last access, hits and priority to its parent (`holding.rs`).
//! - **Eviction order**: a heap of leaves for each tenant, corrected on removal (`order.rs`).
//! - **Locks**: one for the tree. Inputs are compared under the read lock and encoded under none; the write lock is for
//!   splicing only (`shared.rs`, `shared_changes.rs`).

#[cfg(test)]
mod check;
mod children;
mod cursor;
mod descend;
mod holders;
mod holding;
mod nodes;
mod order;
mod pair_code;
mod path_hash;
mod policy;
mod shared;
mod shared_changes;
mod snapshot;
mod tenants;
mod text;
mod tokens;
#[cfg(test)]
mod tree_tests;
mod types;
mod units;

pub use path_hash::{GLOBAL_EVICTION_HASH, PathHasher, hash_node_path, hash_token_path};
pub use policy::EvictionPolicy;
pub use types::{Entry, PrefixMatch, TenantId, TreeError};

pub(crate) use cursor::Cursor;
pub(crate) use shared::SharedTree;
pub(crate) use snapshot::header as snapshot_header;
pub(crate) use text::Text;
pub(crate) use tokens::Tokens;
pub(crate) use units::Units;
