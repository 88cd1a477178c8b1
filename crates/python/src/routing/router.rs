//! `Router`, which chooses workers for requests, without a server.

use std::collections::HashMap;
use std::sync::Arc;

use kvatlas_index::hash;
use kvatlas_routing::{self as core, Depth, Load, Options, Outcome, Request, WorkerId};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use super::arguments::{
    Answers, CapacityBlocks, Explain, HeldBlocks, KvUsage, MaxTokens, Now, Priority, PromptTokens, RunningRequests,
    Seconds, Seed, Trusted, Waited, WaitingRequests, Weight, config, fill, fill_loadable, found_pairs, json,
    policy_error, session_number, workers as worker_names,
};
use super::decision::{Decision, Inner, NamedExplanation, SharedRouter};
use super::{Failure, Names, PythonPolicy, policies};
use crate::errors;
use crate::scalars::{BlockSize, Rank, describe, optional_string, worker as name};
use crate::sequences::{contents, tokens as token_ids};

/// Chooses a worker for each request, and tracks the requests, the load and the speed of each worker.
///
/// choose() selects a worker and counts the request there, in one step. Report the progress of the request with the
/// methods of the Decision. Without an index, without tokens or without trusted workers, the policy still chooses, but
/// without knowledge of the cached blocks; the decision's `why` then says so.
///
/// Any number of threads may use one router at once.
///
/// Args:
///     policy: A policy's name, one of policy_names(), or an object with choose(request, candidates) -> row.
///     workers: Names of the workers, or a pair (name, rank) for each.
///     block_size: Number of tokens in a block.
///     seed: Seed of all random choices, from 0 to 2**64 - 1.
///     options: Options of the policy: dict of str to number, bool or str.
///     settings: Settings of the router: dict with any of first_token_timeout, idle_timeout, announced_within,
///         session_ttl, session_limit, warm_seconds, warm_share, prefill_rate, step_time, output_tokens, queue_limit,
///         queue_timeout, order ("least-work" or "fcfs"), ageing, queue_scan, predicted_limit, host_floor, host_token,
///         far_floor, far_token, pull_floor, pull_token, pull_setup, pull_sources, source_heard, pair_out.
///     clock: Function that returns the time in seconds, for calls without `now`; None for time.monotonic.
///
/// Raises:
///     PolicyError: The policy is unknown, or has no option of a given name.
///     ConfigError: A setting is unknown or out of range.
///     InvalidTypeError: An argument is of the wrong type.
#[pyclass(frozen, subclass, module = "kvatlas._native")]
pub(crate) struct Router {
    shared: Arc<SharedRouter>,
    block_size: u32,
}

/// The names of the policies that come with kvatlas.
///
/// Returns:
///     list of str
#[pyfunction]
pub(crate) fn policy_names(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    PyList::new(py, policies().names().collect::<Vec<_>>())
}

/// The defaults of the router's numeric settings, by name.
///
/// Returns:
///     dict of str to float
#[pyfunction]
pub(crate) fn routing_defaults(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let defaults = PyDict::new(py);
    for (name, value) in core::Config::default().numbers() {
        defaults.set_item(name, value)?;
    }
    Ok(defaults)
}

