//! `kvatlas._native.RouterServer`: the router within the Python process. Calls wait detached from the interpreter.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvatlas_follow::Follower;
use kvatlas_router::config::Handover;
use kvatlas_router::{Config, DrainedBy, FleetAnswer, FleetKeeper, FleetRequest, Router as Inner, inherited};
use kvatlas_routing::BoxedPolicy;
use pyo3::prelude::*;

use crate::errors;
use crate::router_policy::{GuardedPolicy, learn_names};
use crate::routing::{Names, policies};
use crate::scalars::duration;

/// The router within this process, for kvatlas.router.Router: settings, engines and answers are JSON.
///
/// If the router embeds an index service, that service handles the events. Calls release the GIL while they wait.
///
/// Args:
///     settings_json: The settings, a JSON object.
///     policy: An object with choose(request, candidates) -> row; None for the policy named in the settings.
///     keeper: A function that makes the changes of the fleet that clients request, called from other threads until the
///         router closes. Its argument is a request, its return value the answer, both JSON. None if clients cannot
///         change the fleet.
///
/// Raises:
///     ServiceError: A setting is invalid, or the router cannot be started.
///     PolicyError: The policy is unknown, or has no option of a given name.
#[pyclass(module = "kvatlas._native", frozen)]
pub(crate) struct RouterServer {
    inner: Inner,
    names: Names,
}

impl RouterServer {
    fn learn(&self) {
        learn_names(&self.names, &self.inner.workers());
    }

    fn service(&self) -> PyResult<&Follower> {
        let none = || errors::router(&kvatlas_router::Error::config("this router does not follow events itself"));
        self.inner.service().ok_or_else(none)
    }
}

/// A Python function that changes the fleet on clients' requests, from JSON to JSON.
struct PythonKeeper(Py<PyAny>);

impl FleetKeeper for PythonKeeper {
    fn answer(&self, request: &FleetRequest) -> FleetAnswer {
        let ask = |py: Python<'_>| {
            let asked = serde_json::to_string(request).map_err(|error| error.to_string())?;
            let answered = self.0.call1(py, (asked,)).and_then(|answer| answer.extract::<String>(py));
            let answered = answered.map_err(|error| error.to_string())?;
            serde_json::from_str(&answered).map_err(|error| error.to_string())
        };
        Python::attach(ask).unwrap_or_else(|why: String| {
            let message = Some(format!("internal error: {why}"));
            FleetAnswer { status: 500, code: Some("internal".to_owned()), message, ..FleetAnswer::default() }
        })
    }
}

