//! Tenants' names and numbers: assigned when a tenant first holds a node, and released with its last one.

use std::collections::BinaryHeap;
use std::sync::Arc;

use hashbrown::HashMap;

use super::policy::Leaf;
use super::types::TenantId;

/// A tenant that holds at least one node.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) name: TenantId,
    /// Number of units that the tenant holds.
    pub(crate) units: usize,
    /// Number of nodes without a child that the tenant holds.
    pub(crate) leaves: usize,
    /// The leaves by rank, and some outdated entries: see `order.rs`.
    pub(crate) order: BinaryHeap<Leaf>,
}

/// All tenants with at least one node.
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

    /// The number of a tenant, assigned if new.
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

    /// Removes a tenant without nodes.
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
