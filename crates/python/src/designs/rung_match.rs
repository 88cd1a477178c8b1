//! The answer of a rung.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::scalars::TopK;
use crate::stats::grouped;
use crate::worker_depths::WorkerDepths;

/// The depth to which each worker holds a query, according to the events applied at the time of the lookup.
///
/// Returned by Rung.find; later changes do not change it. It leaves out workers that hold none of the query's blocks.
/// It is a kvatlas.types.PrefixMatch.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct RungMatch {
    ranked: WorkerDepths,
    length: usize,
}

impl RungMatch {
    pub(super) fn new(scores: Vec<(Arc<str>, u32)>, length: usize) -> Self {
        Self { ranked: WorkerDepths::new(scores.into_iter().map(|(worker, depth)| (worker, depth as usize))), length }
    }
}

#[pymethods]
impl RungMatch {
    /// int: The greatest depth of any worker, in blocks; 0 if no worker holds the first block.
    #[getter]
    fn depth(&self) -> usize {
        self.ranked.depth()
    }

    /// int: The number of blocks in the query. No depth is greater.
    #[getter]
    fn length(&self) -> usize {
        self.length
    }

    /// str: The unit of depths and length: "blocks".
    #[getter]
    fn unit(&self) -> &'static str {
        "blocks"
    }

    /// The workers grouped by depth.
    ///
    /// Returns:
    ///     list of (depth in blocks, list of workers), deepest first.
    fn levels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.ranked.levels(py)
    }

    /// The depth of every worker.
    ///
    /// Returns:
    ///     dict of worker to depth in blocks.
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.ranked.scores(py)
    }

    /// The deepest workers.
    ///
    /// Args:
    ///     top_k: How many, at least 0.
    ///     among: Consider only these workers, an iterable of str; None for all. Names not in the match are ignored.
    ///
    /// Returns:
    ///     list of (worker, depth in blocks), at most top_k, deepest first; equal depths in no particular order.
    ///
    /// Raises:
    ///     InvalidTypeError: top_k is not an int, or among is not an iterable of str.
    ///     InvalidArgumentError: top_k is negative.
    #[pyo3(signature = (top_k=TopK(1), among=None), text_signature = "($self, top_k=1, among=None)")]
    fn best<'py>(
        &self,
        py: Python<'py>,
        top_k: TopK,
        among: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.ranked.best(py, top_k, among)
    }

    fn __repr__(&self) -> String {
        let workers = grouped(self.ranked.len() as u64);
        format!("RungMatch(depth={}, length={}, workers={workers})", self.ranked.depth(), self.length)
    }
}
