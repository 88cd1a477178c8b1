//! What `Router` makes of its arguments, and what its methods share.

use std::sync::{MutexGuard, PoisonError};

use kvatlas_routing::{self as core, Config, Depth, Depths, Options, WorkerId};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::{PyDict, PyMapping, PyString, PyType};
use xxhash_rust::xxh3::xxh3_64;

use super::router::{Inner, Router};
use crate::errors;
use crate::index_match::Match;
use crate::scalars::{describe, string};

impl Router {
    pub(super) fn inner(&self, py: Python<'_>) -> MutexGuard<'_, Inner> {
        // Attached threads that wait let others run: a policy in Python may need the interpreter meanwhile.
        self.core.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn time(&self, py: Python<'_>, now: Option<f64>) -> PyResult<f64> {
        match now {
            Some(now) => Ok(now),
            None => self.clock.bind(py).call0()?.extract(),
        }
    }

    pub(crate) fn with<T>(
        &self,
        py: Python<'_>,
        now: Option<f64>,
        work: impl FnOnce(&mut core::Router, f64) -> T,
    ) -> PyResult<T> {
        let now = self.time(py, now)?;
        Ok(work(&mut self.inner(py).router, now))
    }

    /// A request that waited does not any more.
    pub(crate) fn forget(&self, py: Python<'_>, id: core::RequestId) {
        self.waiting.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).remove(&id.0);
    }

    pub(super) fn check(&self, py: Python<'_>) -> PyResult<()> {
        let failed = self.failure.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).take();
        let Some(error) = failed else { return Ok(()) };
        let name = self.inner(py).router.policy().to_owned();
        let what = error.value(py);
        let message = format!("policy {name:?} failed: {}: {what}", what.get_type().name()?);
        let raised = policy_error(py, &message, "policy_failed")?;
        raised.set_cause(py, Some(error));
        Err(raised)
    }

    pub(super) fn known(&self, py: Python<'_>, name: &str, rank: u32) -> PyResult<WorkerId> {
        self.inner(py).router.worker(name, rank).ok_or_else(|| unknown(name, rank))
    }

    pub(super) fn allowed(
        &self,
        py: Python<'_>,
        allowed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Vec<WorkerId>>> {
        let Some(allowed) = allowed else { return Ok(None) };
        let mut workers = Vec::new();
        for item in allowed.try_iter()? {
            let item = item?;
            let inner = self.inner(py);
            if item.is_instance_of::<PyString>() {
                workers.extend(inner.router.ranks(string(&item, "allowed")?));
            } else {
                let (name, rank): (String, u32) = item.extract()?;
                workers.extend(inner.router.worker(&name, rank));
            }
        }
        Ok(Some(workers))
    }

    pub(super) fn add(&self, py: Python<'_>, name: &str, rank: u32, weight: f64, now: f64) {
        let id = self.inner(py).router.add_worker(name, rank, weight, now);
        let mut names = self.names.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let at = id.0 as usize;
        if names.len() <= at {
            names.resize(at + 1, (String::new(), 0));
        }
        names[at] = (name.to_owned(), rank);
    }
}

pub(super) fn fill(router: &core::Router, found: &Bound<'_, PyAny>, depths: &mut Depths) -> PyResult<()> {
    if let Ok(found) = found.cast::<Match>() {
        router.look_up(found.get().found(), depths);
        return Ok(());
    }
    depths.begin();
    for (name, rank, depth) in found_pairs(found)? {
        if let Some(id) = router.worker(&name, rank) {
            depths.set(id.0, Depth { device: depth, host: depth, any: depth });
        }
    }
    Ok(())
}

/// Worker, rank and depth of what a lookup returned: something with `scores()`, or a mapping.
pub(super) fn found_pairs(found: &Bound<'_, PyAny>) -> PyResult<Vec<(String, u32, u32)>> {
    let py = found.py();
    let scores = match found.getattr_opt(intern!(py, "scores"))? {
        Some(scores) => scores.call0()?,
        None => found.clone(),
    };
    let scores = scores.cast::<PyMapping>().map_err(|_| {
        errors::wrong_type(&format!("match must be a Match or a dict of worker to depth, got {}", describe(found)))
    })?;
    let mut pairs = Vec::new();
    for item in scores.items()?.iter() {
        let (worker, depth): (Bound<'_, PyAny>, u32) = item.extract()?;
        if worker.is_instance_of::<PyString>() {
            pairs.push((worker.extract()?, 0, depth));
        } else {
            let (name, rank) = worker.extract()?;
            pairs.push((name, rank, depth));
        }
    }
    Ok(pairs)
}

pub(super) fn session_number(session: &Bound<'_, PyAny>) -> PyResult<u64> {
    if session.is_instance_of::<PyString>() {
        return Ok(xxh3_64(string(session, "session")?.as_bytes()));
    }
    session
        .extract()
        .map_err(|_| errors::wrong_type(&format!("session must be a str or an int, got {}", describe(session))))
}

pub(super) fn unknown(name: &str, rank: u32) -> PyErr {
    errors::argument("unknown_worker", &format!("the router has no worker {name:?} with rank {rank}"))
}

pub(super) fn json(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<String> {
    match options {
        None => Ok(String::new()),
        Some(options) => py.import("json")?.call_method1("dumps", (options,))?.extract(),
    }
}

pub(super) fn policy_error(py: Python<'_>, message: &str, code: &str) -> PyResult<PyErr> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(py, "kvatlas.errors", "PolicyError")?;
    Ok(PyErr::from_value(class.call1((message, code))?))
}

pub(super) fn config(
    py: Python<'_>,
    seed: u64,
    block_size: u32,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Config> {
    let mut options = Options::from_json(&json(py, settings)?).map_err(|error| errors::config(&error.message))?;
    Config::from_options(&mut options, seed, block_size)
        .and_then(|config| options.finish("the router").map(|()| config))
        .map_err(|error| errors::config(&error.message))
}
