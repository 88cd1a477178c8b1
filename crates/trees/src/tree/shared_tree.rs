//! The tree as many threads use it: what is done under which lock.
//!
//! One lock for the tree: prompts of a fleet begin alike, so that shards by the first unit would be one shard. Nearly all
//! the time of a call is spent comparing its input with what is stored, under the read lock, and storing what is new,
//! under none. The write lock is for splicing, which costs the same for a long prompt and a short one: who
//! has compared under the read lock notes where that ended, and begins there if the node is still the same (`birth`).
//!
//! No lock is held while a caller's function runs, nor across two slices of a long eviction.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::RwLock;

use super::core::{Core, Found, Piece, ROOT, Run};
use super::policy::EvictionPolicy;
use super::shared_evict::NONE;
use super::types::{PrefixMatch, TenantId};
use super::units::Units;

/// Descents without the write lock before one with it.
const TRIES: usize = 3;

/// A tree of text or tokens.
pub(crate) struct SharedTree<U: Units> {
    pub(super) core: RwLock<Core<U>>,
    pub(super) units: Arc<U>,
    pub(super) budget: AtomicUsize,
}

/// The beginning of every descent.
pub(super) const START: Found = Found { node: ROOT, birth: 0, shape: 0, within: 0, mark: 0, items: 0, units: 0 };

