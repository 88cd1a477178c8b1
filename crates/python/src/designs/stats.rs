//! The statistics of a design, as a dict.

use kvatlas_designs::LadderStats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::stats::dict;

/// The dict of a design's `stats`.
pub(super) fn design<'py>(py: Python<'py>, stats: &LadderStats) -> PyResult<Bound<'py, PyDict>> {
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