#[pymethods]
impl RouterServer {
    #[new]
    #[pyo3(signature = (settings_json, policy=None, keeper=None))]
    fn new(
        py: Python<'_>,
        settings_json: &str,
        policy: Option<Bound<'_, PyAny>>,
        keeper: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let names = Names::default();
        let own = policy.map(|policy| GuardedPolicy::new(&policy, names.clone())).transpose()?;
        let start = || {
            let config = Config::from_json(settings_json)?;
            let policy: BoxedPolicy = match own {
                Some(own) => Box::new(own),
                None => config.make_policy(&policies())?,
            };
            let keeper = keeper.map(|keeper| Arc::new(PythonKeeper(keeper)) as Arc<dyn FleetKeeper>);
            Inner::start_kept(config, policy, keeper)
        };
        let inner = py.detach(start).map_err(|error| errors::router(&error))?;
        let made = Self { inner, names };
        py.detach(|| made.learn());
        Ok(made)
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

    /// bool: True if this router receives engines' events itself.
    #[getter]
    fn follows(&self) -> bool {
        self.inner.service().is_some()
    }

    /// Adds an engine. An engine of the same name is replaced.
    ///
    /// Args:
    ///     engine_json: The engine's settings, JSON.
    ///     for_client: True if a client of the router adds the engine. It then cannot replace an engine at another URL,
    ///         gets the key of all engines only if its settings say so, and is refused beyond the maximum number of
    ///         engines.
    ///
    /// Raises:
    ///     ServiceError: The engine is refused.
    #[pyo3(signature = (engine_json, for_client=false))]
    fn set_engine(&self, py: Python<'_>, engine_json: &str, for_client: bool) -> PyResult<()> {
        let set = || {
            let set = match for_client {
                true => self.inner.set_engine_for_client(engine_json),
                false => self.inner.set_engine(engine_json),
            };
            set.map(|()| self.learn())
        };
        py.detach(set).map_err(|error| errors::router(&error))
    }

    /// Removes an engine. Requests that it is processing continue.
    ///
    /// Args:
    ///     name: The engine's name.
    ///
    /// Raises:
    ///     ServiceError: No engine has this name.
    fn remove_engine(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        py.detach(|| self.inner.remove_engine(name)).map_err(|error| errors::router(&error))
    }

    /// Stops sending new requests to an engine (drains it), or resumes.
    ///
    /// The operator and discovery decide independently: the engine gets requests again when neither drains it.
    ///
    /// Args:
    ///     name: The engine's name.
    ///     drained: True to stop, False to resume.
    ///     by_discovery: True for a decision of discovery, False for one of the operator.
    ///
    /// Raises:
    ///     ServiceError: No engine has this name.
    #[pyo3(signature = (name, drained, by_discovery=false))]
    fn drain_engine(&self, py: Python<'_>, name: &str, drained: bool, by_discovery: bool) -> PyResult<()> {
        let by = if by_discovery { DrainedBy::Discovery } else { DrainedBy::Operator };
        py.detach(|| self.inner.drain_engine(name, by, drained)).map_err(|error| errors::router(&error))
    }

    /// The engines and their state.
    ///
    /// Returns:
    ///     str: The answer of the router's GET /workers, JSON.
    fn state(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.workers().to_string())
    }

    /// The latest decisions of the router, newest first.
    ///
    /// Args:
    ///     limit: The maximum number of decisions.
    ///
    /// Returns:
    ///     str: The answer of GET /decisions, JSON.
    fn decisions(&self, py: Python<'_>, limit: usize) -> String {
        py.detach(|| self.inner.decisions(limit).to_string())
    }

    /// Registers a worker's stream of events.
    ///
    /// Args:
    ///     registration_json: The body of the service's POST /register.
    ///     announced_by: Host name or address of the engine that announced the stream; None means the configuration.
    ///
    /// Returns:
    ///     bool: True if the stream is new.
    ///
    /// Raises:
    ///     ServiceError: The registration is refused.
    #[pyo3(signature = (registration_json, announced_by=None))]
    fn register(&self, py: Python<'_>, registration_json: &str, announced_by: Option<&str>) -> PyResult<bool> {
        let service = self.service()?;
        py.detach(|| service.register(registration_json, announced_by)).map_err(|error| errors::service(&error))
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
        self.service()?.check_allowed(endpoint, announced_by).map_err(|error| errors::service(&error))
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
        let service = self.service()?;
        py.detach(|| service.unregister(worker, rank)).map_err(|error| errors::service(&error))
    }

    /// Changes the settings that can change without a restart.
    ///
    /// Args:
    ///     settings_json: JSON with the sections http and log.
    ///
    /// Raises:
    ///     ConfigError: A setting is invalid; nothing was changed.
    fn change(&self, py: Python<'_>, settings_json: &str) -> PyResult<()> {
        py.detach(|| self.inner.change(settings_json)).map_err(|error| errors::router(&error))
    }

