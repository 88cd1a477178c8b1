//! The rungs of the ladder, as Python sees them: workers have names, changes go through the rung's own feed.

mod arguments;
mod names;
mod positional;
mod rung;
mod rung_match;
mod stats;

use kvatlas_designs::RUNGS;
use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<rung::Rung>()?;
    module.add_class::<rung_match::RungMatch>()?;
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
