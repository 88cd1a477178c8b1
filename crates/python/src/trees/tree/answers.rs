//! The answers of the trees: one tenant with counts, or every tenant with its depth.

use std::sync::Arc;

use kvatlas_trees::tree::PrefixMatch;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::scalars::TopK;
use crate::stats::grouped;
use crate::worker_depths::WorkerDepths;

/// The tenant with the longest prefix, and its length. Returned by the matches of StringTree and TokenTree.
///
/// Lengths count the characters of a text (Unicode scalar values) or tokens.
#[pyclass(frozen, eq, hash, module = "kvatlas._native")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct TreeMatch {
    tenant: Option<Arc<str>>,
    matched: usize,
    input: usize,
    paged: usize,
}

impl From<&PrefixMatch> for TreeMatch {
    fn from(found: &PrefixMatch) -> Self {
        Self { tenant: found.tenant.clone(), matched: found.matched, input: found.input, paged: found.paged }
    }
}

#[pymethods]
impl TreeMatch {
    /// str or None: The tenant that has held the deepest matched node for longest; None if nothing matched.
    #[getter]
    fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// int: The length of the longest prefix that any tenant has.
    #[getter]
    fn matched(&self) -> usize {
        self.matched
    }

    /// int: The length of the query.
    #[getter]
    fn input(&self) -> usize {
        self.input
    }

    /// int: The length that could have matched: whole pages of the input, or the whole text.
    #[getter]
    fn paged(&self) -> usize {
        self.paged
    }

    /// float: The ratio matched / input; 0.0 for an empty input.
    #[getter]
    fn hit_ratio(&self) -> f64 {
        ratio(self.matched, self.input)
    }

    /// float: The ratio matched / paged: 1.0 if everything that could match did; 0.0 if nothing could.
    #[getter]
    fn paged_ratio(&self) -> f64 {
        ratio(self.matched, self.paged)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let tenant = self.tenant().into_pyobject(py)?.repr()?;
        Ok(format!("TreeMatch(tenant={tenant}, matched={}, input={}, paged={})", self.matched, self.input, self.paged))
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The depth to which each tenant has a prompt. Returned by StringTree.find and TokenTree.find.
///
/// Lengths count characters (Unicode scalar values), or tokens in whole pages; `unit` says which. It is a
/// kvatlas.types.PrefixMatch.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct TreeDepths {
    ranked: WorkerDepths,
    length: usize,
    unit: &'static str,
}

impl TreeDepths {
    pub(super) fn new(depths: Vec<(Arc<str>, usize)>, length: usize, unit: &'static str) -> Self {
        Self { ranked: WorkerDepths::new(depths), length, unit }
    }
}

#[pymethods]
impl TreeDepths {
    /// int: The greatest depth of any tenant; 0 if no tenant has any of it.
    #[getter]
    fn depth(&self) -> usize {
        self.ranked.depth()
    }

    /// int: The length of the prompt in whole pages. No depth is greater.
    #[getter]
    fn length(&self) -> usize {
        self.length
    }

    /// str: The unit of depths and length: "characters" of a StringTree, "tokens" of a TokenTree.
    #[getter]
    fn unit(&self) -> &'static str {
        self.unit
    }

    /// The tenants grouped by depth.
    ///
    /// Returns:
    ///     list of (depth, list of tenants by name), deepest first.
    fn levels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.ranked.levels(py)
    }

    /// The depth of every tenant that has anything.
    ///
    /// Returns:
    ///     dict of tenant to depth, deepest first, equal depths by name.
    pub(super) fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.ranked.scores(py)
    }

    /// The deepest tenants.
    ///
    /// Args:
    ///     top_k: How many, at least 0.
    ///     among: Consider only these tenants, an iterable of str; None for all. Names not in the answer are ignored.
    ///
    /// Returns:
    ///     list of (tenant, depth), at most top_k, deepest first, equal depths by name.
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
        let (depth, length, unit) = (self.ranked.depth(), self.length, self.unit);
        format!(
            "TreeDepths(depth={depth}, length={length}, unit='{unit}', tenants={})",
            grouped(self.ranked.len() as u64)
        )
    }
}
