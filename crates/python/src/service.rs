//! `kvatlas._native.Service`: the index service within the Python process. Calls wait detached from the interpreter.

use std::path::PathBuf;
use std::time::Duration;

use kvatlas_follow::Error;
use kvatlas_follow::sites::KeyspaceDigest;
use kvatlas_follow::snapshot::compare;
use kvatlas_service::{Config, Service as Inner};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::scalars::duration;

/// Digest of a site with its model, routing group, and block size in tokens.
type SiteDigest<'py> = (String, String, u32, Bound<'py, PyBytes>);

/// The index service within this process, for kvatlas.Service: settings, registrations and answers are JSON.
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

    /// str: The address at which HTTP is served, "host:port".
    #[getter]
    fn address(&self) -> String {
        self.inner.address().to_string()
    }

    /// str or None: The second address of /health, /ready and /metrics, "host:port"; None if there is none.
    #[getter]
    fn admin_address(&self) -> Option<String> {
        self.inner.admin_address().map(|address| address.to_string())
    }

    /// Registers a worker's stream of events.
    ///
    /// Args:
    ///     registration_json: The body of POST /register.
    ///     announced_by: Host name or address of the engine that announced the stream; None means the configuration.
    ///
    /// Returns:
    ///     bool: True if the stream is new.
    ///
    /// Raises:
    ///     ServiceError: The registration is refused.
    #[pyo3(signature = (registration_json, announced_by=None))]
    fn register(&self, py: Python<'_>, registration_json: &str, announced_by: Option<&str>) -> PyResult<bool> {
        py.detach(|| self.inner.follower().register(registration_json, announced_by))
            .map_err(|error| errors::service(&error))
    }

    /// Checks that streams may connect to an endpoint, by the setting streams.allow.
    ///
    /// Args:
    ///     endpoint: The endpoint, tcp://host:port or ipc://path.
    ///     announced_by: Host name or address of the engine that announced it.
    ///
    /// Raises:
    ///     ServiceError: The endpoint is not allowed or not valid.
    fn check_allowed(&self, endpoint: &str, announced_by: &str) -> PyResult<()> {
        self.inner.follower().check_allowed(endpoint, announced_by).map_err(|error| errors::service(&error))
    }

    /// Changes the settings that can change without a restart.
    ///
    /// Args:
    ///     settings_json: JSON with the sections http and log.
    ///
    /// Raises:
    ///     ServiceError: A setting is invalid; nothing was changed.
    fn change(&self, py: Python<'_>, settings_json: &str) -> PyResult<()> {
        py.detach(|| self.inner.change(settings_json)).map_err(|error| errors::service(&error))
    }

    /// Reads the keys and the certificate from their files again.
    ///
    /// Raises:
    ///     ServiceError: A file cannot be read or is invalid. The earlier keys and certificate stay in use.
    fn reload(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.reload()).map_err(|error| errors::service(&error))
    }

    /// Ends the event streams of a worker, and drops the blocks that it holds.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank; None means all.
    ///
    /// Returns:
    ///     int: The number of streams that ended.
    ///
    /// Raises:
    ///     ServiceError: The worker is not registered, or has no such rank.
    #[pyo3(signature = (worker, rank=None))]
    fn unregister(&self, py: Python<'_>, worker: &str, rank: Option<u32>) -> PyResult<usize> {
        py.detach(|| self.inner.follower().unregister(worker, rank)).map_err(|error| errors::service(&error))
    }

    /// Reports the progress of discovery with an engine, or with a configured stream.
    ///
    /// Args:
    ///     report_json: JSON with worker, rank, url, state, code and reason.
    ///
    /// Raises:
    ///     ServiceError: The report is invalid.
    fn report_engine(&self, py: Python<'_>, report_json: &str) -> PyResult<()> {
        py.detach(|| self.inner.follower().report_engine(report_json)).map_err(|error| errors::service(&error))
    }

    /// Reports the state of a source of engines, from which discovery learns of them.
    ///
    /// Args:
    ///     report_json: JSON with source, state, code, reason, members and counts.
    ///
    /// Raises:
    ///     ServiceError: The report is invalid.
    fn report_source(&self, py: Python<'_>, report_json: &str) -> PyResult<()> {
        py.detach(|| self.inner.follower().sources().report(report_json)).map_err(|error| errors::service(&error))
    }

    /// Stops reporting an engine, or a configured stream.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank of the stream; None means an engine.
    ///
    /// Returns:
    ///     bool: True if it was reported before.
    #[pyo3(signature = (worker, rank=None))]
    fn forget_engine(&self, py: Python<'_>, worker: &str, rank: Option<u32>) -> bool {
        py.detach(|| self.inner.follower().forget_engine(worker, rank))
    }

    /// The block size of most blocks in a worker's events, if it differs from the registered one.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///
    /// Returns:
    ///     int or None: The number of tokens in a block; None if the registered size is right or the size in events is
    ///         unknown.
    fn other_block_size(&self, py: Python<'_>, worker: &str) -> Option<u32> {
        py.detach(|| self.inner.follower().other_block_size(worker))
    }

    /// The workers whose event streams have shown a restart of the engine since the last call.
    ///
    /// Returns:
    ///     list[str]: The workers' names, each once.
    fn restarted(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.inner.follower().restarted().iter().map(ToString::to_string).collect())
    }

    /// Notes that the keys of a pool's store are being asked for.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///
    /// Returns:
    ///     bool: Whether a pool of this name follows a store.
    fn begin_pool_look(&self, py: Python<'_>, pool: &str) -> bool {
        py.detach(|| self.inner.follower().begin_pool_look(pool))
    }

    /// Applies the keys of a pool's store, as asked for after begin_pool_look().
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     keys: The keys, one in a line; None if they could not be got.
    ///     publishes: Whether the store says that it publishes events.
    ///
    /// Returns:
    ///     str or None: What was found, JSON; None without keys.
    #[pyo3(signature = (pool, keys, publishes))]
    fn end_pool_look(&self, py: Python<'_>, pool: &str, keys: Option<&[u8]>, publishes: bool) -> Option<String> {
        py.detach(|| self.inner.follower().end_pool_look(pool, keys, publishes))
    }

    /// Tells if the keys of a pool's store are needed at once, as events of the store were missed.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///
    /// Returns:
    ///     bool: Whether they are.
    fn wants_pool_look(&self, py: Python<'_>, pool: &str) -> bool {
        py.detach(|| self.inner.follower().wants_pool_look(pool))
    }

    /// The engines and configured streams that discovery watches.
    ///
    /// Returns:
    ///     str: The answer of GET /engines, JSON.
    fn engines(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.follower().engines().to_string())
    }

    /// The workers and their streams.
    ///
    /// Returns:
    ///     str: The answer of GET /workers, JSON.
    fn workers(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.follower().workers().to_string())
    }

    /// Returns the reasons why the service is not ready yet.
    ///
    /// Returns:
    ///     str or None: The reasons, JSON; None if the service is ready.
    fn ready(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.inner.follower().waiting().map(|waiting| waiting.to_string()))
    }

    /// Removes one reason for not being ready.
    ///
    /// Args:
    ///     hold: The reason's name.
    ///
    /// Returns:
    ///     bool: True if the service was waiting for this reason.
    fn release(&self, hold: &str) -> bool {
        self.inner.follower().fleet().release(hold)
    }

    /// Loads the snapshot of another service, for which the streams have waited.
    ///
    /// Args:
    ///     file: The snapshot's file.
    ///     url: The URL from which it was fetched.
    ///
    /// Returns:
    ///     int: The number of streams in the snapshot.
    ///
    /// Raises:
    ///     ServiceError: The snapshot cannot be used; the streams begin without it.
    fn load_snapshot(&self, py: Python<'_>, file: PathBuf, url: &str) -> PyResult<u64> {
        py.detach(|| self.inner.follower().load_snapshot(&file, url)).map_err(|error| errors::service(&error))
    }

    /// Lets the streams begin without the snapshot of another service.
    ///
    /// Args:
    ///     why: The reason why there is no snapshot; None without a reason.
    #[pyo3(signature = (why=None))]
    fn no_snapshot(&self, py: Python<'_>, why: Option<&str>) {
        py.detach(|| self.inner.follower().no_snapshot(why));
    }

    /// Begins a listing of what is in a pool that LMCache fills, before its first page is asked for.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///
    /// Raises:
    ///     ServiceError: LMCache fills no pool of this name.
    fn begin_listing(&self, py: Python<'_>, pool: &str) -> PyResult<()> {
        let service = self.inner.follower();
        py.detach(|| service.begin_listing(pool)).map_err(|error| errors::service(&error))
    }

    /// Takes in a page of a listing.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     offset: Position of the page's first key.
    ///     limit: Keys that were asked for.
    ///     page: The coordinator's answer.
    ///
    /// Returns:
    ///     int or None: Position of the next page; None if this was the last one.
    ///
    /// Raises:
    ///     ServiceError: The page cannot be used, or there is no such pool or listing.
    fn add_listing_page(
        &self,
        py: Python<'_>,
        pool: &str,
        offset: u64,
        limit: u64,
        page: &[u8],
    ) -> PyResult<Option<u64>> {
        let service = self.inner.follower();
        py.detach(|| service.add_listing_page(pool, offset, limit, page)).map_err(|error| errors::service(&error))
    }

    /// Ends a listing that cannot be completed.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     why: The error that prevented it.
    ///
    /// Raises:
    ///     ServiceError: LMCache fills no pool of this name.
    fn fail_listing(&self, py: Python<'_>, pool: &str, why: &str) -> PyResult<()> {
        let service = self.inner.follower();
        py.detach(|| service.fail_listing(pool, why)).map_err(|error| errors::service(&error))
    }

    /// Makes a digest of the changes in each keyspace since the last call, for the index above many sites.
    ///
    /// Args:
    ///     site: The name of this site.
    ///     whole: Keyspaces whose whole contents are wanted: pairs of model and routing group.
    ///
    /// Returns:
    ///     list of tuples: model, routing group, block size in tokens, and the digest as bytes.
    ///
    /// Raises:
    ///     ServiceError: The site's name is invalid.
    #[pyo3(signature = (site, whole=Vec::new()))]
    #[pyo3(text_signature = "($self, site, whole=())")]
    fn site_digests<'py>(
        &self,
        py: Python<'py>,
        site: &str,
        whole: Vec<(String, String)>,
    ) -> PyResult<Vec<SiteDigest<'py>>> {
        let digests =
            py.detach(|| self.inner.follower().site_digests(site, &whole)).map_err(|error| errors::service(&error))?;
        let tuple = |it: KeyspaceDigest| (it.model, it.routing_group, it.block_size, PyBytes::new(py, &it.bytes));
        Ok(digests.into_iter().map(tuple).collect())
    }

    /// Approximate number of cached tokens that only one worker holds, for each worker: these would be lost with it.
    ///
    /// Returns:
    ///     str: JSON with a number by worker; workers whose holdings are uncertain are left out.
    ///
    /// Raises:
    ///     ServiceError: The tokens cannot be counted.
    fn sole_tokens(&self, py: Python<'_>) -> PyResult<String> {
        let service = self.inner.follower();
        let count = || service.sole_tokens().map(|found| serde_json::json!(found).to_string());
        py.detach(count).map_err(|error| errors::service(&error))
    }

    /// Reports "not ready" from now on, while requests are still answered.
    fn leave(&self) {
        self.inner.follower().leave();
    }

    /// Reports "not ready", continues for a delay, then accepts no more connections, finishes open requests, and
    /// closes.
    ///
    /// Further calls do nothing.
    ///
    /// Args:
    ///     timeout: Time limit in seconds for open requests, at least 0.
    ///     delay: Time in seconds before the listener closes, at least 0.
    ///
    /// Returns:
    ///     bool: False if the time limit passed and requests were cut off.
    ///
    /// Raises:
    ///     InvalidArgumentError: timeout or delay is negative or not a number.
    #[pyo3(signature = (timeout, delay=0.0))]
    fn drain(&self, py: Python<'_>, timeout: f64, delay: f64) -> PyResult<bool> {
        let (timeout, delay) = (duration("timeout", timeout)?, duration("delay", delay)?);
        Ok(py.detach(|| self.inner.drain(timeout, delay)))
    }

    /// Closes the service at once. Further calls do nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.drain(Duration::ZERO, Duration::ZERO));
    }
}

/// Compares two snapshots of services, block by block.
///
/// Args:
///     a: The file of one snapshot.
///     b: The file of the other snapshot.
///
/// Returns:
///     str: A JSON list with the blocks of each rank in both snapshots, and their differences.
///
/// Raises:
///     ServiceError: A file cannot be read.
#[pyfunction]
pub(crate) fn compare_snapshots(py: Python<'_>, a: PathBuf, b: PathBuf) -> PyResult<String> {
    let compared = py.detach(|| {
        let read = |file: &PathBuf| {
            let cannot = |error| Error::Snapshot { message: format!("{}: {error}", file.display()) };
            std::fs::read(file).map_err(cannot)
        };
        let (ours, theirs) = (read(&a)?, read(&b)?);
        compare([(&a.display().to_string(), &ours), (&b.display().to_string(), &theirs)])
    });
    compared.map_err(|error| errors::service(&error))
}
