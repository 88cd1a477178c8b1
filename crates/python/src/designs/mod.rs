//! The rungs of the ladder, as Python sees them: workers have names, changes go through the rung's own feed.

mod positional;
mod rung;

use std::collections::HashMap;
use std::sync::Arc;

use kvatlas_designs::{LadderStats, RUNGS, WorkerId};
use parking_lot::RwLock;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::scalars::{argument, flag, int};
use crate::stats::dict;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<rung::Rung>()?;
    module.add_class::<rung::RungMatch>()?;
    module.add_class::<positional::PositionalIndexer>()?;
    module.add_function(wrap_pyfunction!(rungs, module)?)
}

/// A row of the registry: name, description, deviations, deviations if strict.
type Row = (&'static str, &'static str, Vec<&'static str>, Option<Vec<&'static str>>);

/// The registry of the rungs in Rust, lowest first.
///
/// Returns:
///     list of (name, description, known errors, errors left if strict or None if it cannot be strict).
#[pyfunction]
fn rungs() -> Vec<Row> {
    let names = |deviations: &[kvatlas_designs::Deviation]| deviations.iter().map(|one| one.name()).collect();
    RUNGS.iter().map(|rung| (rung.name, rung.what, names(rung.deviations), rung.strict.map(names))).collect()
}

argument! {
    /// True if a rung's deviations are mended.
    Strict(bool) = |value| flag(value, "strict");
    /// The number of threads that apply a rung's events.
    EventThreads(usize) = |value| size(value, "event_threads");
    /// The number of blocks that a positional rung jumps.
    JumpSize(usize) = |value| size(value, "jump_size");
    /// The number of actors of a sharded rung.
    Shards(usize) = |value| size(value, "shards");
    /// The number of workers in a group.
    GroupSize(usize) = |value| size(value, "group_size");
}

/// A number of things, at least 1.
fn size(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    let value = int(value, || what.to_owned())?;
    if value.lt(1)? {
        return Err(errors::argument("out_of_range", &format!("{what} must be at least 1, got {value}")));
    }
    Ok(value.extract().unwrap_or(usize::MAX))
}

/// The workers that were ever named, each with a number for good: a change that is still queued must find its worker.
#[derive(Debug, Default)]
struct Names(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    numbers: HashMap<Arc<str>, WorkerId>,
    names: Vec<Arc<str>>,
}

impl Names {
    /// The number of a name, a new one if need be.
    fn number(&self, name: &str) -> WorkerId {
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
    fn known(&self, name: &str) -> Option<WorkerId> {
        self.0.read().numbers.get(name).copied()
    }

    /// Each item with the name instead of the number.
    fn resolve<T>(&self, items: impl IntoIterator<Item = (WorkerId, T)>) -> Vec<(Arc<str>, T)> {
        let table = self.0.read();
        items.into_iter().map(|(number, item)| (table.names[number as usize].clone(), item)).collect()
    }
}

/// The dict of a design's `stats`.
fn design<'py>(py: Python<'py>, stats: &LadderStats) -> PyResult<Bound<'py, PyDict>> {
    dict(
        py,
        [
            ("workers", stats.workers),
            ("blocks", stats.blocks),
            ("entries", stats.entries),
            ("refused", stats.refused),
            ("unknown_removals", stats.unknown_removals),
            ("messages", stats.messages),
        ],
    )
}
