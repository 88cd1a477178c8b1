//! Names with their depths: the common part of matches that consist of one depth for each name.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::scalars::{TopK, names};

/// Names with their depths, deepest first.
pub(crate) struct WorkerDepths(Vec<(Arc<str>, usize)>);

impl WorkerDepths {
    /// Sorts names by depth, deepest first. Names of equal depth keep their order.
    pub(crate) fn new(depths: impl IntoIterator<Item = (Arc<str>, usize)>) -> Self {
        let mut depths: Vec<_> = depths.into_iter().collect();
        depths.sort_by_key(|&(_, depth)| Reverse(depth));
        Self(depths)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn depth(&self) -> usize {
        self.0.first().map_or(0, |&(_, depth)| depth)
    }

    pub(crate) fn levels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let levels = self.0.chunk_by(|one, next| one.1 == next.1);
        PyList::new(py, levels.map(|level| (level[0].1, level.iter().map(|(name, _)| &**name).collect::<Vec<_>>())))
    }

    pub(crate) fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let scores = PyDict::new(py);
        for (name, depth) in &self.0 {
            scores.set_item(&**name, depth)?;
        }
        Ok(scores)
    }

    pub(crate) fn best<'py>(
        &self,
        py: Python<'py>,
        top_k: TopK,
        among: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let among: Option<HashSet<String>> = among.map(names).transpose()?.map(|names| names.into_iter().collect());
        let allowed = |name: &str| among.as_ref().is_none_or(|among| among.contains(name));
        let best: Vec<_> = self.0.iter().filter(|(name, _)| allowed(name)).take(top_k.0).collect();
        PyList::new(py, best.into_iter().map(|(name, depth)| (&**name, *depth)))
    }
}
