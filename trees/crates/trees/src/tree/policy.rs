//! The order in which a tenant's leaves are evicted.

use std::cmp::Reverse;

use super::holders::Holder;
use super::types::TreeError;

/// A rule for the order of evictions among a tenant's leaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum EvictionPolicy {
    /// Evicts the least recently used leaf.
    #[default]
    Lru,
    /// Evicts the leaf with the fewest accesses; of several, the least recently used.
    Lfu,
    /// Evicts the leaf held for the longest time.
    Fifo,
    /// Evicts the most recently used leaf.
    Mru,
    /// Evicts the leaf held for the shortest time.
    Filo,
    /// Evicts the leaf of the lowest priority; of several, the least recently used.
    Priority,
}

/// The rank of a leaf in the order of eviction, the smallest first.
pub(crate) type Rank = (u64, u64);

/// A heap entry: a node that was a leaf of a tenant, with its rank at that time. The largest of the heap is evicted
/// first.
pub(crate) type Leaf = (Reverse<Rank>, u32);

impl EvictionPolicy {
    /// All policies.
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
            // Flipping the sign bit orders signed numbers as unsigned ones.
            Self::Priority => (u64::from(holder.priority.cast_unsigned() ^ 0x8000_0000), accessed),
        }
    }

    /// True if an access can bring a leaf forward. Under every other policy an access only postpones it, so an outdated
    /// rank in the heap is never too large.
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