impl<U: Units> Core<U> {
    /// Follows `input` down from where `found` ended, as far as it goes. What the edge there still has is not looked at:
    /// that ended because the input differs from it, or it has nothing left.
    pub(super) fn descend(&self, mut found: Found, input: &[U::Item]) -> Found {
        let units = &*self.units_of;
        let mut at = self.node(found.node);
        while found.within == at.items && found.items < input.len() {
            let rest = &input[found.items..];
            let mut outcome = (0, 0);
            let child = at.children.find(units.key(rest), |child| {
                let child = self.node(child);
                let Some(run) = &child.run else { return false };
                outcome = units.compare(&run.buffer, child.from, child.items as usize, rest);
                // Other first units, of the same key.
                outcome.0 > 0
            });
            let Some(child) = child else { break };
            at = self.node(child);
            let (items, mark) = outcome;
            let whole = items == at.items as usize;
            let more = if whole { at.units as usize } else { units.count(&rest[..items]) };
            found = Found {
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

    /// An access of a tenant that ends in `node`.
    fn access(&self, node: u32, tenant: u32) {
        if let Some(holder) = self.node(node).holders.get(tenant) {
            holder.access(self.tick());
        }
    }

    /// The deepest node on the way to `found` that a tenant holds, and the units that match down to there.
    fn deepest_of(&self, found: &Found, tenant: u32) -> Option<(u32, usize)> {
        let (mut node, mut depth) = (found.node, found.units);
        while node != ROOT {
            let here = self.node(node);
            if here.holders.get(tenant).is_some() {
                return Some((node, depth));
            }
            // What matched of the lowest edge may be less than the edge; above it edges match whole.
            depth = if node == found.node { self.units_above(found) } else { depth - here.units as usize };
            node = here.parent;
        }
        None
    }

    fn units_above(&self, found: &Found) -> usize {
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

    /// Makes the end of `found` the end of a node.
    fn boundary(&mut self, found: &Found) -> u32 {
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

impl<U: Units> SharedTree<U> {
    pub(crate) fn new(units: U, policy: EvictionPolicy) -> Self {
        let units = Arc::new(units);
        Self::of(Core::new(units, policy))
    }

    pub(super) fn of(core: Core<U>) -> Self {
        Self { units: core.units_of.clone(), core: RwLock::new(core), budget: AtomicUsize::new(NONE) }
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&Core<U>) -> T) -> T {
        look(&self.core.read())
    }

    pub(crate) fn units(&self) -> &U {
        &self.units
    }

    pub(crate) fn policy(&self) -> EvictionPolicy {
        self.core.read().policy
    }

    fn whole<'a>(&self, input: &'a [U::Item]) -> &'a [U::Item] {
        &input[..self.units.whole(input)]
    }

    // Matches.

    /// The match, and where it ended. `input` is whole.
    fn find(&self, input: &[U::Item]) -> (Found, Option<TenantId>) {
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

    /// Tells the order of eviction of an access that brings a leaf forward.
    fn hasten(&self, found: &Found, tenant: u32) {
        let mut core = self.core.write();
        if core.try_node(found.node).is_some_and(|n| n.birth == found.birth) {
            core.enqueue(found.node, tenant);
        }
    }

    pub(crate) fn match_prefix(&self, input: &[U::Item]) -> PrefixMatch {
        self.match_at(input).1
    }

    fn match_at(&self, input: &[U::Item]) -> (Found, PrefixMatch) {
        let whole = self.whole(input);
        let (found, tenant) = self.find(whole);
        // What matched has been counted on the way.
        let paged = found.units + self.units.count(&whole[found.items..]);
        let input = paged + self.units.count(&input[whole.len()..]);
        (found, PrefixMatch { tenant, matched: found.units, input, paged })
    }

    /// The items that match, and the tenant.
    pub(crate) fn prefix(&self, input: &[U::Item]) -> (usize, Option<TenantId>) {
        let (found, tenant) = self.find(self.whole(input));
        (found.items, tenant)
    }

    /// How deep one tenant matches, in units.
    pub(crate) fn match_tenant(&self, input: &[U::Item], tenant: &str) -> usize {
        let whole = self.whole(input);
        let core = self.core.read();
        let Some(tenant) = core.tenants.number(tenant) else { return 0 };
        let found = core.descend(START, whole);
        let Some((node, depth)) = core.deepest_of(&found, tenant) else { return 0 };
        core.access(node, tenant);
        if core.policy.access_hastens() {
            let at = Found { node, birth: core.node(node).birth, ..found };
            drop(core);
            self.hasten(&at, tenant);
        }
        depth
    }

    /// How deep every tenant matches, in units: deepest first, equal depths by name.
    pub(crate) fn match_all(&self, input: &[U::Item]) -> Vec<(TenantId, usize)> {
        let whole = self.whole(input);
        let core = self.core.read();
        let found = core.descend(START, whole);
        let (mut node, mut depth, mut below) = (found.node, found.units, None);
        let mut depths: Vec<(TenantId, usize)> = Vec::new();
        while node != ROOT {
            let here = core.node(node);
            // Tenants of a node are tenants of its parent: what is new here is what the node below does not have.
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

    // Inserts.

    pub(crate) fn insert(&self, input: &[U::Item], tenant: &str, priority: i32) {
        self.insert_at(START, self.whole(input), tenant, priority);
    }

    pub(crate) fn match_and_insert_with<S: AsRef<str>, E>(
        &self,
        input: &[U::Item],
        select: impl FnOnce(&PrefixMatch) -> Result<Option<S>, E>,
    ) -> Result<PrefixMatch, E> {
        let (found, result) = self.match_at(input);
        if let Some(tenant) = select(&result)? {
            self.insert_at(found, self.whole(input), tenant.as_ref(), 0);
        }
        Ok(result)
    }

    /// Inserts, starting from where a descent has ended.
    fn insert_at(&self, mut found: Found, input: &[U::Item], tenant: &str, priority: i32) {
        if input.is_empty() {
            return;
        }
        for _ in 0..TRIES {
            // Going on from `found`, or if its node is not the same any more, from the root.
            {
                let core = self.core.read();
                if !core.still(&found) {
                    found = START;
                }
                found = core.descend(found, input);
                if self.access_only(&core, &found, input, tenant, priority) {
                    return;
                }
            }
            let pieces = self.store(&input[found.items..]);
            let mut core = self.core.write();
            if core.still(&found) {
                self.splice(&mut core, found, &pieces, input, tenant, priority);
                return self.keep_budget(core);
            }
        }
        // Others were quicker each time: now they wait.
        let mut core = self.core.write();
        let found = core.descend(START, input);
        let pieces = self.store(&input[found.items..]);
        self.splice(&mut core, found, &pieces, input, tenant, priority);
        self.keep_budget(core);
    }

    /// If the tenant holds exactly this already, all there is to do is an access.
    fn access_only(&self, core: &Core<U>, found: &Found, input: &[U::Item], tenant: &str, priority: i32) -> bool {
        if found.items < input.len() || core.policy.access_hastens() {
            return false;
        }
        let node = core.node(found.node);
        let Some(tenant) = core.tenants.number(tenant).filter(|_| found.within == node.items) else { return false };
        let Some(holder) = node.holders.get(tenant).filter(|h| h.priority >= priority) else { return false };
        holder.access(core.tick());
        true
    }

    pub(super) fn store(&self, mut items: &[U::Item]) -> Vec<Piece<U::Buffer>> {
        let mut pieces = Vec::with_capacity(1);
        while !items.is_empty() {
            let piece = self.units.piece(items);
            let run = Run::new(self.units.store(piece), piece.len());
            pieces.push(Piece { run, items: piece.len(), units: self.units.count(piece) });
            items = &items[piece.len()..];
        }
        pieces
    }

    /// Puts `pieces`, the input from `found` on, in the tree, and the tenant on their path.
    pub(super) fn splice(
        &self,
        core: &mut Core<U>,
        found: Found,
        pieces: &[Piece<U::Buffer>],
        input: &[U::Item],
        tenant: &str,
        priority: i32,
    ) {
        // Others may have added some of it below the same node meanwhile.
        let begun = found.items;
        let found = core.descend(found, input);
        let mut node = core.boundary(&found);
        let mut done = found.items;
        let mut start = begun;
        for piece in pieces {
            let end = start + piece.items;
            if done < end {
                let skipped = done - start;
                let items = &input[done..end];
                let (from, units) = if skipped == 0 {
                    (0, piece.units)
                } else {
                    (self.units.seek(&piece.run.buffer, 0, skipped), self.units.count(items))
                };
                node = core.grow(node, self.units.key(items), piece, from, items.len(), units);
                done = end;
            }
            start = end;
        }
        let tenant = core.tenants.intern(tenant);
        let tick = core.tick();
        core.attach(node, tenant, tick);
        core.end_insert(node, tenant, tick, priority);
    }

    // Sizes.

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
