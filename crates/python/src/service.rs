//! `kvatlas._native.Service`: the service in this process. Calls wait detached from the interpreter.

use std::time::Duration;

use kvatlas_service::{Config, Service as Inner};
use pyo3::prelude::*;

use crate::errors;

#[pyclass(module = "kvatlas._native", frozen)]
pub(crate) struct Service {
    inner: Inner,
}

#[pymethods]
impl Service {
    #[new]
    fn new(py: Python<'_>, settings_json: &str) -> PyResult<Self> {
        let start = || Config::from_json(settings_json).and_then(Inner::start);
        py.detach(start).map(|inner| Self { inner }).map_err(|error| errors::service(&error))
    }

    #[getter]
    fn address(&self) -> String {
        self.inner.address().to_string()
    }

    #[getter]
    fn admin_address(&self) -> Option<String> {
        self.inner.admin_address().map(|address| address.to_string())
    }

    #[pyo3(signature = (registration_json, announced_by=None))]
    fn register(&self, py: Python<'_>, registration_json: &str, announced_by: Option<&str>) -> PyResult<bool> {
        py.detach(|| self.inner.register(registration_json, announced_by)).map_err(|error| errors::service(&error))
    }

    fn reload(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.reload()).map_err(|error| errors::service(&error))
    }

    #[pyo3(signature = (worker, rank=None))]
    fn unregister(&self, py: Python<'_>, worker: &str, rank: Option<u32>) -> PyResult<usize> {
        py.detach(|| self.inner.unregister(worker, rank)).map_err(|error| errors::service(&error))
    }

    fn workers(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.workers().to_string())
    }

    fn ready(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.inner.waiting().map(|waiting| waiting.to_string()))
    }

    fn release(&self, hold: &str) -> bool {
        self.inner.fleet().release(hold)
    }

    fn leave(&self) {
        self.inner.leave();
    }

    #[pyo3(signature = (timeout, delay=0.0))]
    fn drain(&self, py: Python<'_>, timeout: f64, delay: f64) -> PyResult<bool> {
        let seconds = |name: &str, seconds| {
            let wanted = || errors::argument("out_of_range", &format!("{name} must be a number of seconds from 0 on"));
            Duration::try_from_secs_f64(seconds).map_err(|_| wanted())
        };
        let (timeout, delay) = (seconds("timeout", timeout)?, seconds("delay", delay)?);
        Ok(py.detach(|| self.inner.drain(timeout, delay)))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.drain(Duration::ZERO, Duration::ZERO));
    }
}
