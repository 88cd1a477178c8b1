//! Counts as Python dicts, and numbers and booleans as text for a `repr`.

use kvatlas_index::Stats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Dict of the statistics of an index, for `BlockIndex.stats`.
pub(crate) fn index<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    dict(
        py,
        [
            ("workers", stats.workers),
            ("holders", stats.holders),
            ("blocks", stats.blocks),
            ("unlinked", stats.unlinked),
            ("copies", stats.copies),
            ("positions", stats.positions),
            ("runs", stats.runs),
            ("sets", stats.sets),
            ("bytes", stats.bytes),
            ("private_holders", stats.private_holders),
            ("stores", stats.stores),
            ("removes", stats.removes),
            ("clears", stats.clears),
            ("drops", stats.drops),
            ("replaced", stats.replaced),
            ("unknown_removals", stats.unknown_removals),
        ],
    )
}

/// Creates a dict of numbers by name.
pub(crate) fn dict<'py, const N: usize>(py: Python<'py>, numbers: [(&str, u64); N]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, number) in numbers {
        dict.set_item(name, number)?;
    }
    Ok(dict)
}

/// Number as text with commas between groups of three digits: 1,204.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Python's name of a boolean: `True` or `False`.
pub(crate) fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
