//! Workers by name outside, by number inside.

use std::collections::HashMap;
use std::sync::Arc;

use kvatlas_designs::WorkerId;
use parking_lot::RwLock;

/// The workers that were ever named, each with a number for good: a change that is still queued must find its worker.
#[derive(Debug, Default)]
pub(super) struct Names(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    numbers: HashMap<Arc<str>, WorkerId>,
    names: Vec<Arc<str>>,
}

impl Names {
    /// The number of a name, a new one if need be.
    pub(super) fn number(&self, name: &str) -> WorkerId {
        if let Some(number) = self.known(name) {
            return number;
        }
        let mut table = self.0.write();
        if let Some(&number) = table.numbers.get(name) {
            return number;
        }
        // Each name takes more than a byte, so they do not get to be 2^32.
        let (number, name) = (table.names.len() as WorkerId, Arc::<str>::from(name));
        table.names.push(name.clone());
        table.numbers.insert(name, number);
        number
    }

    /// The number of a name, if it was ever given one.
    pub(super) fn known(&self, name: &str) -> Option<WorkerId> {
        self.0.read().numbers.get(name).copied()
    }

    /// Each item with the name instead of the number.
    pub(super) fn resolve<T>(&self, items: impl IntoIterator<Item = (WorkerId, T)>) -> Vec<(Arc<str>, T)> {
        let table = self.0.read();
        items.into_iter().map(|(number, item)| (table.names[number as usize].clone(), item)).collect()
    }
}
