//! Designs of the index for comparison (`kvatlas.lab.designs`), as Python classes. Workers have names, and changes pass
//! through the design's own queue.

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

/// Description of a design: name, summary, known errors, and errors that remain with `strict` (`None` if the design has
/// no strict form).
type Row = (&'static str, &'static str, Vec<&'static str>, Option<Vec<&'static str>>);

/// The index designs implemented in Rust, the simplest first.
///
/// Returns:
///     list of (name, description, known errors, errors that remain with strict or None if the design has no strict
///         form).
#[pyfunction]
fn rungs() -> Vec<Row> {
    let names = |deviations: &[kvatlas_designs::Deviation]| deviations.iter().map(|one| one.name()).collect();
    RUNGS.iter().map(|rung| (rung.name, rung.what, names(rung.deviations), rung.strict.map(names))).collect()
}

argument! {
    /// Argument `strict`: true to correct a design's known errors where possible.
    Strict(bool) = |value| flag(value, "strict");
    /// Argument `event_threads`: number of threads that apply a design's events.
    EventThreads(usize) = |value| size(value, "event_threads");
    /// Argument `jump_size`: number of blocks by which the search of a positional design advances.
    JumpSize(usize) = |value| size(value, "jump_size");
    /// Argument `shards`: number of parts of a sharded design, each with its own thread.
    Shards(usize) = |value| size(value, "shards");
    /// Argument `group_size`: number of workers per group.
    GroupSize(usize) = |value| size(value, "group_size");
}

/// Converts an argument to an integer of at least 1. `what`: the argument's name for errors.
fn size(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    let value = int(value, || what.to_owned())?;
    if value.lt(1)? {
        return Err(errors::argument("out_of_range", &format!("{what} must be at least 1, got {value}")));
    }
    Ok(value.extract().unwrap_or(usize::MAX))
}

/// Numbers of all workers ever named. A number is never reused, since a change that is still queued must find its
/// worker.
#[derive(Debug, Default)]
struct Names(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    numbers: HashMap<Arc<str>, WorkerId>,
    names: Vec<Arc<str>>,
}

impl Names {
    /// Returns the number of a worker's name; a new name gets the next number.
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

    /// Returns the number of a worker's name; `None` for an unknown name.
    fn known(&self, name: &str) -> Option<WorkerId> {
        self.0.read().numbers.get(name).copied()
    }

    /// Replaces the worker's number of each item by the worker's name.
    fn resolve<T>(&self, items: impl IntoIterator<Item = (WorkerId, T)>) -> Vec<(Arc<str>, T)> {
        let table = self.0.read();
        items.into_iter().map(|(number, item)| (table.names[number as usize].clone(), item)).collect()
    }
}

/// Dict of a design's statistics, for its method `stats`.
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
