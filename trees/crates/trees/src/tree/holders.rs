//! The tenants of a node, by number, with the accesses of each.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use smallvec::SmallVec;

/// A tenant of a node.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) tenant: u32,
    /// Number of the node's children that the tenant holds as well; with none, the node is one of the tenant's leaves.
    pub(crate) kids: u32,
    /// The tick at which the tenant began to hold the node.
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

    /// The holder of the upper part of a split: no access ended there yet, so it has no hits of its own.
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

    /// The tick of the last access that ended here.
    pub(crate) fn accessed(&self) -> u64 {
        self.accessed.load(Relaxed)
    }

    /// Number of accesses that ended here.
    pub(crate) fn hits(&self) -> u32 {
        self.hits.load(Relaxed)
    }

    /// Records an access that ends here. Takes a shared reference, since matches run in parallel.
    pub(crate) fn access(&self, tick: u64) {
        self.accessed.fetch_max(tick, Relaxed);
        // Saturates instead of wrapping.
        if self.hits.fetch_add(1, Relaxed) == u32::MAX {
            self.hits.store(u32::MAX, Relaxed);
        }
    }

    /// Inherits the accesses, hits and priority of a removed leaf below, so that recency, frequency and priority are as
    /// if every access had been written on the whole path.
    pub(crate) fn inherit(&mut self, leaf: &Self) {
        self.accessed.fetch_max(leaf.accessed(), Relaxed);
        let hits = self.hits().saturating_add(leaf.hits());
        *self.hits.get_mut() = hits;
        self.priority = self.priority.max(leaf.priority);
    }
}

/// The holders of a node, by tenant number.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    sorted: SmallVec<[Holder; 1]>,
    /// Number of the tenant that came first, which a match returns.
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

    /// The tenant that has held the node longest.
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

    /// Adds a tenant that does not hold the node yet.
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

    /// The holders of the upper part of a split of this node.
    pub(crate) fn above(&self) -> Self {
        Self { sorted: self.sorted.iter().map(Holder::above).collect(), first: self.first }
    }

    /// Number of bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        if self.sorted.spilled() { self.sorted.capacity() * size_of::<Holder>() } else { 0 }
    }
}
