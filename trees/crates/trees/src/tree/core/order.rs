//! The order of eviction: for each tenant a heap of its leaves, which is mended when it is looked at.
//!
//! Matches put leaves off without telling the heap (they only hold the read lock); whoever takes the first one from the
//! heap looks what its rank is now, and puts it back when it has been put off. So the rank in the heap is never larger
//! than the true one, and the first entry that is still true is the first leaf. Each access causes at most one such
//! second look: an eviction costs O(log n) for each leaf it takes and for each access since the one before.
//!
//! Under MRU an access hastens; there the match that does it adds an entry with the new rank (`shared/find.rs`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::nodes::Core;
use crate::tree::policy::Rank;
use crate::tree::tenants::Tenant;
use crate::tree::units::Units;

/// Number of entries that are no leaves any more, beyond as many as there are leaves, that a heap may have.
const STALE: usize = 64;

impl<U: Units> Core<U> {
    /// The present rank of a leaf; `None` if it is none.
    fn leaf_rank(&self, node: u32, tenant: u32) -> Option<Rank> {
        let holder = self.try_node(node)?.holders.get(tenant)?;
        (holder.kids == 0).then(|| self.policy.rank(holder))
    }

    /// Puts a leaf in its tenant's order.
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

    /// The first leaf of a tenant, and its rank; it stays in the heap.
    pub(super) fn first_leaf(&mut self, tenant: u32) -> Option<(Rank, u32)> {
        loop {
            let &(Reverse(was), node) = self.tenants.get(tenant)?.order.peek()?;
            let now = self.leaf_rank(node, tenant);
            if now == Some(was) {
                return Some((was, node));
            }
            let mut top = self.tenants.get_mut(tenant)?.order.peek_mut()?;
            match now {
                // Put off since: it sinks to its place.
                Some(now) if now > was => top.0 = Reverse(now),
                // No leaf any more, or one with another entry before this one.
                _ => {
                    std::collections::binary_heap::PeekMut::pop(top);
                    self.queued -= 1;
                }
            }
        }
    }
}