    /// Reads the keys and the certificate from their files again.
    ///
    /// Raises:
    ///     ServiceError: A file cannot be read or is invalid. The earlier keys and certificate stay in use.
    fn reload(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.reload()).map_err(|error| errors::router(&error))
    }

    /// Reports the progress of discovery with an engine, or with a configured stream.
    ///
    /// Args:
    ///     report_json: JSON with worker, rank, url, state, code and reason.
    ///
    /// Raises:
    ///     ServiceError: The report is invalid.
    fn report_engine(&self, py: Python<'_>, report_json: &str) -> PyResult<()> {
        let service = self.service()?;
        py.detach(|| service.report_engine(report_json)).map_err(|error| errors::service(&error))
    }

    /// Reports the state of a source of engines, from which discovery learns of them.
    ///
    /// Args:
    ///     report_json: JSON with source, state, code, reason, members and counts.
    ///
    /// Raises:
    ///     ServiceError: The report is invalid.
    fn report_source(&self, py: Python<'_>, report_json: &str) -> PyResult<()> {
        py.detach(|| self.inner.sources().report(report_json)).map_err(|error| errors::service(&error))
    }

    /// Removes an engine, or a configured stream, from the list of engines that the router reports.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank of the stream; None means an engine.
    ///
    /// Returns:
    ///     bool: True if it was reported before.
    #[pyo3(signature = (worker, rank=None))]
    fn forget_engine(&self, py: Python<'_>, worker: &str, rank: Option<u32>) -> PyResult<bool> {
        let service = self.service()?;
        Ok(py.detach(|| service.forget_engine(worker, rank)))
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
        let service = self.inner.service()?;
        py.detach(|| service.other_block_size(worker))
    }

    /// The workers whose event streams have shown a restart of the engine since the last call.
    ///
    /// Returns:
    ///     list[str]: The workers' names, each once.
    fn restarted(&self, py: Python<'_>) -> Vec<String> {
        let restarted = |service: &Follower| service.restarted().iter().map(ToString::to_string).collect();
        self.inner.service().map_or_else(Vec::new, |service| py.detach(|| restarted(service)))
    }

    /// Notes that the keys of a pool's store are being asked for.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///
    /// Returns:
    ///     bool: Whether a pool of this name follows a store here.
    fn begin_pool_look(&self, py: Python<'_>, pool: &str) -> bool {
        self.inner.service().is_some_and(|service| py.detach(|| service.begin_pool_look(pool)))
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
        let service = self.inner.service()?;
        py.detach(|| service.end_pool_look(pool, keys, publishes))
    }

    /// Tells if the keys of a pool's store are needed at once, as events of the store were missed.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///
    /// Returns:
    ///     bool: Whether they are.
    fn wants_pool_look(&self, py: Python<'_>, pool: &str) -> bool {
        self.inner.service().is_some_and(|service| py.detach(|| service.wants_pool_look(pool)))
    }

    /// Approximate number of cached tokens that only one worker holds, for each worker: these would be lost with it.
    ///
    /// Returns:
    ///     str: JSON with a number by worker; workers whose holdings are uncertain are left out.
    ///
    /// Raises:
    ///     ServiceError: The tokens cannot be counted, or this router receives no events.
    fn sole_tokens(&self, py: Python<'_>) -> PyResult<String> {
        let service = self.service()?;
        let count = || service.sole_tokens().map(|found| serde_json::json!(found).to_string());
        py.detach(count).map_err(|error| errors::service(&error))
    }

    /// Replaces the objectives of a cluster, which give priorities to the requests that name them.
    ///
    /// Args:
    ///     priorities_json: JSON with the priorities of all objectives by name.
    ///
    /// Raises:
    ///     ServiceError: The JSON is invalid.
    fn set_objectives(&self, py: Python<'_>, priorities_json: &str) -> PyResult<()> {
        py.detach(|| self.inner.set_objectives(priorities_json)).map_err(|error| errors::router(&error))
    }

    /// The engines and configured streams that discovery watches.
    ///
    /// Returns:
    ///     str: The answer of the service's GET /engines, JSON; an empty list without a service.
    fn engines(&self, py: Python<'_>) -> String {
        let engines = |service: &Follower| py.detach(|| service.engines().to_string());
        self.inner.service().map_or_else(|| "[]".to_owned(), engines)
    }

    /// The workers whose events the router receives, and their streams.
    ///
    /// Returns:
    ///     str: The answer of the service's GET /workers, JSON; an empty list without a service.
    fn workers(&self, py: Python<'_>) -> String {
        let workers = |service: &Follower| py.detach(|| service.workers().to_string());
        self.inner.service().map_or_else(|| "[]".to_owned(), workers)
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
        let service = self.service()?;
        py.detach(|| service.load_snapshot(&file, url)).map_err(|error| errors::service(&error))
    }

    /// Lets the streams begin without the snapshot of another service.
    ///
    /// Args:
    ///     why: The reason why there is no snapshot; None without a reason.
    #[pyo3(signature = (why=None))]
    fn no_snapshot(&self, py: Python<'_>, why: Option<&str>) -> PyResult<()> {
        let service = self.service()?;
        py.detach(|| service.no_snapshot(why));
        Ok(())
    }

    /// Begins a listing of what is in a pool that LMCache fills, before its first page is asked for.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///
    /// Raises:
    ///     ServiceError: LMCache fills no pool of this name.
    fn begin_listing(&self, py: Python<'_>, pool: &str) -> PyResult<()> {
        let service = self.service()?;
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
        let service = self.service()?;
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
        let service = self.service()?;
        py.detach(|| service.fail_listing(pool, why)).map_err(|error| errors::service(&error))
    }

    /// Returns the reasons why the router is not ready yet.
    ///
    /// Returns:
    ///     str or None: The reasons, JSON; None if the router is ready.
    fn ready(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| {
            let router = self.inner.waiting();
            let service = self.inner.service().and_then(Follower::waiting);
            router.or(service).map(|waiting| waiting.to_string())
        })
    }

    /// Removes one reason for not being ready.
    ///
    /// Args:
    ///     hold: The reason's name.
    ///
    /// Returns:
    ///     bool: True if the router was waiting for this reason.
    fn release(&self, hold: &str) -> bool {
        self.inner.service().is_some_and(|service| service.fleet().release(hold))
    }

    /// Reports "not ready" from now on, while requests are still answered.
    fn leave(&self) {
        self.inner.leave();
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

    /// Closes the router at once. Further calls do nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.drain(Duration::ZERO, Duration::ZERO));
    }
}

