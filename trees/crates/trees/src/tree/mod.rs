//! A radix tree that many tenants share: the common part of [`StringTree`](super::string_tree::StringTree) and
//! [`TokenTree`](super::token_tree::TokenTree).
//!
//! ```text
//!   "You are a helpful "      held by a, b, c          a node: an edge (a range of a shared buffer), its holders
//!        ├── "assistant."     held by a, b             with their last access, and its children by their first unit
//!        └── "poet."          held by c
//! ```
//!
//! - **A tenant on a node is on all its ancestors.** Everything leans on that: the depth of every tenant is read off one
//!   path from below, attaching stops at the first ancestor already held, a node without holders has no children.
//! - **Edges** are ranges of buffers that an insert makes once; a split shares the buffer (`text.rs`, `tokens.rs` say how
//!   the units are stored in less than their own size, and compared without being unpacked).
//! - **Accesses** write one number at the node where they end. What a walk from the root would have written further up
//!   is recovered when leaves go: a leaf hands its last access, hits and priority to its parent (`core/`).
//! - **Eviction order**: a heap of leaves for each tenant, mended when looked at (`core/order.rs`).
//! - **Locks**: one for the tree. Comparing happens under the read lock, encoding under none, and the write lock is for
//!   splicing only (`shared/`).

#[cfg(test)]
mod check;
mod children;
mod core;
mod cursor;
mod holders;
mod pair_code;
mod path_hash;
mod policy;
mod shared;
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
