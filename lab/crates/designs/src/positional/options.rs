//! Options of a positional index.

/// The search within a leap for the place where a worker dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Search {
    /// Probes every place of the leap, from its beginning.
    #[default]
    Jump,
    /// Bisects the leap, once for each place where a worker dropped.
    Bisect,
}

/// The structure of the entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// One map by position and content hash.
    #[default]
    Map,
    /// An array by position of maps by content hash. Takes 64 bytes for each position, up to twice the length of the
    /// deepest chain.
    Arrays,
}

/// The options of a positional index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Number of blocks per leap, at least 1. Larger is faster until leaps often fail.
    pub jump_size: usize,
    /// The search within a failed leap.
    pub search: Search,
    /// The structure of the entries.
    pub layout: Layout,
    /// True to compare prefix hashes always, and to respect holes.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { jump_size: 32, search: Search::Jump, layout: Layout::Map, strict: false }
    }
}

/// The reason why an option is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOption {
    /// Leaps of no blocks do not move.
    #[error("jump_size must be at least 1, got 0")]
    JumpSize,
    /// The groups have no workers.
    #[error("workers_per_group must be at least 1, got 0")]
    GroupSize,
    /// The sparse positions have a step of 0.
    #[error("the step between sparse positions must be at least 1, got 0")]
    SparseStep,
}

impl InvalidOption {
    /// The error's code, the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::JumpSize => "invalid_jump_size",
            Self::GroupSize => "invalid_group_size",
            Self::SparseStep => "invalid_sparse_step",
        }
    }
}
