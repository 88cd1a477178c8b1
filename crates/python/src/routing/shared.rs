//! The decision core, as a `Router` and its `Decision`s share it.

use std::collections::HashMap;

use kvatlas_routing::{self as core, Depths, WorkerId};
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use super::arguments::{Now, policy_error, unknown, workers};
use super::{Failure, Names};
use crate::scalars::number;

/// The decision core, and what its calls need besides.
pub(super) struct SharedRouter {
    core: Mutex<Inner>,
    /// The objects of requests that wait, by number: each a `Decision`.
    waiting: Mutex<HashMap<u64, Py<PyAny>>>,
    failure: Failure,
    pub(super) names: Names,
    clock: Py<PyAny>,
}

/// The decision core, and depths that are kept for their memory.
pub(super) struct Inner {
    pub(super) router: core::Router,
    pub(super) depths: Depths,
    /// The requests reported to each other router, by that router's number.
    pub(super) told: HashMap<u64, core::RequestReport>,
}

impl SharedRouter {
    pub(super) fn new(router: core::Router, failure: Failure, names: Names, clock: Py<PyAny>) -> Self {
        let core = Mutex::new(Inner { router, depths: Depths::unknown(), told: HashMap::new() });
        Self { core, waiting: Mutex::default(), failure, names, clock }
    }

    pub(super) fn inner(&self, py: Python<'_>) -> MutexGuard<'_, Inner> {
        // Attached threads that wait let others run: a policy in Python may need the interpreter meanwhile.
        self.core.lock_py_attached(py)
    }

    pub(super) fn time(&self, py: Python<'_>, now: Option<Now>) -> PyResult<f64> {
        match now {
            Some(now) => Ok(now.0),
            None => {
                let told = self.clock.bind(py).call0()?;
                number(&told, "what clock returns", "a finite number of seconds", |_| true)
            }
        }
    }

    pub(super) fn with<T>(
        &self,
        py: Python<'_>,
        now: Option<Now>,
        work: impl FnOnce(&mut core::Router, f64) -> T,
    ) -> PyResult<T> {
        let now = self.time(py, now)?;
        let done = work(&mut self.inner(py).router, now);
        self.check(py)?;
        Ok(done)
    }

    pub(super) fn waiting(&self, py: Python<'_>) -> MutexGuard<'_, HashMap<u64, Py<PyAny>>> {
        self.waiting.lock_py_attached(py)
    }

    /// Forgets that a request waits.
    pub(super) fn forget(&self, py: Python<'_>, id: core::RequestId) {
        let decision = self.waiting(py).remove(&id.0);
        drop(decision);
    }

    pub(super) fn check(&self, py: Python<'_>) -> PyResult<()> {
        let failed = self.failure.lock_py_attached(py).take();
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
        let (names, mut ids) = (workers(allowed, "allowed")?, Vec::new());
        let inner = self.inner(py);
        for (name, rank) in names {
            match rank {
                Some(rank) => ids.extend(inner.router.worker(&name, rank)),
                None => ids.extend(inner.router.ranks(&name)),
            }
        }
        Ok(Some(ids))
    }

    pub(super) fn add(&self, py: Python<'_>, name: &str, rank: u32, weight: f64, now: f64) {
        let id = self.inner(py).router.add_worker(name, rank, weight, now);
        let mut names = self.names.lock_py_attached(py);
        let at = id.0 as usize;
        if names.len() <= at {
            names.resize(at + 1, (String::new(), 0));
        }
        names[at] = (name.to_owned(), rank);
    }
}
