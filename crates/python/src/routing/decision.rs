//! `Decision`, the worker chosen for a request, with methods to report the request's progress; and the Rust router that
//! a `Router` and its decisions share.

use std::collections::HashMap;
use std::sync::Arc;

use kvatlas_routing::{
    self as core, Decision as Core, Depths, Explanation, Outcome, Refusal, RequestId, Transfer, Usage, WorkerId,
};
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;

use super::arguments::{self, NewTokens, Now, OutputTokens, policy_error, unknown, workers};
use super::{Failure, Names};
use crate::scalars::number;

/// The decision where a request goes. Returned by Router.choose, which counts the request at the chosen worker from
/// then on.
///
/// Report the progress of the request with the methods below. A request that waits in the router (waits is True) has no
/// worker yet; a later Router.bind assigns one.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct Decision {
    router: Arc<SharedRouter>,
    id: RequestId,
    state: Mutex<State>,
    terms: Option<NamedExplanation>,
    /// Maximum number of tokens of the prompt, whose exact length is unknown if only its full blocks were given.
    prompt_tokens: u32,
}

enum State {
    Placed(Core),
    Waits,
    Refused(Refusal),
}

pub(crate) struct NamedExplanation {
    pub(crate) workers: Vec<(String, u32)>,
    pub(crate) why: Explanation,
}

impl Decision {
    pub(super) fn new(
        router: Arc<SharedRouter>,
        outcome: Outcome,
        terms: Option<NamedExplanation>,
        prompt_tokens: u32,
    ) -> Self {
        let (id, state) = match outcome {
            Outcome::Placed(decision) => (decision.id, State::Placed(decision)),
            Outcome::Waits(id) => (id, State::Waits),
            Outcome::Refused(why) => (RequestId(0), State::Refused(why)),
        };
        Self { router, id, state: Mutex::new(state), terms, prompt_tokens }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    /// Sets the outcome of a request that waited.
    pub(crate) fn settle(&self, outcome: Outcome) {
        *self.state() = match outcome {
            Outcome::Placed(decision) => State::Placed(decision),
            Outcome::Waits(_) => State::Waits,
            Outcome::Refused(why) => State::Refused(why),
        };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn placed<T>(&self, get: impl Fn(&Core) -> T) -> Option<T> {
        match &*self.state() {
            State::Placed(decision) => Some(get(decision)),
            _ => None,
        }
    }

    fn transfer<T>(&self, get: impl Fn(&Transfer) -> T) -> Option<T> {
        self.placed(|decision| decision.transfer.as_deref().map(&get)).flatten()
    }
}

#[pymethods]
impl Decision {
    /// int: The request's number; 0 if it was refused at once.
    #[getter]
    fn number(&self) -> u64 {
        self.id.0
    }

    /// str or None: The worker chosen for the request; None if it waits or was refused.
    #[getter]
    fn worker(&self) -> Option<String> {
        self.placed(|decision| decision.name.to_string())
    }

    /// int: The worker's data-parallel rank; 0 without a worker.
    #[getter]
    fn rank(&self) -> u32 {
        self.placed(|decision| decision.rank).unwrap_or(0)
    }

    /// int: The number of prompt tokens expected in the worker's cache when the request arrives.
    #[getter]
    fn cached_tokens(&self) -> u32 {
        self.placed(|decision| decision.cached_tokens).unwrap_or(0)
    }

    /// int: The number of prompt tokens that the worker is expected to compute.
    #[getter]
    fn uncached_tokens(&self) -> u32 {
        self.placed(|decision| decision.uncached_tokens).unwrap_or(0)
    }

    /// int: The part of cached_tokens that the index does not show yet, from prompts just sent to the worker.
    #[getter]
    fn predicted_tokens(&self) -> u32 {
        self.placed(|decision| decision.predicted_tokens).unwrap_or(0)
    }

    /// str or None: The worker's action for the part of the prompt that is not on its device: "compute" it, "load" a
    /// part from its own other tiers, or "pull" a part from another worker. None if there is nothing to load or pull.
    #[getter]
    fn action(&self) -> Option<&'static str> {
        self.transfer(|transfer| transfer.action.as_str())
    }

    /// (str, int) or None: The worker and rank from which a part of the prompt is to be pulled.
    #[getter]
    fn pull_source(&self) -> Option<(String, u32)> {
        self.transfer(|transfer| transfer.pull.as_ref().map(|pull| (pull.name.to_string(), pull.rank))).flatten()
    }

    /// int: The number of prompt tokens expected from pull_source.
    #[getter]
    fn pull_tokens(&self) -> u32 {
        self.transfer(|transfer| transfer.pull.as_ref().map_or(0, |pull| pull.tokens)).unwrap_or(0)
    }

    /// int: The number of prompt tokens that the worker is expected to load from its own other tiers.
    #[getter]
    fn load_tokens(&self) -> u32 {
        self.transfer(|transfer| transfer.load_tokens).unwrap_or(0)
    }

    /// int or None: The largest number of prompt tokens that the worker may load after those on its device, since
    /// loading more would take longer than computing them; None if it may load all.
    #[getter]
    fn max_load_tokens(&self) -> Option<u32> {
        self.transfer(|transfer| transfer.max_load_tokens).flatten()
    }

    /// float: Seconds that loading and pulling are expected to take.
    #[getter]
    fn transfer_seconds(&self) -> f64 {
        self.transfer(|transfer| transfer.seconds).unwrap_or(0.0)
    }

    /// bool: True if the request waits in the router.
    #[getter]
    fn waits(&self) -> bool {
        matches!(&*self.state(), State::Waits)
    }

    /// str or None: The reason of a refusal: "no_worker", "queue_full", "displaced"; else None.
    #[getter]
    fn refused(&self) -> Option<&'static str> {
        match &*self.state() {
            State::Refused(why) => Some(why.as_str()),
            _ => None,
        }
    }

