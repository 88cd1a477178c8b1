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
//!   leaves are evicted: a leaf passes its last access, hits and priority to its parent (`holders.rs`).
//! - **Eviction order**: a heap of leaves for each tenant, corrected on removal (`order.rs`).
//! - **Locks**: one for the tree. Inputs are compared under the read lock and encoded under none; the write lock is for
//!   splicing only (`shared.rs`, `shared_changes.rs`).

mod children;
mod cursor;
mod holders;
mod nodes;
mod order;
mod pair_code;
mod path_hash;
mod shared;
mod shared_changes;
mod snapshot;
mod text;
mod tokens;
#[cfg(test)]
mod tree_tests;
mod units;

use std::sync::Arc;

pub(crate) use cursor::Cursor;
pub use order::EvictionPolicy;
pub use path_hash::{GLOBAL_EVICTION_HASH, PathHasher, hash_node_path, hash_token_path};
pub(crate) use shared::SharedTree;
pub(crate) use snapshot::header as snapshot_header;
pub(crate) use text::Text;
pub(crate) use tokens::Tokens;
pub(crate) use units::Units;

/// Name of a tenant, for which the tree records prompts: usually a worker's URL.
pub type TenantId = Arc<str>;

/// Result of a match: the tenant with the longest prefix of a prompt, and lengths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixMatch {
    /// Tenant that holds the matched prefix; among several, the one that has held the prefix's last node longest.
    /// `None` if nothing matched.
    pub tenant: Option<TenantId>,
    /// Length of the matched prefix, in characters (Unicode scalar values) or tokens.
    pub matched: usize,
    /// Length of the prompt, in characters or tokens.
    pub input: usize,
    /// Length of the part of the prompt that could match, in characters or tokens: whole pages only. Equal to `input`
    /// for text.
    pub paged: usize,
}

impl PrefixMatch {
    /// Share of the prompt that matched, 0 to 1; 0 for an empty prompt.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.matched, self.input)
    }

    /// Share of the prompt's whole pages that matched, 0 to 1; 0 if there are none.
    #[must_use]
    pub fn paged_ratio(&self) -> f64 {
        ratio(self.matched, self.paged)
    }
}

fn ratio(part: usize, of: usize) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// A node of a tree, as returned by an iteration over the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<P> {
    /// Text or tokens from the root to the end of the node.
    pub path: P,
    /// Tenants that hold the node, sorted by name, each with the time of its last access that ended at the node (or
    /// below it, in a part evicted since), counted in accesses of the tree.
    pub tenants: Vec<(TenantId, u64)>,
}

/// Reason why a call on a tree was refused. A refused call has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The page size is not supported: it must be a power of two from 1 to 128.
    #[error("page_size must be a power of two from 1 to 128, got {got}")]
    PageSize {
        /// Page size that was given, in tokens.
        got: usize,
    },
    /// The name of the eviction policy is unknown.
    #[error(
        "unknown eviction policy {name:?}: it is one of \"lru\", \"lfu\", \"fifo\", \"mru\", \"filo\", \"priority\""
    )]
    UnknownPolicy {
        /// Name that was given for the eviction policy.
        name: String,
    },
    /// The bytes are not a snapshot of a tree of this kind.
    #[error("not a snapshot: {why}")]
    Snapshot {
        /// Description of what is wrong with the snapshot's bytes.
        why: &'static str,
    },
}

impl TreeError {
    /// Stable code of the error, a word that is the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::PageSize { .. } => "invalid_page_size",
            Self::UnknownPolicy { .. } => "unknown_policy",
            Self::Snapshot { .. } => "invalid_snapshot",
        }
    }
}
