//! A tree shared by threads: one lock, the sizes, and the matches under the read lock.
//!
//! One lock for the tree: prompts of a fleet begin alike, so shards by the first unit would be one shard. Nearly all
//! the time of a call is spent comparing its input with the stored edges, under the read lock, and encoding new edges,
//! under none. The write lock is for splicing, which costs the same for a long prompt and a short one: a caller that
//! has compared under the read lock records where the match ended, and begins there if the node is still the same (`birth`).
//!
//! No lock is held while a caller's function runs, nor across two slices of a long eviction. Inserts and evictions are in
//! `shared_changes.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::RwLock;

use super::descend::START;
use super::nodes::{Core, Descent, ROOT};
use super::policy::EvictionPolicy;
use super::types::{PrefixMatch, TenantId};
use super::units::Units;

/// The budget of a tree without one.
pub(crate) const NONE: usize = usize::MAX;

/// A tree of text or tokens with its lock.
pub(crate) struct SharedTree<U: Units> {
    pub(crate) core: RwLock<Core<U>>,
    pub(crate) units: Arc<U>,
    pub(crate) budget: AtomicUsize,
}

impl<U: Units> SharedTree<U> {
    pub(crate) fn new(units: U, policy: EvictionPolicy) -> Self {
        let units = Arc::new(units);
        Self::of(Core::new(units, policy))
    }

    pub(crate) fn of(core: Core<U>) -> Self {
        Self { units: core.units_of.clone(), core: RwLock::new(core), budget: AtomicUsize::new(NONE) }
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&Core<U>) -> T) -> T {
        look(&self.core.read())
    }

    pub(crate) fn units(&self) -> &U {
        &self.units
    }

    pub(crate) fn policy(&self) -> EvictionPolicy {
        self.core.read().policy
    }

    pub(super) fn whole<'a>(&self, input: &'a [U::Item]) -> &'a [U::Item] {
        &input[..self.units.whole(input)]
    }

    pub(crate) fn size(&self, tenant: &str) -> usize {
        let core = self.core.read();
        core.tenants.number(tenant).and_then(|t| core.tenants.get(t)).map_or(0, |t| t.units)
    }

    pub(crate) fn sizes(&self) -> Vec<(TenantId, usize)> {
        let core = self.core.read();
        let mut sizes: Vec<_> = core.tenants.numbers().map(|(_, t)| (t.name.clone(), t.units)).collect();
        sizes.sort_unstable();
        sizes
    }

    pub(crate) fn recount(&self) -> Vec<(TenantId, usize)> {
        let core = self.core.read();
        let mut sizes = std::collections::BTreeMap::new();
        for node in core.nodes() {
            for holder in node.holders.iter() {
                if let Some(tenant) = core.tenants.get(holder.tenant) {
                    *sizes.entry(tenant.name.clone()).or_insert(0) += node.units as usize;
                }
            }
        }
        sizes.into_iter().collect()
    }

    pub(crate) fn contains_tenant(&self, tenant: &str) -> bool {
        self.core.read().tenants.number(tenant).is_some()
    }

    pub(crate) fn tenant_count(&self) -> usize {
        self.core.read().tenants.len()
    }

    pub(crate) fn total(&self) -> usize {
        self.core.read().units
    }

    pub(crate) fn node_count(&self) -> usize {
        self.core.read().len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.core.read().bytes() + self.units.shared_bytes()
    }
}

impl<U: Units> SharedTree<U> {
    /// Finds the match and the place where it ends. `input` consists of whole steps.
    fn find(&self, input: &[U::Item]) -> (Descent, Option<TenantId>) {
        if input.is_empty() {
            return (START, None);
        }
        let core = self.core.read();
        let found = core.descend(START, input);
        let Some(holder) = core.node(found.node).holders.first() else { return (found, None) };
        let tenant = holder.tenant;
        holder.access(core.tick());
        let name = core.tenants.get(tenant).map(|t| t.name.clone());
        if core.policy.access_hastens() {
            drop(core);
            self.hasten(&found, tenant);
        }
        (found, name)
    }

    /// Updates the order of eviction after an access that brings a leaf forward.
    fn hasten(&self, found: &Descent, tenant: u32) {
        let mut core = self.core.write();
        if core.try_node(found.node).is_some_and(|n| n.birth == found.birth) {
            core.enqueue(found.node, tenant);
        }
    }

    pub(crate) fn match_prefix(&self, input: &[U::Item]) -> PrefixMatch {
        self.match_at(input).1
    }

    pub(super) fn match_at(&self, input: &[U::Item]) -> (Descent, PrefixMatch) {
        let whole = self.whole(input);
        let (found, tenant) = self.find(whole);
        // Matched units have been counted during the descent.
        let paged = found.units + self.units.count(&whole[found.items..]);
        let input = paged + self.units.count(&input[whole.len()..]);
        (found, PrefixMatch { tenant, matched: found.units, input, paged })
    }

    /// Number of matching items, and the tenant.
    pub(crate) fn prefix(&self, input: &[U::Item]) -> (usize, Option<TenantId>) {
        let (found, tenant) = self.find(self.whole(input));
        (found.items, tenant)
    }

    /// The depth to which one tenant matches, in units.
    pub(crate) fn match_tenant(&self, input: &[U::Item], tenant: &str) -> usize {
        let whole = self.whole(input);
        let core = self.core.read();
        let Some(tenant) = core.tenants.number(tenant) else { return 0 };
        let found = core.descend(START, whole);
        let Some((node, depth)) = core.deepest_of(&found, tenant) else { return 0 };
        core.access(node, tenant);
        if core.policy.access_hastens() {
            let at = Descent { node, birth: core.node(node).birth, ..found };
            drop(core);
            self.hasten(&at, tenant);
        }
        depth
    }

    /// The depth to which every tenant matches, in units: deepest first, equal depths by name.
    pub(crate) fn match_all(&self, input: &[U::Item]) -> Vec<(TenantId, usize)> {
        let whole = self.whole(input);
        let core = self.core.read();
        let found = core.descend(START, whole);
        let (mut node, mut depth, mut below) = (found.node, found.units, None);
        let mut depths: Vec<(TenantId, usize)> = Vec::new();
        while node != ROOT {
            let here = core.node(node);
            // Tenants of a node are tenants of its parent: new here are those that the node below lacks.
            if here.holders.len() > depths.len() {
                let start = depths.len();
                let lower = below.map(|b: u32| &core.node(b).holders);
                for holder in here.holders.iter().filter(|h| lower.is_none_or(|l| l.get(h.tenant).is_none())) {
                    if let Some(tenant) = core.tenants.get(holder.tenant) {
                        depths.push((tenant.name.clone(), depth));
                    }
                }
                depths[start..].sort_unstable_by(|a, b| a.0.cmp(&b.0));
            }
            depth = if node == found.node { core.units_above(&found) } else { depth - here.units as usize };
            below = Some(node);
            node = here.parent;
        }
        depths
    }
}