/// Takes over the listening sockets that this process was started with (LISTEN_FDS).
///
/// Services and routers started later use the sockets whose addresses are theirs.
///
/// Returns:
///     list[str]: The sockets' addresses.
///
/// Raises:
///     ServiceError: One of the sockets cannot be used.
#[pyfunction]
pub(crate) fn adopt_sockets() -> PyResult<Vec<String>> {
    let addresses = inherited::adopt().map_err(|error| errors::router(&error.into()))?;
    Ok(addresses.iter().map(ToString::to_string).collect())
}

/// The addresses of the sockets taken over by adopt_sockets that no server has used.
///
/// Returns:
///     list[str]: The addresses.
#[pyfunction]
pub(crate) fn unused_sockets() -> Vec<String> {
    inherited::unused().iter().map(ToString::to_string).collect()
}

/// The tokens of a request's prompt, as the router computes them for a kind and version of engine.
///
/// Args:
///     tokenizer: The directory with tokenizer.json.
///     kind: "vllm" or "sglang".
///     version: The engine's version; "" if unknown.
///     path: The request's path.
///     body: The request's body.
///
/// Raises:
///     ServiceError: The tokenizer cannot be read, or the request's tokens cannot all be computed.
#[pyfunction]
#[pyo3(signature = (tokenizer, kind, version, path, body, /))]
pub(crate) fn prompt_tokens(
    py: Python<'_>,
    tokenizer: &str,
    kind: &str,
    version: &str,
    path: &str,
    body: &[u8],
) -> PyResult<Vec<u32>> {
    let handover = if kind == "sglang" { Handover::Sglang } else { Handover::Vllm };
    let version = Some(version).filter(|version| !version.is_empty());
    let tokens = || kvatlas_router::prompt_tokens(tokenizer, handover, version, path, body);
    py.detach(tokens).map_err(|error| errors::router(&error))
}
