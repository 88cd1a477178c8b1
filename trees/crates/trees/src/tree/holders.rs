//! Tenants of a tree: their names and numbers, the tenants of each node with their accesses, and attaching and
//! detaching them.
//!
//! A number is assigned when a tenant first holds a node, and freed with the tenant's last node.

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::TenantId;
use super::nodes::{Core, ROOT};
use super::order::Leaf;
use super::units::Units;

/// A tenant that holds a node, with its accesses of the node.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) tenant: u32,
    /// Number of the node's children that the tenant holds as well; with none, the node is one of the tenant's leaves.
    pub(crate) kids: u32,
    /// Time at which the tenant began to hold the node, counted in accesses of the tree.
    pub(crate) since: u64,
    accessed: AtomicU64,
    hits: AtomicU32,
    pub(crate) priority: i32,
}

impl Holder {
    pub(crate) fn new(tenant: u32, kids: u32, since: u64) -> Self {
        Self { tenant, kids, since, accessed: AtomicU64::new(0), hits: AtomicU32::new(0), priority: i32::MIN }
    }

    pub(crate) fn restored(tenant: u32, since: u64, accessed: u64, hits: u32, priority: i32) -> Self {
        Self { tenant, kids: 0, since, accessed: accessed.into(), hits: hits.into(), priority }
    }

    /// Copy of this holder for the upper part of a node that is split: no access of the tenant ended there yet, so its
    /// number of accesses is 0.
    fn above(&self) -> Self {
        Self {
            tenant: self.tenant,
            kids: 1,
            since: self.since,
            accessed: self.accessed().into(),
            hits: AtomicU32::new(0),
            priority: self.priority,
        }
    }

    /// Time of the tenant's last access that ended at the node, counted in accesses of the tree.
    pub(crate) fn accessed(&self) -> u64 {
        self.accessed.load(Relaxed)
    }

    /// Number of the tenant's accesses that ended at the node.
    pub(crate) fn hits(&self) -> u32 {
        self.hits.load(Relaxed)
    }

    /// Records an access of the tenant that ends at the node, at the time `tick`. Works with a shared reference, since
    /// matches run in parallel.
    pub(crate) fn access(&self, tick: u64) {
        self.accessed.fetch_max(tick, Relaxed);
        // Saturates instead of wrapping.
        if self.hits.fetch_add(1, Relaxed) == u32::MAX {
            self.hits.store(u32::MAX, Relaxed);
        }
    }

    /// Adds the accesses and priority of a removed leaf below to this holder, so that recency, frequency and priority
    /// are the same as if every access had been written to all nodes of its path.
    pub(crate) fn inherit(&mut self, leaf: &Self) {
        self.accessed.fetch_max(leaf.accessed(), Relaxed);
        let hits = self.hits().saturating_add(leaf.hits());
        *self.hits.get_mut() = hits;
        self.priority = self.priority.max(leaf.priority);
    }
}

/// Tenants that hold a node, by tenant number.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    sorted: SmallVec<[Holder; 1]>,
    /// Number of the tenant that has held the node longest, which a match at the node returns.
    first: u32,
}

impl Holders {
    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.sorted.iter()
    }

    /// Tenant that has held the node longest, with its accesses; `None` if no tenant holds the node.
    pub(crate) fn first(&self) -> Option<&Holder> {
        self.get(self.first)
    }

    fn place(&self, tenant: u32) -> Result<usize, usize> {
        self.sorted.binary_search_by_key(&tenant, |h| h.tenant)
    }

    pub(crate) fn get(&self, tenant: u32) -> Option<&Holder> {
        self.place(tenant).ok().map(|at| &self.sorted[at])
    }

    pub(crate) fn get_mut(&mut self, tenant: u32) -> Option<&mut Holder> {
        self.place(tenant).ok().map(|at| &mut self.sorted[at])
    }

    /// Adds a tenant that did not hold the node to its holders.
    pub(crate) fn add(&mut self, holder: Holder) {
        if self.first().is_none_or(|f| holder.since < f.since) {
            self.first = holder.tenant;
        }
        if let Err(at) = self.place(holder.tenant) {
            // Nodes usually gain one holder at a time: exact capacity for each of the first few.
            if self.sorted.len() == self.sorted.capacity() {
                let more = self.sorted.len().div_ceil(4).max(1);
                self.sorted.reserve_exact(more);
            }
            self.sorted.insert(at, holder);
        }
    }

    pub(crate) fn remove(&mut self, tenant: u32) -> Option<Holder> {
        let at = self.place(tenant).ok()?;
        let gone = self.sorted.remove(at);
        if self.sorted.len() * 4 <= self.sorted.capacity() && self.sorted.spilled() {
            self.sorted.shrink_to_fit();
        }
        if self.first == tenant {
            self.first = self.sorted.iter().min_by_key(|h| h.since).map_or(0, |h| h.tenant);
        }
        Some(gone)
    }

    /// Copy of a node's holders, for the upper of the two nodes into which the node is split.
    pub(crate) fn above(&self) -> Self {
        Self { sorted: self.sorted.iter().map(Holder::above).collect(), first: self.first }
    }

    /// Heap memory of a node's list of holders, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        if self.sorted.spilled() { self.sorted.capacity() * size_of::<Holder>() } else { 0 }
    }
}