    /// str: The reason for the choice of worker: "policy", "session", "only", "no_index", "no_tokens", "no_trust",
    /// "idle" or "policy_failed"; "waits" if the request waits; or the reason in refused.
    #[getter]
    fn why(&self) -> &'static str {
        match &*self.state() {
            State::Placed(decision) => decision.why.as_str(),
            State::Waits => "waits",
            State::Refused(why) => why.as_str(),
        }
    }

    /// The values that the policy compared, if Router.choose was called with explain=True.
    ///
    /// Returns:
    ///     dict of (worker, rank) to a dict of value by name, including "cached_tokens"; None without explain=True.
    fn terms<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(NamedExplanation { workers, why }) = &self.terms else { return Ok(None) };
        let rows = PyDict::new(py);
        for (at, worker) in workers.iter().enumerate() {
            let row = PyDict::new(py);
            row.set_item("cached_tokens", why.cached_tokens[at])?;
            if let Some(terms) = &why.terms {
                let width = terms.names.len();
                for (name, value) in terms.names.iter().zip(&terms.values[at * width..]) {
                    row.set_item(*name, value)?;
                }
            }
            rows.set_item(worker, row)?;
        }
        Ok(Some(rows))
    }

    /// Sets the workers that may get a waiting request, after the fleet has changed. The request keeps its place in
    /// the queue.
    ///
    /// Args:
    ///     allowed: Names of the workers that may get the request, or pairs (name, rank); None for all.
    ///
    /// Returns:
    ///     bool: False if the request is not waiting.
    ///
    /// Raises:
    ///     InvalidTypeError: The argument is of the wrong type.
    fn allow(&self, py: Python<'_>, allowed: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let allowed = self.router.allowed(py, allowed)?;
        Ok(self.router.inner(py).router.allow(self.id, allowed.as_deref()))
    }

    /// Reports that the request's first token was generated, so that its prompt is computed.
    ///
    /// Args:
    ///     now: The time in seconds; None for the router's clock.
    #[pyo3(signature = (now=None))]
    fn first_token(&self, py: Python<'_>, now: Option<Now>) -> PyResult<()> {
        self.router.with(py, now, |router, now| router.first_token(self.id, now))
    }

    /// Reports that more tokens were generated after the first, counted over all answers.
    ///
    /// Args:
    ///     tokens: Number of tokens since the last call.
    ///     now: The time in seconds; None for the router's clock.
    #[pyo3(signature = (tokens, now=None))]
    fn progress(&self, py: Python<'_>, tokens: NewTokens, now: Option<Now>) -> PyResult<()> {
        self.router.with(py, now, |router, now| router.progress(self.id, tokens.0, now))
    }

    /// Reports that the request has finished. Further calls do nothing.
    ///
    /// Args:
    ///     cached_tokens: Prompt tokens that the engine reports as cached; None if it does not report them.
    ///     output_tokens: Tokens that the engine reports as generated; None if it does not report them.
    ///     now: The time in seconds; None for the router's clock.
    ///
    /// Returns:
    ///     bool: False if the request had ended already.
    ///
    /// Raises:
    ///     InvalidArgumentError: cached_tokens is more than the prompt has, or a number is out of range. The request
    ///         counts as running.
    #[pyo3(signature = (cached_tokens=None, output_tokens=None, now=None))]
    fn finish(
        &self,
        py: Python<'_>,
        cached_tokens: Option<&Bound<'_, PyAny>>,
        output_tokens: Option<OutputTokens>,
        now: Option<Now>,
    ) -> PyResult<bool> {
        let cached_tokens =
            cached_tokens.map(|tokens| arguments::cached_tokens(tokens, self.prompt_tokens)).transpose()?;
        let usage = Usage { cached_tokens, output_tokens: output_tokens.map(|tokens| tokens.0), computed_tokens: None };
        self.router.with(py, now, |router, now| router.finish(self.id, usage, now).is_some())
    }

    /// Reports that the request has failed, or has stopped waiting. Further calls do nothing.
    ///
    /// Args:
    ///     now: The time in seconds; None for the router's clock.
    ///
    /// Returns:
    ///     bool: False if the request had ended already.
    #[pyo3(signature = (now=None))]
    fn failed(&self, py: Python<'_>, now: Option<Now>) -> PyResult<bool> {
        self.router.forget(py, self.id);
        self.router.with(py, now, |router, now| router.fail(self.id, now))
    }

    fn __repr__(&self) -> String {
        match &*self.state() {
            State::Placed(its) => {
                format!("Decision(worker={:?}, rank={}, cached_tokens={})", its.name, its.rank, its.cached_tokens)
            }
            State::Waits => "Decision(waits=True)".to_owned(),
            State::Refused(why) => format!("Decision(refused={:?})", why.as_str()),
        }
    }
}

/// The Rust router with its lock, the decisions of waiting requests, the names of workers, and the clock.
pub(super) struct SharedRouter {
    core: Mutex<Inner>,
    /// The `Decision` objects of waiting requests, by request number.
    waiting: Mutex<HashMap<u64, Py<PyAny>>>,
    failure: Failure,
    pub(super) names: Names,
    clock: Py<PyAny>,
}

/// The Rust router, and buffers for depths that are reused by each lookup.
pub(super) struct Inner {
    pub(super) router: core::Router,
    pub(super) depths: Depths,
    /// The last report sent to each other router, by that router's number.
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

    /// Drops the `Decision` of a request that no longer waits.
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
