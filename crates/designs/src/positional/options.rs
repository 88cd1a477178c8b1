//! How a positional index is to work.

/// How to find where in a leap a worker dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Search {
    /// Looks at every place of the leap, from its beginning.
    #[default]
    Jump,
    /// Halves the leap until the place is found, once for each place where someone dropped.
    Bisect,
}

/// Where entries are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// One map by position and content hash.
    #[default]
    Map,
    /// An array by position of maps by content hash. Takes 64 bytes for each position, up to twice as many as the
    /// deepest chain ever was.
    Arrays,
}

/// How the index is to work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Blocks a leap goes ahead, at least 1. Larger is quicker until leaps often fail.
    pub jump_size: usize,
    /// What to do when a leap fails.
    pub search: Search,
    /// Where entries are kept.
    pub layout: Layout,
    /// Always compare prefix hashes, and mind holes.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { jump_size: 32, search: Search::Jump, layout: Layout::Map, strict: false }
    }
}

/// An option that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOption {
    /// A leap of no blocks does not move.
    #[error("jump_size must be at least 1, got 0")]
    JumpSize,
    /// A group of no workers.
    #[error("workers_per_group must be at least 1, got 0")]
    GroupSize,
    /// Every 0th position.
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
