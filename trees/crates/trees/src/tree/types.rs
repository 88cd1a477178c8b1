//! Answers, entries and errors common to both trees.

use std::sync::Arc;

/// The name of a tenant: a worker, usually by its URL.
pub type TenantId = Arc<str>;

/// The result of a match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixMatch {
    /// The tenant that holds the matched prefix, among several the one that has held its last node longest; `None` iff
    /// nothing matched.
    pub tenant: Option<TenantId>,
    /// Number of units matched: characters (Unicode scalar values) or tokens.
    pub matched: usize,
    /// Number of units in the input.
    pub input: usize,
    /// Number of units of the input that could match: whole pages only. Equal to `input` for text.
    pub paged: usize,
}

impl PrefixMatch {
    /// The share of the input that matched; 0 for an empty input.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.matched, self.input)
    }

    /// The share of the input's whole pages that matched; 0 if it has none.
    #[must_use]
    pub fn paged_ratio(&self) -> f64 {
        ratio(self.matched, self.paged)
    }
}

fn ratio(part: usize, of: usize) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// A node, as returned by iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<P> {
    /// All units from the root to the end of the node.
    pub path: P,
    /// The node's holders by name, each with the tick of the last access that ended at this node (or below it, in a
    /// part evicted since).
    pub tenants: Vec<(TenantId, u64)>,
}

/// The reason why a call was refused. A refused call has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The page size is not supported.
    #[error("page_size must be a power of two from 1 to 128, got {got}")]
    PageSize {
        /// The given page size.
        got: usize,
    },
    /// The policy is unknown.
    #[error(
        "unknown eviction policy {name:?}: it is one of \"lru\", \"lfu\", \"fifo\", \"mru\", \"filo\", \"priority\""
    )]
    UnknownPolicy {
        /// The given name.
        name: String,
    },
    /// The bytes are not a snapshot of a tree of this kind.
    #[error("not a snapshot: {why}")]
    Snapshot {
        /// The fault in the bytes.
        why: &'static str,
    },
}

impl TreeError {
    /// The error's code, the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::PageSize { .. } => "invalid_page_size",
            Self::UnknownPolicy { .. } => "unknown_policy",
            Self::Snapshot { .. } => "invalid_snapshot",
        }
    }
}
