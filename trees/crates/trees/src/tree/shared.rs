//! A tree shared by threads: one lock, the sizes, and the matches, which follow an input down the tree under the read
//! lock.
//!
//! There is one lock for the tree: prompts of a fleet begin alike, so shards by the first unit would be one shard.
//! Nearly all the time of a call is spent comparing its input with the stored edges, under the read lock, and encoding
//! new edges, without a lock. The write lock is held only to add prepared edges, which costs the same for a long prompt
//! and a short one: a caller that has compared under the read lock records where the match ended, and begins there if
//! the node is still the same (`birth`).
//!
//! No lock is held while a caller's function runs, nor across two slices of a long eviction. Inserts and evictions are
//! in `shared_changes.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::RwLock;

use super::nodes::{Core, Descent, ROOT};
use super::order::EvictionPolicy;
use super::units::Units;
use super::{PrefixMatch, TenantId};

/// Value of the memory limit for a tree that has no limit.
pub(crate) const NONE: usize = usize::MAX;

/// A tree of text or tokens with the lock under which threads share it.
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
    /// Finds the tenant with the longest prefix of an input, and the place in the tree where the prefix ends. `input`:
    /// whole characters or pages.
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

    /// Updates a tenant's order of eviction after an access at `found` that brings a leaf's eviction forward, which it
    /// does under some policies.
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

    /// Length of the longest prefix of the input that a tenant holds, in items (bytes or tokens), and this tenant.
    pub(crate) fn prefix(&self, input: &[U::Item]) -> (usize, Option<TenantId>) {
        let (found, tenant) = self.find(self.whole(input));
        (found.items, tenant)
    }

    /// Number of leading units (characters or tokens) of the input that one tenant holds.
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

    /// Depth to which every tenant has the input, in units (characters or tokens): deepest first, equal depths by name.
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

/// Place where every descent along an input begins: the root, with nothing matched.
pub(crate) const START: Descent = Descent { node: ROOT, birth: 0, shape: 0, within: 0, mark: 0, items: 0, units: 0 };

impl<U: Units> Core<U> {
    /// Follows `input` down the tree from the place `found` as far as it matches. The rest of the edge (text or tokens
    /// of a node) at `found` is not compared: the input differs from it, or the edge is at its end.
    pub(crate) fn descend(&self, mut found: Descent, input: &[U::Item]) -> Descent {
        let units = &*self.units_of;
        let mut at = self.node(found.node);
        while found.within == at.items && found.items < input.len() {
            let rest = &input[found.items..];
            let mut outcome = (0, 0);
            let child = at.children.find(units.key(rest), |child| {
                let child = self.node(child);
                let Some(run) = &child.run else { return false };
                outcome = units.compare(&run.buffer, child.from, child.items as usize, rest);
                // Another first unit with the same key.
                outcome.0 > 0
            });
            let Some(child) = child else { break };
            at = self.node(child);
            let (items, mark) = outcome;
            let whole = items == at.items as usize;
            let more = if whole { at.units as usize } else { units.count(&rest[..items]) };
            found = Descent {
                node: child,
                birth: at.birth,
                shape: at.shape,
                within: items as u32,
                mark,
                items: found.items + items,
                units: found.units + more,
            };
        }
        found
    }

    /// Records an access (insert or match) of a tenant that ends at the node `node`.
    pub(crate) fn access(&self, node: u32, tenant: u32) {
        if let Some(holder) = self.node(node).holders.get(tenant) {
            holder.access(self.tick());
        }
    }

    /// Deepest node on the path to `found` that a tenant holds, and the number of units (characters or tokens) matched
    /// down to it.
    pub(crate) fn deepest_of(&self, found: &Descent, tenant: u32) -> Option<(u32, usize)> {
        let (mut node, mut depth) = (found.node, found.units);
        while node != ROOT {
            let here = self.node(node);
            if here.holders.get(tenant).is_some() {
                return Some((node, depth));
            }
            // The lowest edge may match in part; above it edges match whole.
            depth = if node == found.node { self.units_above(found) } else { depth - here.units as usize };
            node = here.parent;
        }
        None
    }

    pub(crate) fn units_above(&self, found: &Descent) -> usize {
        let node = self.node(found.node);
        if found.within == node.items {
            return found.units - node.units as usize;
        }
        let mut above = 0;
        let mut at = node.parent;
        while at != ROOT {
            above += self.node(at).units as usize;
            at = self.node(at).parent;
        }
        above
    }

    /// Splits the node at `found` in two if the match ends within its edge (its text or tokens), and returns the node
    /// that ends there.
    pub(crate) fn boundary(&mut self, found: &Descent) -> u32 {
        let node = self.node(found.node);
        if found.within == node.items {
            return found.node;
        }
        let units = found.units - self.units_above(found);
        let mut step = Vec::with_capacity(self.units_of.step_items());
        if let Some(run) = &node.run {
            let left = (node.items - found.within) as usize;
            self.units_of.read(&run.buffer, found.mark, left.min(self.units_of.step_items()), &mut step);
        }
        let key = self.units_of.key(&step);
        self.split(found.node, found.within, units as u32, found.mark, key)
    }
}
