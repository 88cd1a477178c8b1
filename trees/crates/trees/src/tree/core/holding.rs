//! Tenants of nodes: adding them and taking them away.

use super::nodes::{Core, ROOT};
use crate::tree::holders::Holder;
use crate::tree::units::Units;

impl<U: Units> Core<U> {
    /// Adds a tenant to a node and all above it that it does not hold, as of `tick`.
    pub(crate) fn attach(&mut self, node: u32, tenant: u32, tick: u64) {
        let (mut at, mut kids, mut added) = (node, 0, 0);
        let mut new_leaf = true;
        while at != ROOT {
            if let Some(holder) = self.node_mut(at).holders.get_mut(tenant) {
                // Its first child among the tenant's: it was a leaf, and the one below is in its place.
                new_leaf = holder.kids > 0;
                holder.kids += kids;
                if kids == 0 {
                    return;
                }
                break;
            }
            self.change(at, |n| n.holders.add(Holder::new(tenant, kids, tick)));
            let node = self.node(at);
            added += node.units as usize;
            at = node.parent;
            kids = 1;
        }
        self.units += added;
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.units += added;
            tenant.leaves += usize::from(new_leaf);
        }
    }

    /// Takes a leaf from a tenant, and returns its units. The node goes with its last holder, and the tenant with its
    /// last node.
    pub(crate) fn detach(&mut self, node: u32, tenant: u32) -> usize {
        let (units, parent) = (self.node(node).units as usize, self.node(node).parent);
        let Some(gone) = self.change(node, |n| n.holders.remove(tenant)) else { return 0 };
        let mut promoted = false;
        if parent != ROOT
            && let Some(above) = self.node_mut(parent).holders.get_mut(tenant)
        {
            above.inherit(&gone);
            above.kids -= 1;
            promoted = above.kids == 0;
        }
        self.units -= units;
        let empty = match self.tenants.get_mut(tenant) {
            Some(tenant) => {
                tenant.units -= units;
                tenant.leaves -= usize::from(!promoted);
                tenant.units == 0
            }
            None => false,
        };
        if empty {
            self.queued -= self.tenants.get(tenant).map_or(0, |t| t.order.len());
            self.tenants.forget(tenant);
        } else if promoted {
            self.enqueue(parent, tenant);
        }
        if self.node(node).holders.is_empty() {
            self.remove(node);
        }
        units
    }

    /// Records the access that ends an insert, and puts it in the order of eviction.
    pub(crate) fn end_insert(&mut self, node: u32, tenant: u32, tick: u64, priority: i32) {
        if let Some(holder) = self.node_mut(node).holders.get_mut(tenant) {
            holder.access(tick);
            holder.priority = holder.priority.max(priority);
        }
        self.enqueue(node, tenant);
    }

    /// Adds a holder to a node of a tree that is being read. Returns false if the tenant does not hold the parent.
    pub(crate) fn restore_holder(&mut self, node: u32, holder: Holder) -> bool {
        let (tenant, parent) = (holder.tenant, self.node(node).parent);
        if parent != ROOT {
            let Some(above) = self.node_mut(parent).holders.get_mut(tenant) else { return false };
            above.kids += 1;
        }
        self.change(node, |n| n.holders.add(holder));
        let units = self.node(node).units as usize;
        self.units += units;
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.units += units;
        }
        true
    }

    /// Puts all leaves of a tree that has been read in their tenants' orders.
    pub(crate) fn enqueue_all(&mut self) {
        for number in 1..self.nodes.len() as u32 {
            let leaves: Vec<u32> = self
                .try_node(number)
                .map(|n| n.holders.iter().filter(|h| h.kids == 0).map(|h| h.tenant).collect())
                .unwrap_or_default();
            for tenant in leaves {
                if let Some(tenant) = self.tenants.get_mut(tenant) {
                    tenant.leaves += 1;
                }
                self.enqueue(number, tenant);
            }
        }
    }
}
