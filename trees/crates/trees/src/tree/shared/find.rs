//! Matches: under the read lock, but for a policy under which an access brings a leaf forward.

use super::tree::SharedTree;
use crate::tree::core::{Descent, ROOT, START};
use crate::tree::types::{PrefixMatch, TenantId};
use crate::tree::units::Units;

impl<U: Units> SharedTree<U> {
    /// Finds the match and its end. `input` is whole.
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

    /// Tells the order of eviction of an access that brings a leaf forward.
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
        // What matched has been counted on the way.
        let paged = found.units + self.units.count(&whole[found.items..]);
        let input = paged + self.units.count(&input[whole.len()..]);
        (found, PrefixMatch { tenant, matched: found.units, input, paged })
    }

    /// Number of items that match, and the tenant.
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
}