#[pymethods]
impl Router {
    #[new]
    #[pyo3(signature = (policy=None, workers=None, *, block_size=BlockSize(16), seed=Seed(0), options=None, settings=None,
                        clock=None))]
    #[pyo3(text_signature = "(policy='kvatlas', workers=(), *, block_size=16, seed=0, options=None, settings=None, \
                             clock=None)")]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn new(
        py: Python<'_>,
        policy: Option<&Bound<'_, PyAny>>,
        workers: Option<&Bound<'_, PyAny>>,
        block_size: BlockSize,
        seed: Seed,
        options: Option<&Bound<'_, PyAny>>,
        settings: Option<&Bound<'_, PyAny>>,
        clock: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let (failure, names) = (Failure::default(), Names::default());
        let name = match policy {
            None => Some("kvatlas".to_owned()),
            Some(policy) => policy.extract::<String>().ok(),
        };
        let seed = seed.0;
        let config = config(py, seed, block_size.0, settings)?;
        let options = json(py, options, "options")?;
        let made = match (&name, policy) {
            (Some(name), _) => {
                let made = Options::from_json(&options).and_then(|options| policies().make(name, options, seed));
                match made {
                    Ok(made) => made,
                    Err(error) => {
                        let code = if error.code == "unknown_policy" { "invalid_policy" } else { error.code };
                        return Err(policy_error(py, &error.message, code)?);
                    }
                }
            }
            (None, Some(policy)) if policy.is_instance_of::<PyType>() => {
                let message =
                    format!("policy must be a name or an object, got the class {}: make one of it", policy.repr()?);
                return Err(errors::wrong_type(&message));
            }
            (None, Some(policy)) if policy.getattr_opt("choose")?.is_some_and(|choose| choose.is_callable()) => {
                let name = policy.get_type().name()?.to_string();
                Box::new(PythonPolicy::new(&name, policy, failure.clone(), names.clone())?)
            }
            (None, policy) => {
                let given = policy.map_or_else(String::new, |policy| describe(policy));
                let message =
                    format!("policy must be a name or an object with choose(request, candidates), got {given}");
                return Err(errors::wrong_type(&message));
            }
        };
        let clock = match clock {
            Some(clock) if clock.bind(py).is_callable() => clock,
            Some(clock) => {
                let message = format!("clock must be callable, got {}", describe(clock.bind(py)));
                return Err(errors::wrong_type(&message));
            }
            None => py.import("time")?.getattr("monotonic")?.unbind(),
        };
        let shared = Arc::new(SharedRouter::new(core::Router::new(config, made), failure, names, clock));
        let router = Self { shared, block_size: block_size.0 };
        if let Some(workers) = workers {
            // Before whatever time the first call says, also where that is not the clock's.
            let now = f64::NEG_INFINITY;
            for (name, rank) in worker_names(workers, "workers")? {
                router.shared.add(py, &name, rank.unwrap_or(0), 1.0, now);
            }
        }
        Ok(router)
    }

    /// str: The policy's name.
    #[getter]
    fn policy(&self, py: Python<'_>) -> String {
        self.shared.inner(py).router.policy().to_owned()
    }

    /// bool: True if the policy uses an index; otherwise prompts need not be looked up.
    #[getter]
    fn uses_index(&self, py: Python<'_>) -> bool {
        self.shared.inner(py).router.uses_index()
    }

    /// int: The number of tokens in a block.
    #[getter]
    fn block_size(&self) -> u32 {
        self.block_size
    }

    /// list of (str, int): The workers and ranks that get requests.
    #[getter]
    fn workers(&self, py: Python<'_>) -> Vec<(String, u32)> {
        let inner = self.shared.inner(py);
        let up = inner.router.workers().filter(|(_, up)| *up).map(|(id, _)| id);
        up.filter_map(|id| inner.router.name(id).map(|(name, rank)| (name.to_string(), rank))).collect()
    }

    /// int: The number of requests that wait in the router.
    #[getter]
    fn waiting(&self, py: Python<'_>) -> usize {
        self.shared.inner(py).router.waiting()
    }

    /// int: The number of requests sent to workers that have not ended.
    #[getter]
    fn in_flight(&self, py: Python<'_>) -> usize {
        self.shared.inner(py).router.in_flight()
    }

    /// Chooses a worker for a request, and counts the request there from now on.
    ///
    /// The prompt is given by tokens or content_hashes. Without them, prompt_tokens gives its length.
    ///
    /// Args:
    ///     tokens: Token ids of the prompt, as accepted by kvatlas.content_hashes().
    ///     content_hashes: Content hashes of the prompt's full blocks, shape (n,): a uint64 array or a list of ints.
    ///     prompt_tokens: The length of the prompt in tokens; None for the length of tokens or content_hashes.
    ///     match: The depth to which each worker holds the prompt: a kvatlas.Match, an object with scores(), or a dict
    ///         of worker, or of (worker, rank), to depth in blocks; None if not looked up.
    ///     loadable: The part of the prompt that workers can load beyond their device, with match only: the return
    ///         value of kvatlas.BlockIndex.loading.find(), or a dict of worker, or of (worker, rank), to three depths
    ///         in blocks: host (on its device and in host memory after it), loadable (on all tiers from which it can
    ///         load) and pullable (which others can pull from it). None if no worker can load anything.
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///     session: Name or number of the session that the request belongs to.
    ///     max_tokens: The maximum number of tokens that the request may generate.
    ///     priority: Waiting requests of higher priority are placed first.
    ///     answers: Number of answers that the request asks for.
    ///     text: The prompt as text, for policies that work on characters.
    ///     allowed: Names of the workers that may get the request, or pairs (name, rank); None for all.
    ///     waited: Seconds that the request has waited in the router before, if it failed at a worker and is placed
    ///         again.
    ///     explain: True to keep the values that the policy compares, for Decision.terms().
    ///     now: The time in seconds; None for the clock.
    ///
    /// Returns:
    ///     Decision
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: Both tokens and content_hashes are given, or the prompt's length is unknown.
    ///     PolicyError: A policy in Python failed.
    #[pyo3(signature = (*, tokens=None, content_hashes=None, prompt_tokens=None, r#match=None, loadable=None, lora=None,
                        salt=None, session=None, max_tokens=None, priority=Priority(0), answers=Answers(1), text=None, allowed=None,
                        waited=Waited(0.0), explain=Explain(false), now=None))]
    #[pyo3(
        text_signature = "($self, *, tokens=None, content_hashes=None, prompt_tokens=None, match=None, loadable=None, \
                             lora=None, salt=None, session=None, max_tokens=None, priority=0, answers=1, text=None, \
                             allowed=None, waited=0.0, explain=False, now=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn choose(
        slf: &Bound<'_, Self>,
        tokens: Option<&Bound<'_, PyAny>>,
        content_hashes: Option<&Bound<'_, PyAny>>,
        prompt_tokens: Option<PromptTokens>,
        r#match: Option<&Bound<'_, PyAny>>,
        loadable: Option<&Bound<'_, PyAny>>,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        session: Option<&Bound<'_, PyAny>>,
        max_tokens: Option<MaxTokens>,
        priority: Priority,
        answers: Answers,
        text: Option<&Bound<'_, PyAny>>,
        allowed: Option<&Bound<'_, PyAny>>,
        waited: Waited,
        explain: Explain,
        now: Option<Now>,
    ) -> PyResult<Py<Decision>> {
        let (py, this) = (slf.py(), slf.get());
        let now = this.shared.time(py, now)?;
        let given;
        let owned;
        let (hashes, length): (&[u64], usize) = match (tokens, content_hashes) {
            (Some(_), Some(_)) => {
                let message = "choose takes either content_hashes or tokens, not both";
                return Err(errors::argument("conflicting_arguments", message));
            }
            (Some(tokens), None) => {
                let ids = token_ids(tokens)?;
                let (lora, salt) = (optional_string(lora, "lora")?, optional_string(salt, "salt")?);
                owned = hash::content_hashes(ids.as_slice(), this.block_size as usize, lora, salt);
                (&owned, ids.as_slice().len())
            }
            (None, Some(hashes)) => {
                given = contents(hashes)?;
                let hashes = given.as_slice();
                (hashes, hashes.len() * this.block_size as usize)
            }
            (None, None) if prompt_tokens.is_some() => (&[], 0),
            (None, None) => {
                let message = "choose needs tokens, content_hashes or prompt_tokens";
                return Err(errors::argument("missing_argument", message));
            }
        };
        let told = prompt_tokens.map(|tokens| tokens.0);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let request = Request {
            tokens: told.unwrap_or(length),
            block_size: this.block_size,
            content_hashes: hashes,
            text: optional_string(text, "text")?,
            session: session.map(session_number).transpose()?,
            parent: None,
            kind: None,
            max_tokens: max_tokens.map(|tokens| tokens.0),
            priority: priority.0,
            at_once: false,
            tells: true,
            answers: answers.0,
            waited: waited.0,
            number: 0,
        };
        // Of a prompt that is given by its full blocks, the length is not known exactly.
        let rest = if told.is_none() && tokens.is_none() { this.block_size - 1 } else { 0 };
        let (at_most, blocks) = (
            request.tokens.saturating_add(rest),
            request.blocks().max(u32::try_from(hashes.len()).unwrap_or(u32::MAX)),
        );
        let allowed = this.shared.allowed(py, allowed)?;
        let mut depths = std::mem::take(&mut this.shared.inner(py).depths);
        depths.clear();
        if let Some(found) = r#match {
            let inner = this.shared.inner(py);
            fill(&inner.router, found, blocks, this.block_size, &mut depths)?;
            if let Some(loadable) = loadable {
                let find = |name: &str, rank| inner.router.worker(name, rank).map(|id| id.0);
                fill_loadable(find, loadable, blocks, &mut depths)?;
            }
        } else if loadable.is_some() {
            let message = "choose takes loadable together with match: give both";
            return Err(errors::argument("missing_argument", message));
        }
        let mut inner = this.shared.inner(py);
        let explained = explain.0.then(|| {
            let why = inner.router.explain(&request, &depths, allowed.as_deref(), now);
            let name = |id: &WorkerId| {
                inner.router.name(*id).map_or_else(Default::default, |(name, rank)| (name.to_string(), rank))
            };
            NamedExplanation { workers: why.workers.iter().map(name).collect(), why }
        });
        let outcome = inner.router.choose_among(&request, &depths, allowed.as_deref(), now);
        inner.depths = depths;
        drop(inner);
        if let Err(error) = this.shared.check(py) {
            if let Outcome::Placed(decision) = &outcome {
                this.shared.inner(py).router.fail(decision.id, now);
                // If that went wrong too: the first error is the one to tell.
                let _ = this.shared.check(py);
            }
            return Err(error);
        }
        let waits = matches!(outcome, Outcome::Waits(_));
        let decision = Py::new(py, Decision::new(this.shared.clone(), outcome, explained, at_most))?;
        if waits {
            let id = decision.get().id();
            this.shared.waiting(py).insert(id.0, decision.clone_ref(py).into_any());
        }
        Ok(decision)
    }

    /// Places waiting requests on workers that have capacity, and refuses those that have waited too long.
    ///
    /// Call this after a first token, after a request's end, when a worker joins, and every few hundredths of a second
    /// while any request waits.
    ///
    /// Args:
    ///     find: Function that looks up a prompt again: its argument are the content hashes, its return value the
    ///         argument match of choose(), or a tuple of the arguments match and loadable. None to use the match given
    ///         to choose().
    ///     now: The time in seconds; None for the clock.
    ///
    /// Returns:
    ///     list of Decision: The decisions of requests that no longer wait, the same objects that choose() returned.
    ///
    /// Raises:
    ///     PolicyError: A policy in Python failed.
    #[pyo3(signature = (find=None, now=None))]
    fn bind<'py>(
        &self,
        py: Python<'py>,
        find: Option<&Bound<'py, PyAny>>,
        now: Option<Now>,
    ) -> PyResult<Bound<'py, PyList>> {
        let now = self.shared.time(py, now)?;
        let mut failed = None;
        let bound = {
            let mut inner = self.shared.inner(py);
            if find.is_none() || inner.router.waiting() == 0 {
                inner.router.bind(now)
            } else {
                let names = self.shared.names.lock_py_attached(py).clone();
                let numbers: HashMap<(String, u32), u32> =
                    names.into_iter().enumerate().map(|(at, name)| (name, at as u32)).collect();
                inner.router.bind_with(now, |request, depths| {
                    let Some(find) = find else { return };
                    let mut look = || {
                        let hashes = super::array(py, request.content_hashes, "uint64")?;
                        let mut found = find.call1((hashes,))?;
                        let mut loadable = None;
                        if let Ok(both) = found.cast::<PyTuple>().cloned() {
                            if both.len() != 2 {
                                let message = format!(
                                    "find must return a match, or a tuple of a match and a loadable, got a tuple of {}",
                                    both.len()
                                );
                                return Err(errors::wrong_type(&message));
                            }
                            found = both.get_item(0)?;
                            loadable = Some(both.get_item(1)?);
                        }
                        depths.begin();
                        for (name, rank, depth) in found_pairs(&found, request.blocks(), self.block_size)? {
                            if let Some(&at) = numbers.get(&(name, rank)) {
                                depths.set(at, Depth { device: depth, host: depth, any: depth });
                            }
                        }
                        if let Some(loadable) = loadable {
                            let find = |name: &str, rank| numbers.get(&(name.to_owned(), rank)).copied();
                            fill_loadable(find, &loadable, request.blocks(), depths)?;
                        }
                        PyResult::Ok(())
                    };
                    if let Err(error) = look() {
                        failed.get_or_insert(error);
                    }
                })
            }
        };
        let mut waiting = self.shared.waiting(py);
        let list = PyList::empty(py);
        for (id, outcome) in bound {
            if let Some(decision) = waiting.remove(&id.0) {
                decision.bind(py).cast::<Decision>()?.get().settle(outcome);
                list.append(decision)?;
            }
        }
        drop(waiting);
        failed.map_or(Ok(()), Err)?;
        self.shared.check(py)?;
        Ok(list)
    }

    /// Gives up requests for which no progress was reported for too long.
    ///
    /// Args:
    ///     now: The time in seconds; None for the clock.
    ///
    /// Returns:
    ///     int: The number of requests given up.
    #[pyo3(signature = (now=None))]
    fn expire(&self, py: Python<'_>, now: Option<Now>) -> PyResult<usize> {
        self.shared.with(py, now, |router, now| router.expire(now))
    }

    /// Tells another router about the requests sent to the workers that both routers have. The other router counts
    /// them like its own until the next call.
    ///
    /// Call this for each pair of routers every few hundredths of a second.
    ///
    /// Args:
    ///     other: The router to tell.
    ///     seconds: Seconds for which the requests count without another call.
    ///     now: The time in seconds; None for the clock.
    ///
    /// Raises:
    ///     InvalidArgumentError: The other router is this one.
    #[pyo3(signature = (other, seconds=Seconds(2.0), now=None))]
    #[pyo3(text_signature = "($self, other, seconds=2.0, now=None)")]
    fn tell(&self, py: Python<'_>, other: &Bound<'_, Router>, seconds: Seconds, now: Option<Now>) -> PyResult<()> {
        let (now, other) = (self.shared.time(py, now)?, &other.get().shared);
        if Arc::ptr_eq(&self.shared, other) {
            return Err(errors::argument("conflicting_arguments", "a router cannot tell itself: give another one"));
        }
        let [own, its] = [&self.shared, other].map(|shared| Arc::as_ptr(shared) as u64);
        let (changes, names) = {
            let mut inner = self.shared.inner(py);
            let Inner { router, told, .. } = &mut *inner;
            let changes = router.changes_since(told.entry(its).or_default(), usize::MAX);
            let name = |id| router.name(id).map(|(name, rank)| (id, (name.clone(), rank)));
            let names: HashMap<_, _> = router.workers().filter_map(|(id, _)| name(id)).collect();
            (changes, names)
        };
        let mut inner = other.inner(py);
        let router = &mut inner.router;
        let there: HashMap<_, _> =
            names.iter().filter_map(|(id, (name, rank))| Some((*id, router.worker(name, *rank)?))).collect();
        let changes = changes.map(|sent| Some(core::SentRequest { worker: *there.get(&sent.worker)?, ..sent }));
        router.hear_changes(own, &changes, now + seconds.0, now);
        Ok(())
    }

    /// Adds a worker, or resumes sending requests to a drained one.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank.
    ///     weight: The worker's share of the work relative to others, above 0.
    ///     now: The time in seconds; None for the clock.
    #[pyo3(signature = (worker, rank=Rank(0), weight=Weight(1.0), now=None))]
    #[pyo3(text_signature = "($self, worker, rank=0, weight=1.0, now=None)")]
    fn add_worker(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        rank: Rank,
        weight: Weight,
        now: Option<Now>,
    ) -> PyResult<()> {
        let (worker, now) = (name(worker)?, self.shared.time(py, now)?);
        self.shared.add(py, worker, rank.0, weight.0, now);
        Ok(())
    }

    /// Removes a worker or one of its ranks, with its requests.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank; None for all.
    ///     now: The time in seconds; None for the clock.
    ///
    /// Returns:
    ///     int: The number of requests that the worker had.
    #[pyo3(signature = (worker, rank=None, now=None))]
    fn remove_worker(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        rank: Option<Rank>,
        now: Option<Now>,
    ) -> PyResult<usize> {
        let worker = name(worker)?;
        self.shared.with(py, now, |router, now| {
            let ids: Vec<WorkerId> = match rank {
                Some(rank) => router.worker(worker, rank.0).into_iter().collect(),
                None => router.ranks(worker).collect(),
            };
            ids.into_iter().map(|id| router.remove_worker(id, now)).sum()
        })
    }

    /// Stops sending new requests to a worker (drains it). Its running requests continue. add_worker() resumes.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank.
    ///
    /// Raises:
    ///     InvalidArgumentError: No worker has this name and rank.
    #[pyo3(signature = (worker, rank=Rank(0)))]
    #[pyo3(text_signature = "($self, worker, rank=0)")]
    fn drain_worker(&self, py: Python<'_>, worker: &Bound<'_, PyAny>, rank: Rank) -> PyResult<()> {
        let id = self.shared.known(py, name(worker)?, rank.0)?;
        self.shared.inner(py).router.drain_worker(id);
        Ok(())
    }

    /// Sets whether the router trusts the index's data about a worker.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     trusted: True to trust the data.
    ///     rank: Data-parallel rank.
    ///
    /// Raises:
    ///     InvalidArgumentError: No worker has this name and rank.
    #[pyo3(signature = (worker, trusted, rank=Rank(0)))]
    #[pyo3(text_signature = "($self, worker, trusted, rank=0)")]
    fn set_trusted(&self, py: Python<'_>, worker: &Bound<'_, PyAny>, trusted: Trusted, rank: Rank) -> PyResult<()> {
        let id = self.shared.known(py, name(worker)?, rank.0)?;
        self.shared.inner(py).router.set_trusted(id, trusted.0);
        Ok(())
    }

    /// Sets whether a worker accepts instructions on what to load, and can pull blocks from other workers, and they
    /// from it.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     group: A name that is the same for all workers that can pull from each other: they have the same model,
    ///         block size, hash seed and layout. None: the worker loads all that it can, and neither pulls nor is
    ///         pulled from.
    ///     rank: Data-parallel rank.
    ///     now: The time in seconds; None for the clock.
    ///
    /// Raises:
    ///     InvalidArgumentError: No worker has this name and rank.
    #[pyo3(signature = (worker, group, rank=Rank(0), now=None))]
    #[pyo3(text_signature = "($self, worker, group, rank=0, now=None)")]
    fn set_pulls(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        group: Option<&Bound<'_, PyAny>>,
        rank: Rank,
        now: Option<Now>,
    ) -> PyResult<()> {
        let id = self.shared.known(py, name(worker)?, rank.0)?;
        let group = optional_string(group, "group")?;
        self.shared.with(py, now, |router, now| router.set_pulls(id, group, now))
    }

    /// Reports that a worker is alive: others pull only from a worker that was reported alive a moment ago.
    ///
    /// Reports on the worker's requests, and report(), also count.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank.
    ///     now: The time in seconds; None for the clock.
    ///
    /// Raises:
    ///     InvalidArgumentError: No worker has this name and rank.
    #[pyo3(signature = (worker, rank=Rank(0), now=None))]
    #[pyo3(text_signature = "($self, worker, rank=0, now=None)")]
    fn heard(&self, py: Python<'_>, worker: &Bound<'_, PyAny>, rank: Rank, now: Option<Now>) -> PyResult<()> {
        let id = self.shared.known(py, name(worker)?, rank.0)?;
        self.shared.with(py, now, |router, now| router.heard(id, now))
    }

    /// The costs of loading and pulling blocks, as learnt so far.
    ///
    /// Args:
    ///     now: The time in seconds; None for the clock.
    ///
    /// Returns:
    ///     list of dict: "kind" ("host": from a worker's own host memory, "far": from its disks and pools, "pull": from
    ///     another worker's host memory), "worker", "rank", "source" ((str, int) or None), "floor" (seconds besides
    ///     those for the tokens), "token" (seconds for each token), "samples" (number of measurements), and "out"
    ///     (seconds until the pair may pull again; 0 if it may now).
    #[pyo3(signature = (now=None))]
    fn transfers<'py>(&self, py: Python<'py>, now: Option<Now>) -> PyResult<Bound<'py, PyList>> {
        let costs = self.shared.with(py, now, core::Router::transfer_costs)?;
        let inner = self.shared.inner(py);
        let name = |id: WorkerId| inner.router.name(id).map(|(name, rank)| (name.to_string(), rank));
        let list = PyList::empty(py);
        for cost in costs {
            let Some((worker, rank)) = name(cost.worker) else { continue };
            let row = PyDict::new(py);
            row.set_item("kind", cost.kind)?;
            row.set_item("worker", worker)?;
            row.set_item("rank", rank)?;
            row.set_item("source", cost.source.and_then(name))?;
            row.set_item("floor", cost.line.floor)?;
            row.set_item("token", cost.line.token)?;
            row.set_item("samples", cost.samples)?;
            row.set_item("out", cost.out)?;
            list.append(row)?;
        }
        Ok(list)
    }

    /// Reports the figures that an engine publishes about itself. None means unknown.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     waiting: Number of requests in the engine's queue.
    ///     running: Number of requests that the engine is processing.
    ///     kv_usage: Share of the engine's KV cache in use, 0 to 1.
    ///     capacity_blocks: Capacity of the engine's cache in blocks.
    ///     held_blocks: Number of blocks that the engine holds, according to the index.
    ///     rank: Data-parallel rank.
    ///     now: The time in seconds; None for the clock.
    ///
    /// Raises:
    ///     InvalidArgumentError: No worker has this name and rank.
    #[pyo3(signature = (worker, *, waiting=None, running=None, kv_usage=None, capacity_blocks=None, held_blocks=None,
                        rank=Rank(0), now=None))]
    #[pyo3(text_signature = "($self, worker, *, waiting=None, running=None, kv_usage=None, capacity_blocks=None, \
                             held_blocks=None, rank=0, now=None)")]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn report(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        waiting: Option<WaitingRequests>,
        running: Option<RunningRequests>,
        kv_usage: Option<KvUsage>,
        capacity_blocks: Option<CapacityBlocks>,
        held_blocks: Option<HeldBlocks>,
        rank: Rank,
        now: Option<Now>,
    ) -> PyResult<()> {
        let id = self.shared.known(py, name(worker)?, rank.0)?;
        let load = Load {
            waiting: waiting.map(|it| it.0),
            running: running.map(|it| it.0),
            kv_usage: kv_usage.map(|it| it.0),
            capacity_blocks: capacity_blocks.map(|it| it.0),
            held_blocks: held_blocks.map(|it| it.0),
        };
        self.shared.with(py, now, |router, now| router.report(id, &load, now))
    }

    /// The present state of all workers, one item for each worker number, including drained and removed workers.
    ///
    /// Args:
    ///     now: The time in seconds; None for the clock.
    ///
    /// Returns:
    ///     Candidates
    #[pyo3(signature = (now=None))]
    fn candidates(&self, py: Python<'_>, now: Option<Now>) -> PyResult<super::Candidates> {
        let rows = self.shared.with(py, now, |router, now| router.candidates(now).clone())?;
        let names = self.shared.names.lock_py_attached(py).clone();
        Ok(super::Candidates::new(rows, names.into_pyobject(py)?.unbind()))
    }

    /// Counts since the router was created.
    ///
    /// Returns:
    ///     dict of str to int: "placed", "waited", "finished", "failed", "expired", "orphaned", "expected_cached" and
    ///     "reported_cached" (prompt tokens of finished requests whose engine reported them), "refused_" and "why_"
    ///     followed by the words of Decision, "pulls" (sent) and "pulls_" followed by their result ("brought",
    ///     "short", "nothing", "late", "failed", "unknown"), and "predicted_blocks" and "sessions" (remembered at
    ///     present).
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.shared.inner(py);
        let counts = inner.router.counts();
        let dict = PyDict::new(py);
        for (name, count) in [
            ("placed", counts.placed),
            ("waited", counts.waited),
            ("finished", counts.finished),
            ("failed", counts.failed),
            ("expired", counts.expired),
            ("orphaned", counts.orphaned),
            ("expected_cached", counts.expected_cached),
            ("reported_cached", counts.reported_cached),
            ("predicted_blocks", inner.router.predicted_blocks() as u64),
            ("sessions", inner.router.sessions() as u64),
            ("pulls", counts.pulls),
            ("refused_no_worker", counts.refused[0]),
            ("refused_queue_full", counts.refused[1]),
            ("refused_displaced", counts.refused[2]),
        ] {
            dict.set_item(name, count)?;
        }
        for (why, count) in core::ChoiceReason::ALL.iter().zip(counts.why) {
            dict.set_item(format!("why_{}", why.as_str()), count)?;
        }
        for (result, count) in core::PullResult::ALL.iter().zip(counts.pulled) {
            dict.set_item(format!("pulls_{}", result.as_str()), count)?;
        }
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let inner = self.shared.inner(py);
        format!("Router(policy={:?}, workers={})", inner.router.policy(), inner.router.workers().count())
    }
}
