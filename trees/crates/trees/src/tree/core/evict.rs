//! Evictions: whole leaves go, in their tenants' orders.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::nodes::Core;
use crate::tree::policy::Rank;
use crate::tree::units::Units;

impl<U: Units> Core<U> {
    /// Evicts the first leaf of a tenant. Returns the leaf's units, 0 if the tenant has no leaf.
    fn evict_first(&mut self, tenant: u32) -> usize {
        let Some((_, node)) = self.first_leaf(tenant) else { return 0 };
        self.detach(node, tenant)
    }

    /// Evicts leaves of a tenant, at most `leaves` of them, until the tenant holds at most `most` units. Returns the
    /// units evicted.
    pub(crate) fn evict_tenant(&mut self, tenant: u32, most: usize, leaves: usize) -> usize {
        let mut evicted = 0;
        for _ in 0..leaves {
            if self.tenants.get(tenant).is_none_or(|t| t.units <= most) {
                break;
            }
            evicted += self.evict_first(tenant);
        }
        evicted
    }

    /// Evicts leaves of all tenants, the first of them all first, at most `leaves`, until `done`. Returns the units
    /// evicted.
    pub(crate) fn evict_until(&mut self, leaves: usize, done: impl Fn(&Self) -> bool) -> usize {
        if done(self) {
            return 0;
        }
        let numbers: Vec<u32> = self.tenants.numbers().map(|(number, _)| number).collect();
        let mut firsts: BinaryHeap<Reverse<(Rank, u32)>> =
            numbers.into_iter().filter_map(|t| Some(Reverse((self.first_leaf(t)?.0, t)))).collect();
        let mut evicted = 0;
        for _ in 0..leaves {
            let Some(Reverse((_, tenant))) = firsts.pop() else { break };
            evicted += self.evict_first(tenant);
            if done(self) {
                break;
            }
            if let Some((rank, _)) = self.first_leaf(tenant) {
                firsts.push(Reverse((rank, tenant)));
            }
        }
        evicted
    }

    /// Takes a node and all below it from a tenant, the lowest first. Returns the units taken.
    pub(crate) fn detach_below(&mut self, top: u32, tenant: u32) -> usize {
        let holds = |n: u32| self.try_node(n).is_some_and(|n| n.holders.get(tenant).is_some());
        let mut found: Vec<u32> = [top].into_iter().filter(|&n| holds(n)).collect();
        let mut next = 0;
        while let Some(&node) = found.get(next) {
            found.extend(self.node(node).children.nodes().filter(|&n| holds(n)));
            next += 1;
        }
        // Parents come before their children in the list.
        found.into_iter().rev().map(|node| self.detach(node, tenant)).sum()
    }
}
