//! The order in which a tenant's leaves are evicted.

use std::cmp::Reverse;

use super::holders::Holder;
use super::types::TreeError;

/// A rule for which of a tenant's leaves an eviction takes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum EvictionPolicy {
    /// Evicts the leaf that was not accessed for longest.
    #[default]
    Lru,
    /// Evicts the leaf accessed least often; of several, the one not accessed for longest.
    Lfu,
    /// Evicts the leaf held for longest.
    Fifo,
    /// Evicts the leaf accessed last.
    Mru,
    /// Evicts the leaf held for the shortest time.
    Filo,
    /// Evicts the leaf of the lowest priority; of several, the one not accessed for longest.
    Priority,
}

/// The rank of a leaf in the order of eviction, the smallest first.
pub(crate) type Rank = (u64, u64);

/// A node that was a leaf of a tenant, with the rank it had then. The greatest of a heap is the first to go.
pub(crate) type Leaf = (Reverse<Rank>, u32);

impl EvictionPolicy {
    /// Every policy.
    pub const ALL: [Self; 6] = [Self::Lru, Self::Lfu, Self::Fifo, Self::Mru, Self::Filo, Self::Priority];

    /// The policy's name, in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Fifo => "fifo",
            Self::Mru => "mru",
            Self::Filo => "filo",
            Self::Priority => "priority",
        }
    }

    pub(crate) fn rank(self, holder: &Holder) -> Rank {
        let accessed = holder.accessed();
        match self {
            Self::Lru => (accessed, 0),
            Self::Lfu => (u64::from(holder.hits()), accessed),
            Self::Fifo => (holder.since, 0),
            Self::Mru => (!accessed, 0),
            Self::Filo => (!holder.since, 0),
            // The sign bit flipped orders signed numbers as unsigned ones.
            Self::Priority => (u64::from(holder.priority.cast_unsigned() ^ 0x8000_0000), accessed),
        }
    }

    /// True if an access can bring a leaf forward. Under every other policy it only puts it off, so that a heap that is
    /// not told about accesses errs on the side that looking again mends.
    pub(crate) fn access_hastens(self) -> bool {
        self == Self::Mru
    }
}

impl std::str::FromStr for EvictionPolicy {
    type Err = TreeError;

    fn from_str(name: &str) -> Result<Self, TreeError> {
        Self::ALL
            .into_iter()
            .find(|p| p.as_str() == name)
            .ok_or_else(|| TreeError::UnknownPolicy { name: name.chars().take(64).collect() })
    }
}

impl std::fmt::Display for EvictionPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
