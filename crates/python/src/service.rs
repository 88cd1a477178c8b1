//! `kvatlas._native.Service`: the service in this process. Calls wait detached from the interpreter.

use std::time::Duration;

use kvatlas_service::{Config, Service as Inner};
use pyo3::prelude::*;

use crate::errors;

/// The service in this process, as kvatlas.Service uses it: settings, registrations and answers are JSON.
///
/// Calls release the GIL while they wait.
///
/// Args:
///     settings_json: The settings, a JSON object.
///
/// Raises:
///     ServiceError: A setting is invalid, or the service cannot be started.
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

    /// str: Where HTTP is served, "host:port".
    #[getter]
    fn address(&self) -> String {
        self.inner.address().to_string()
    }

    /// Registers a worker's stream of events.
    ///
    /// Args:
    ///     registration_json: The body of POST /register.
    ///
    /// Returns:
    ///     bool: Whether the stream is new.
    ///
    /// Raises:
    ///     ServiceError: The registration is refused.
    fn register(&self, py: Python<'_>, registration_json: &str) -> PyResult<bool> {
        py.detach(|| self.inner.register(registration_json)).map_err(|error| errors::service(&error))
    }

    /// Ends the streams of a worker, and drops what it holds.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank; None means all.
    ///
    /// Returns:
    ///     int: How many streams ended.
    ///
    /// Raises:
    ///     ServiceError: The worker is not registered, or has no such rank.
    #[pyo3(signature = (worker, rank=None))]
    fn unregister(&self, py: Python<'_>, worker: &str, rank: Option<u32>) -> PyResult<usize> {
        py.detach(|| self.inner.unregister(worker, rank)).map_err(|error| errors::service(&error))
    }

    /// The workers and their streams.
    ///
    /// Returns:
    ///     str: The answer of GET /workers, JSON.
    fn workers(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.workers().to_string())
    }

    /// What is not ready yet.
    ///
    /// Returns:
    ///     str or None: What the service waits for, JSON; None if it is ready.
    fn ready(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.inner.waiting().map(|waiting| waiting.to_string()))
    }

    /// Removes one reason for not being ready.
    ///
    /// Args:
    ///     hold: The reason's name.
    ///
    /// Returns:
    ///     bool: Whether the service waited for it.
    fn release(&self, hold: &str) -> bool {
        self.inner.fleet().release(hold)
    }

    /// Accepts no more connections, finishes open requests, and closes. Draining again does nothing.
    ///
    /// Args:
    ///     timeout: Time limit in seconds, at least 0.
    ///
    /// Returns:
    ///     bool: False if the time limit passed and requests were cut off.
    ///
    /// Raises:
    ///     InvalidArgumentError: timeout is negative or not a number.
    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|_| errors::argument("out_of_range", "timeout must be at least 0 seconds"))?;
        Ok(py.detach(|| self.inner.drain(timeout)))
    }

    /// Closes at once. Closing again does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.drain(Duration::ZERO));
    }
}
