//! Evictions as many threads use them: in slices, and with no lock between them.

use std::sync::atomic::Ordering::Relaxed;

use super::tree::{NONE, SharedTree};
use crate::tree::core::Core;
use crate::tree::path_hash::GLOBAL_EVICTION_HASH;
use crate::tree::types::TenantId;
use crate::tree::units::Units;

/// Number of leaves evicted before others get a turn.
const SLICE: usize = 512;

impl<U: Units> SharedTree<U> {
    pub(crate) fn evict_tenant(&self, tenant: &str, most: usize) -> usize {
        let mut evicted = 0;
        loop {
            let mut core = self.core.write();
            let Some(number) = core.tenants.number(tenant) else { return evicted };
            let units = core.evict_tenant(number, most, SLICE);
            core.shrink();
            evicted += units;
            if units == 0 {
                return evicted;
            }
        }
    }

    pub(crate) fn evict_each(&self, most: usize) -> usize {
        let above: Vec<TenantId> = self
            .with(|core| core.tenants.numbers().filter(|(_, t)| t.units > most).map(|(_, t)| t.name.clone()).collect());
        above.iter().map(|tenant| self.evict_tenant(tenant, most)).sum()
    }

    fn evict_until(&self, done: impl Fn(&Core<U>) -> bool) -> usize {
        let mut evicted = 0;
        loop {
            let mut core = self.core.write();
            let units = core.evict_until(SLICE, &done);
            core.shrink();
            evicted += units;
            if units == 0 {
                return evicted;
            }
        }
    }

    pub(crate) fn evict_to_size(&self, most: usize) -> usize {
        self.evict_until(|core| core.units <= most)
    }

    pub(crate) fn evict_to_bytes(&self, most: usize) -> usize {
        let most = most.saturating_sub(self.units.shared_bytes());
        self.evict_until(|core| core.bytes() <= most)
    }

    pub(crate) fn set_budget(&self, bytes: Option<usize>) {
        self.units.limit_bytes(bytes);
        self.budget.store(bytes.unwrap_or(NONE), Relaxed);
        if let Some(bytes) = bytes {
            self.evict_to_bytes(bytes);
        }
    }

    pub(crate) fn budget(&self) -> Option<usize> {
        Some(self.budget.load(Relaxed)).filter(|&b| b != NONE)
    }

    /// Ends an insert: when it went over the budget, evicts somewhat more than that, so that not each of the next
    /// inserts must.
    pub(crate) fn keep_budget(&self, core: parking_lot::RwLockWriteGuard<'_, Core<U>>) {
        let budget = self.budget.load(Relaxed);
        let stored = core.bytes();
        drop(core);
        if budget != NONE && stored + self.units.shared_bytes() > budget {
            self.evict_to_bytes(budget - budget / 32);
        }
    }

    pub(crate) fn clear(&self) {
        let mut core = self.core.write();
        let ticks = core.ticks.load(Relaxed);
        let empty = Core::new(self.units.clone(), core.policy);
        let old = std::mem::replace(&mut *core, empty);
        core.ticks.store(ticks, Relaxed);
        core.births_from(&old);
        drop(core);
        drop(old);
    }

    /// Evicts the node of this path and all below it, for a tenant or for all.
    pub(crate) fn evict_path(&self, hash: u64, tenant: Option<&str>) -> usize {
        if hash == GLOBAL_EVICTION_HASH {
            return match tenant {
                Some(tenant) => self.evict_tenant(tenant, 0),
                None => {
                    let units = self.total();
                    self.clear();
                    units
                }
            };
        }
        loop {
            // Looking for the node takes long, and only needs the read lock.
            let Some((node, birth)) = self.core.read().find_hash(hash) else { return 0 };
            let mut core = self.core.write();
            let Some(found) = core.try_node(node).filter(|n| n.birth == birth) else { continue };
            let tenants: Vec<u32> = match tenant {
                Some(tenant) => core.tenants.number(tenant).into_iter().collect(),
                None => found.holders.iter().map(|h| h.tenant).collect(),
            };
            let gone = tenants.into_iter().map(|t| core.detach_below(node, t)).sum();
            core.shrink();
            return gone;
        }
    }
}
