//! Order of eviction in a tree: the policies, one heap of leaves per tenant, and the eviction of whole leaves.
//!
//! A match that postpones a leaf's eviction holds only the read lock and does not update the heap. The rank of an entry
//! is therefore compared with the leaf's present rank when the entry comes to the top, and a postponed leaf goes back.
//! The rank in the heap is never larger than the present one, so the first entry with an unchanged rank is the first
//! leaf. Each access causes at most one comparison: an eviction costs O(log n) for each evicted leaf and for each
//! access since the eviction before.
//!
//! Under the policy MRU an access brings a leaf forward; the match then adds an entry with the new rank (`shared.rs`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::TreeError;
use super::holders::{Holder, Tenant};
use super::nodes::Core;
use super::units::Units;

/// Rule for the order in which a tenant's leaves are evicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum EvictionPolicy {
    /// Evicts the least recently used leaf.
    #[default]
    Lru,
    /// Evicts the leaf with the fewest accesses; among equals, the least recently used.
    Lfu,
    /// Evicts the leaf held for the longest time.
    Fifo,
    /// Evicts the most recently used leaf.
    Mru,
    /// Evicts the leaf held for the shortest time.
    Filo,
    /// Evicts the leaf of the lowest priority; among equals, the least recently used.
    Priority,
}

/// Rank of a leaf (a node that the tenant holds without any of its children) in the order of eviction: the smallest is
/// evicted first.
pub(crate) type Rank = (u64, u64);

/// An entry of a tenant's heap: a node that was a leaf of the tenant, with its rank at that time. The reversal makes
/// the smallest rank the largest entry, which is evicted first.
pub(crate) type Leaf = (Reverse<Rank>, u32);

impl EvictionPolicy {
    /// All eviction policies.
    pub const ALL: [Self; 6] = [Self::Lru, Self::Lfu, Self::Fifo, Self::Mru, Self::Filo, Self::Priority];

    /// Name of the eviction policy, in lower case.
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

    /// True if an access can bring a leaf's eviction forward. Under every other policy an access only postpones the
    /// eviction, so an outdated rank in the heap is never too large.
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

/// Maximum number of outdated entries in the heap of a tenant's leaves, beyond the number of leaves.
const STALE: usize = 64;

impl<U: Units> Core<U> {
    /// Present rank of a leaf in the order of eviction; `None` if the node is not a leaf of the tenant.
    fn leaf_rank(&self, node: u32, tenant: u32) -> Option<Rank> {
        let holder = self.try_node(node)?.holders.get(tenant)?;
        (holder.kids == 0).then(|| self.policy.rank(holder))
    }

    /// Adds a leaf (node that the tenant holds without any of its children) to the tenant's order of eviction.
    pub(crate) fn enqueue(&mut self, node: u32, tenant: u32) {
        let Some(rank) = self.leaf_rank(node, tenant) else { return };
        let Some(Tenant { order, leaves, .. }) = self.tenants.get_mut(tenant) else { return };
        order.push((Reverse(rank), node));
        if order.len() > 2 * *leaves + STALE {
            let mut entries = std::mem::take(order).into_vec();
            self.queued -= entries.len() - 1;
            entries.sort_unstable_by_key(|e| e.1);
            entries.dedup_by_key(|e| e.1);
            entries
                .retain_mut(|(Reverse(was), node)| self.leaf_rank(*node, tenant).inspect(|now| *was = *now).is_some());
            entries.shrink_to_fit();
            self.queued += entries.len();
            if let Some(tenant) = self.tenants.get_mut(tenant) {
                tenant.order = BinaryHeap::from(entries);
            }
        } else {
            self.queued += 1;
        }
    }

    /// Returns the leaf of a tenant that is evicted first, and its rank; the leaf stays in the tenant's heap.
    pub(super) fn first_leaf(&mut self, tenant: u32) -> Option<(Rank, u32)> {
        loop {
            let &(Reverse(was), node) = self.tenants.get(tenant)?.order.peek()?;
            let now = self.leaf_rank(node, tenant);
            if now == Some(was) {
                return Some((was, node));
            }
            let mut top = self.tenants.get_mut(tenant)?.order.peek_mut()?;
            match now {
                // Postponed since: it sinks to its place.
                Some(now) if now > was => top.0 = Reverse(now),
                // Not a leaf any more, or one with another entry before this one.
                _ => {
                    std::collections::binary_heap::PeekMut::pop(top);
                    self.queued -= 1;
                }
            }
        }
    }
}

impl<U: Units> Core<U> {
    /// Evicts the first leaf of a tenant. Returns the leaf's length in units (characters or tokens), 0 if the tenant
    /// has no leaf.
    fn evict_first(&mut self, tenant: u32) -> usize {
        let Some((_, node)) = self.first_leaf(tenant) else { return 0 };
        self.detach(node, tenant)
    }

    /// Evicts at most `leaves` leaves of a tenant, until the tenant holds at most `most` units (characters or tokens).
    /// Returns the number of units evicted.
    pub(crate) fn evict_tenant(&mut self, tenant: u32, most: usize, leaves: usize) -> usize {
        let mut evicted = 0;
        for _ in 0..leaves {
            if self.tenants.get(tenant).is_none_or(|t| t.units <= most) {
                break;
            }
            evicted += self.evict_first(tenant);
        }
        evicted
    }

    /// Evicts at most `leaves` leaves of all tenants, in the order of the policy, until `done` returns true. Returns
    /// the number of units (characters or tokens) evicted.
    pub(crate) fn evict_until(&mut self, leaves: usize, done: impl Fn(&Self) -> bool) -> usize {
        if done(self) {
            return 0;
        }
        let numbers: Vec<u32> = self.tenants.numbers().map(|(number, _)| number).collect();
        let mut firsts: BinaryHeap<Reverse<(Rank, u32)>> =
            numbers.into_iter().filter_map(|t| Some(Reverse((self.first_leaf(t)?.0, t)))).collect();
        let mut evicted = 0;
        for _ in 0..leaves {
            let Some(Reverse((_, tenant))) = firsts.pop() else { break };
            evicted += self.evict_first(tenant);
            if done(self) {
                break;
            }
            if let Some((rank, _)) = self.first_leaf(tenant) {
                firsts.push(Reverse((rank, tenant)));
            }
        }
        evicted
    }

    /// Removes a tenant from a node and all nodes below it, the lowest first. Returns the number of units (characters
    /// or tokens) removed.
    pub(crate) fn detach_below(&mut self, top: u32, tenant: u32) -> usize {
        let holds = |n: u32| self.try_node(n).is_some_and(|n| n.holders.get(tenant).is_some());
        let mut found: Vec<u32> = [top].into_iter().filter(|&n| holds(n)).collect();
        let mut next = 0;
        while let Some(&node) = found.get(next) {
            found.extend(self.node(node).children.nodes().filter(|&n| holds(n)));
            next += 1;
        }
        // Parents come before their children in the list.
        found.into_iter().rev().map(|node| self.detach(node, tenant)).sum()
    }
}
