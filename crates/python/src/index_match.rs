//! `Match`, the answer of a lookup in a `BlockIndex`.

use std::sync::Arc;

use kvatlas_index::{OwnedMatch, View};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::scalars::{TierName, TopK, names};
use crate::stats::grouped;

/// The depth to which each worker holds a query, at the time of the lookup.
///
/// Returned by BlockIndex.find; later changes to the index do not alter the answer. Workers that do not hold the
/// query's first block are left out. Depths count blocks in device memory. `any_tier` counts blocks of all tiers, and
/// `within(tier)` blocks of all tiers from "gpu" down to the given one. The class implements kvatlas.types.PrefixMatch.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct Match {
    answer: Answer,
    view: View,
    length: usize,
    block_size: u32,
}

enum Answer {
    Own(OwnedMatch),
    /// Shared answer of another match, which counts other tiers.
    Of(Py<Match>),
}

impl Match {
    /// Creates the answer to a query of `length` blocks of `block_size` tokens each.
    pub(crate) fn new(found: OwnedMatch, length: usize, block_size: u32) -> Self {
        Self { answer: Answer::Own(found), view: View::Device, length, block_size }
    }

    fn seen(slf: &Bound<'_, Self>, view: View) -> Self {
        let answer = match &slf.get().answer {
            Answer::Own(_) => slf.clone().unbind(),
            Answer::Of(other) => other.clone_ref(slf.py()),
        };
        let Self { length, block_size, .. } = *slf.get();
        Self { answer: Answer::Of(answer), view, length, block_size }
    }

    pub(crate) fn found(&self) -> &OwnedMatch {
        match &self.answer {
            Answer::Own(found) => found,
            Answer::Of(other) => other.get().found(),
        }
    }
}

#[pymethods]
impl Match {
    /// int: The greatest depth of any worker, in blocks; 0 if no worker holds the first block.
    #[getter]
    fn depth(&self) -> u32 {
        self.found().depth(self.view)
    }

    /// int: The number of blocks in the query. No depth is greater.
    #[getter]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// int: The number of tokens in a block.
    #[getter]
    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    /// str: The unit of depths and length: "blocks".
    #[getter]
    fn unit(&self) -> &'static str {
        "blocks"
    }

    /// Match: The same answer with blocks of any tier counted, equal to within("external").
    ///
    /// A worker's depth with any tier is at least its depth on the device, unless the worker uses one block hash for
    /// different blocks on the device and on another tier.
    #[getter]
    fn any_tier(slf: &Bound<'_, Self>) -> Self {
        Self::seen(slf, View::AnyTier)
    }

    /// The same answer with the blocks of all tiers counted, from "gpu" down to the given one.
    ///
    /// Args:
    ///     tier: The last tier that counts: "gpu", "cpu", "disk" or "external".
    ///
    /// Returns:
    ///     Match
    ///
    /// Raises:
    ///     InvalidTypeError: tier is not a str.
    ///     InvalidArgumentError: The tier is unknown.
    #[pyo3(signature = (tier))]
    fn within(slf: &Bound<'_, Self>, tier: TierName) -> Self {
        Self::seen(slf, tier.0.into())
    }

    /// The workers grouped by depth.
    ///
    /// Returns:
    ///     list of (depth in blocks, list of workers), deepest first. Each worker is named once, at the depth of its
    ///     best rank.
    fn levels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let levels = self.found().levels(self.view);
        PyList::new(py, levels.iter().map(|(depth, workers)| (*depth, strings(workers))))
    }

    /// The depth of every worker.
    ///
    /// Returns:
    ///     dict of worker to depth in blocks, the best over its ranks.
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let scores = PyDict::new(py);
        for (worker, depth) in self.found().scores(self.view) {
            scores.set_item(&**worker, depth)?;
        }
        Ok(scores)
    }

    /// The depth of every rank of every worker.
    ///
    /// Returns:
    ///     dict of (worker, rank) to depth in blocks.
    fn by_rank<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let depths = PyDict::new(py);
        for (worker, rank, depth) in self.found().by_rank(self.view) {
            depths.set_item((&**worker, rank), depth)?;
        }
        Ok(depths)
    }

    /// The workers with the greatest depths.
    ///
    /// Args:
    ///     top_k: Maximum number of workers returned, at least 0.
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
        let among = among.map(names).transpose()?;
        let among: Option<Vec<&str>> = among.as_ref().map(|names| names.iter().map(|name| &**name).collect());
        let best = self.found().best(self.view, top_k.0, among.as_deref());
        PyList::new(py, best.iter().map(|(worker, depth)| (&***worker, *depth)))
    }

    fn __repr__(&self) -> String {
        let workers = self.found().scores(self.view).len();
        format!("Match(depth={}, length={}, workers={})", self.depth(), self.length, grouped(workers as u64))
    }
}

fn strings<'m>(workers: &[&'m Arc<str>]) -> Vec<&'m str> {
    workers.iter().map(|worker| &***worker).collect()
}
