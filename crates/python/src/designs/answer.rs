//! The answer of a rung.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::found::workers;
use crate::scalars::Best;

/// Who holds how much of a query, by what the rung had applied at the moment of the find.
///
/// Made by Rung.find and Rung.find_tokens; later changes do not change it. Workers that hold none of the query's
/// blocks are not in it.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct RungMatch {
    /// Deepest first.
    scores: Vec<(Arc<str>, u32)>,
}

impl RungMatch {
    pub(super) fn new(mut scores: Vec<(Arc<str>, u32)>) -> Self {
        scores.sort_by_key(|&(_, depth)| Reverse(depth));
        Self { scores }
    }
}

#[pymethods]
impl RungMatch {
    /// int: The greatest depth of any worker, in blocks; 0 if nobody holds the first block.
    #[getter]
    fn depth(&self) -> u32 {
        self.scores.first().map_or(0, |&(_, depth)| depth)
    }

    /// The workers grouped by depth.
    ///
    /// Returns:
    ///     list of (depth in blocks, list of workers), deepest first.
    fn levels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let levels = self.scores.chunk_by(|one, next| one.1 == next.1);
        PyList::new(py, levels.map(|level| (level[0].1, level.iter().map(|(worker, _)| &**worker).collect::<Vec<_>>())))
    }

    /// The depth of every worker.
    ///
    /// Returns:
    ///     dict of worker to depth in blocks.
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let scores = PyDict::new(py);
        for (worker, depth) in &self.scores {
            scores.set_item(&**worker, depth)?;
        }
        Ok(scores)
    }

    /// The deepest workers.
    ///
    /// Args:
    ///     k: How many, at least 0.
    ///     among: Only these workers, an iterable of str; None for all. Names that are not in the match are ignored.
    ///
    /// Returns:
    ///     list of (worker, depth in blocks), at most k, deepest first; equals in no particular order.
    ///
    /// Raises:
    ///     InvalidTypeError: k is not an int, or among is not an iterable of str.
    ///     InvalidArgumentError: k is negative.
    #[pyo3(signature = (k=Best(1), among=None))]
    #[pyo3(text_signature = "($self, k=1, among=None)")]
    fn best<'py>(&self, py: Python<'py>, k: Best, among: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyList>> {
        let among: Option<HashSet<String>> = among.map(workers).transpose()?.map(|names| names.into_iter().collect());
        let wanted = |worker: &str| among.as_ref().is_none_or(|among| among.contains(worker));
        let best: Vec<_> = self.scores.iter().filter(|(worker, _)| wanted(worker)).take(k.0).collect();
        PyList::new(py, best.into_iter().map(|(worker, depth)| (&**worker, *depth)))
    }

    fn __repr__(&self) -> String {
        format!("<RungMatch depth={} workers={}>", self.depth(), self.scores.len())
    }
}
