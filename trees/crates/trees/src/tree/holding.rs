//! Tenants of nodes: attaching and detaching them.

use super::holders::Holder;
use super::nodes::{Core, ROOT};
use super::units::Units;

impl<U: Units> Core<U> {
    /// Adds a tenant to a node and to its ancestors that the tenant does not hold, as of `tick`.
    pub(crate) fn attach(&mut self, node: u32, tenant: u32, tick: u64) {
        let (mut at, mut kids, mut added) = (node, 0, 0);
        let mut new_leaf = true;
        while at != ROOT {
            if let Some(holder) = self.node_mut(at).holders.get_mut(tenant) {
                // The tenant's first child here: this node was a leaf, and the one below takes its place.
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

    /// Removes a tenant from a leaf, and returns the leaf's units. A node without holders is removed, and so is a
    /// tenant without nodes.
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

    /// Records the access at the end of an insert, and enqueues the leaf for eviction.
    pub(crate) fn end_insert(&mut self, node: u32, tenant: u32, tick: u64, priority: i32) {
        if let Some(holder) = self.node_mut(node).holders.get_mut(tenant) {
            holder.access(tick);
            holder.priority = holder.priority.max(priority);
        }
        self.enqueue(node, tenant);
    }

    /// Adds a holder to a node while a snapshot is read. Returns false if the tenant does not hold the parent.
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

    /// Enqueues all leaves after a snapshot has been read.
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