impl<U: Units> Core<U> {
    /// Adds a tenant to a node and to the node's ancestors that the tenant does not hold, with the time `tick`.
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

    /// Removes a tenant from a leaf, and returns the leaf's length in units (characters or tokens). A node without
    /// holders is removed, and so is a tenant without nodes.
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

    /// Records the access at the end of an insert, and adds the leaf to the tenant's order of eviction.
    pub(crate) fn end_insert(&mut self, node: u32, tenant: u32, tick: u64, priority: i32) {
        if let Some(holder) = self.node_mut(node).holders.get_mut(tenant) {
            holder.access(tick);
            holder.priority = holder.priority.max(priority);
        }
        self.enqueue(node, tenant);
    }

    /// Adds a holder to a node while a snapshot is being restored. Returns false if the tenant does not hold the
    /// parent.
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

    /// Adds all leaves (nodes that a tenant holds without any of their children) to their tenants' orders of eviction,
    /// after a snapshot was restored.
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

/// A tenant that holds at least one node.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) name: TenantId,
    /// Number of units (characters or tokens) that the tenant holds.
    pub(crate) units: usize,
    /// Number of the tenant's leaves: nodes that the tenant holds without any of their children.
    pub(crate) leaves: usize,
    /// Heap of the tenant's leaves by rank in the order of eviction, with some outdated entries (`order.rs`).
    pub(crate) order: BinaryHeap<Leaf>,
}

/// All tenants that hold at least one node, by number and by name.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    numbers: HashMap<TenantId, u32>,
    list: Vec<Option<Tenant>>,
    free: Vec<u32>,
    name_bytes: usize,
}

impl Tenants {
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns the number of a tenant's name; a new tenant gets a free number.
    pub(crate) fn intern(&mut self, name: &str) -> u32 {
        if let Some(number) = self.number(name) {
            return number;
        }
        let name: TenantId = Arc::from(name);
        self.name_bytes += name.len();
        let tenant = Tenant { name: name.clone(), units: 0, leaves: 0, order: BinaryHeap::new() };
        let number = match self.free.pop() {
            Some(number) => {
                self.list[number as usize] = Some(tenant);
                number
            }
            None => {
                self.list.push(Some(tenant));
                (self.list.len() - 1) as u32
            }
        };
        self.numbers.insert(name, number);
        number
    }

    /// Removes a tenant that holds no nodes from the table of tenants, so that its number can be reused.
    pub(crate) fn forget(&mut self, number: u32) {
        if let Some(tenant) = self.list[number as usize].take() {
            self.name_bytes -= tenant.name.len();
            self.numbers.remove(&tenant.name);
            self.free.push(number);
        }
        if self.numbers.is_empty() {
            *self = Self::default();
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Tenant> {
        self.list.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Tenant> {
        self.list.get_mut(number as usize)?.as_mut()
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = (u32, &Tenant)> {
        self.list.iter().enumerate().filter_map(|(number, t)| Some((number as u32, t.as_ref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<Option<Tenant>>()
            + self.free.capacity() * 4
            + self.numbers.capacity() * (size_of::<(TenantId, u32)>() + 1)
            // The reference counts of an `Arc` precede its text.
            + self.numbers.len() * 16
            + self.name_bytes
    }
}
