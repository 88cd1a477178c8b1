//! The tree with its lock, and the sizes of what it holds.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::RwLock;

use crate::tree::core::Core;
use crate::tree::policy::EvictionPolicy;
use crate::tree::types::TenantId;
use crate::tree::units::Units;

/// The budget of a tree without one.
pub(crate) const NONE: usize = usize::MAX;

/// A tree of text or tokens.
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
