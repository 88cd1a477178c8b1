//! Options of a positional index.

/// The way to find the place of a leap at which a worker dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Search {
    /// Looks at every place of the leap, from its beginning.
    #[default]
    Jump,
    /// Halves the leap until the place is found, once for each place where someone dropped.
    Bisect,
}

/// The structure in which entries are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// One map by position and content hash.
    #[default]
    Map,
    /// An array by position of maps by content hash. Takes 64 bytes for each position, up to twice as many as the
    /// deepest chain ever was.
    Arrays,
}

/// The options of a positional index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Number of blocks that a leap goes ahead, at least 1. Larger is quicker until leaps often fail.
    pub jump_size: usize,
    /// The way to go on when a leap fails.
    pub search: Search,
    /// The structure in which entries are kept.
    pub layout: Layout,
    /// True if prefix hashes are always compared, and holes minded.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { jump_size: 32, search: Search::Jump, layout: Layout::Map, strict: false }
    }
}

/// The reason why an option cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOption {
    /// The leaps have no blocks, so none moves.
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
    /// A name that stays the same in every release, for programs to test.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::JumpSize => "invalid_jump_size",
            Self::GroupSize => "invalid_group_size",
            Self::SparseStep => "invalid_sparse_step",
        }
    }
}
