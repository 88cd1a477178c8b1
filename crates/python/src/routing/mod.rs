//! `kvatlas.routing`: the router without a server, and policies that are Python objects.

mod arguments;
mod decision;
mod router;

use std::sync::Arc;

use bytemuck::{NoUninit, cast_slice};
use kvatlas_routing::{Candidates as Rows, Candidates as Core, Choice, Kind, Placement, Policy, PolicyTable, Request};
use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use self::arguments::BlockDepth;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Candidates>()?;
    module.add_class::<decision::Decision>()?;
    module.add_class::<RoutedRequest>()?;
    module.add_class::<router::Router>()?;
    module.add_function(wrap_pyfunction!(router::policy_names, module)?)?;
    module.add_function(wrap_pyfunction!(router::routing_defaults, module)?)
}

/// Policies that can be chosen by name. Those of other routers exist only in builds with the feature `lab`.
pub(crate) fn policies() -> PolicyTable {
    let own = PolicyTable::own();
    #[cfg(feature = "lab")]
    let own = own.with(kvatlas_peer_policies::POLICIES);
    own
}

/// The error raised by a Python policy, kept until the router's call can raise it.
pub(crate) type Failure = Arc<Mutex<Option<PyErr>>>;

/// Name and rank of each worker, by the worker's number.
pub(crate) type Names = Arc<Mutex<Vec<(String, u32)>>>;

pub(crate) struct PythonPolicy {
    name: String,
    uses_index: bool,
    policy: Py<PyAny>,
    failure: Failure,
    names: Names,
    told: Callbacks,
    /// The request about to end, and the number of tokens of each of its answers.
    answered: Option<(u64, f64)>,
}

/// Methods that a Python policy has: true for each event about which it wants to be notified.
#[derive(Debug, Clone, Copy)]
struct Callbacks {
    sent: bool,
    first_token: bool,
    ended: bool,
}

impl PythonPolicy {
    pub(crate) fn new(name: &str, policy: &Bound<'_, PyAny>, failure: Failure, names: Names) -> PyResult<Self> {
        let uses_index = match policy.getattr_opt("uses_index")? {
            Some(uses) => uses.is_truthy()?,
            None => true,
        };
        let has = |method: &str| Ok::<_, PyErr>(policy.getattr_opt(method)?.is_some_and(|its| its.is_callable()));
        let told = Callbacks { sent: has("sent")?, first_token: has("first_token")?, ended: has("ended")? };
        let policy = policy.clone().unbind();
        Ok(Self { name: name.to_owned(), uses_index, policy, failure, names, told, answered: None })
    }

    fn name_of(&self, worker: u32) -> (String, u32) {
        let names = self.names.lock();
        names.get(worker as usize).cloned().unwrap_or_else(|| (worker.to_string(), 0))
    }

    /// Calls a method of the Python policy; an error is kept for the caller of the router.
    fn tell(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) {
        Python::attach(|py| {
            if let Err(error) = call(self.policy.bind(py)) {
                *self.failure.lock() = Some(error);
            }
        });
    }

    fn ask(&self, py: Python<'_>, request: &Request<'_>, rows: &Rows) -> PyResult<Choice> {
        let names = self.names.lock();
        let workers: Vec<_> = rows
            .worker
            .iter()
            .map(|&at| names.get(at as usize).cloned().unwrap_or_else(|| (at.to_string(), 0)))
            .collect();
        drop(names);
        let candidates = Candidates::new(rows.clone(), workers.into_pyobject(py)?.unbind());
        let row = self.policy.bind(py).call_method1("choose", (RoutedRequest::new(request), candidates))?;
        if row.is_none() {
            return Ok(Choice::Wait);
        }
        let chosen: Option<usize> = row.call_method0("__index__").and_then(|row| row.extract()).ok();
        match chosen {
            Some(row) if row < rows.len() => Ok(Choice::Row(row)),
            _ => {
                let message = format!("chose {row}: candidates are numbered 0 to {}", rows.len() - 1);
                Err(pyo3::exceptions::PyIndexError::new_err(message))
            }
        }
    }
}

impl Policy for PythonPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn uses_index(&self) -> bool {
        self.uses_index
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Rows, _now: f64) -> Choice {
        Python::attach(|py| {
            self.ask(py, request, candidates).unwrap_or_else(|error| {
                *self.failure.lock() = Some(error);
                Choice::Row(usize::MAX)
            })
        })
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Rows, row: usize, now: f64) {
        if self.told.sent {
            let worker = self.name_of(candidates.worker[row]);
            self.tell(|policy| policy.call_method1("sent", (RoutedRequest::new(request), worker, now)).map(drop));
        }
    }

    fn first_token(&mut self, placed: &Placement, now: f64) {
        if self.told.first_token {
            self.tell(|policy| policy.call_method1("first_token", (placed.number, now)).map(drop));
        }
    }

    fn answered(&mut self, placed: &Placement, tokens: f64, _now: f64) {
        self.answered = Some((placed.number, tokens));
    }

    fn ended(&mut self, placed: &Placement, now: f64) {
        let answered = self.answered.take().filter(|(number, _)| *number == placed.number);
        if self.told.ended {
            let tokens = answered.map(|(_, tokens)| tokens);
            self.tell(|policy| policy.call_method1("ended", (placed.number, tokens, now)).map(drop));
        }
    }
}

/// A request for which a policy chooses a worker.
#[pyclass(frozen, name = "RoutedRequest", module = "kvatlas._native")]
pub(crate) struct RoutedRequest {
    tokens: u32,
    block_size: u32,
    content_hashes: Vec<u64>,
    session: Option<u64>,
    parent: Option<u64>,
    kind: Option<Kind>,
    max_tokens: Option<u32>,
    priority: i32,
    answers: u32,
    number: u64,
}

impl RoutedRequest {
    pub(crate) fn new(request: &Request<'_>) -> Self {
        Self {
            tokens: request.tokens,
            block_size: request.block_size,
            content_hashes: request.content_hashes.to_vec(),
            session: request.session,
            parent: request.parent,
            kind: request.kind,
            max_tokens: request.max_tokens,
            priority: request.priority,
            answers: request.answers,
            number: request.number,
        }
    }

    fn core(&self) -> Request<'_> {
        Request {
            tokens: self.tokens,
            block_size: self.block_size,
            content_hashes: &self.content_hashes,
            ..Request::default()
        }
    }
}

#[pymethods]
impl RoutedRequest {
    /// int: The number of tokens in the prompt.
    #[getter]
    fn tokens(&self) -> u32 {
        self.tokens
    }

    /// int: The number of tokens in a block.
    #[getter]
    fn block_size(&self) -> u32 {
        self.block_size
    }

    /// numpy.ndarray of uint64: Content hashes of the prompt's full blocks.
    #[getter]
    fn content_hashes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, &self.content_hashes, "uint64")
    }

    /// int or None: A hash of the name of the request's session (conversation).
    #[getter]
    fn session(&self) -> Option<u64> {
        self.session
    }

    /// int or None: A hash of the name of the session whose agent started this request's session.
    #[getter]
    fn parent(&self) -> Option<u64> {
        self.parent
    }

    /// str or None: The event that caused the request: "start" or "subagent" of a session, "tool" (a tool call in
    /// the previous answer has ended), "user" (the previous answer called no tool), or "compaction".
    #[getter]
    fn kind(&self) -> Option<&'static str> {
        self.kind.map(Kind::as_str)
    }

    /// int or None: The maximum number of tokens that the request may generate.
    #[getter]
    fn max_tokens(&self) -> Option<u32> {
        self.max_tokens
    }

    /// int: The priority: waiting requests of higher priority are placed first.
    #[getter]
    fn priority(&self) -> i32 {
        self.priority
    }

    /// int: The number of answers that the request asks for.
    #[getter]
    fn answers(&self) -> u32 {
        self.answers
    }

    /// int: The request's number, which no other request has.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// The number of prompt tokens to compute on a worker that holds some leading blocks, at least 1.
    ///
    /// Args:
    ///     depth: The number of leading blocks held, an int of at least 0.
    ///
    /// Returns:
    ///     int
    #[pyo3(signature = (depth))]
    fn uncached(&self, depth: BlockDepth) -> u32 {
        self.core().uncached(depth.0)
    }
}

/// The workers among which a policy chooses for a request. Each property is an array with one item for each worker
/// and rank.
///
/// Arrays are created when read, and are read-only. An unknown value is NaN in arrays of float64, and 0 in other
/// arrays.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct Candidates {
    core: Core,
    workers: Py<PyAny>,
}

impl Candidates {
    pub(crate) fn new(core: Core, workers: Py<PyAny>) -> Self {
        Self { core, workers }
    }
}

/// Creates a read-only NumPy array with a copy of the items. `dtype`: the name of the element type.
pub(crate) fn array<'py, T: NoUninit>(py: Python<'py>, items: &[T], dtype: &str) -> PyResult<Bound<'py, PyAny>> {
    static FROM_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = FROM_BUFFER.get_or_try_init(py, || {
        py.import(intern!(py, "numpy"))?.getattr(intern!(py, "frombuffer")).map(Bound::unbind)
    })?;
    make.bind(py).call1((PyBytes::new(py, cast_slice(items)), dtype))
}

macro_rules! columns {
    ($($(#[$doc:meta])* $name:ident: $column:ident, $dtype:literal;)*) => {
        #[pymethods]
        impl Candidates {
            /// list of (str, int): The worker's name and the rank, for each item.
            #[getter]
            fn workers(&self, py: Python<'_>) -> Py<PyAny> {
                self.workers.clone_ref(py)
            }

            /// numpy.ndarray of bool: True if the index's data about the worker can be trusted at present.
            #[getter]
            fn trusted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                let trusted: Vec<u8> = self.core.trusted.iter().map(|trusted| u8::from(*trusted)).collect();
                array(py, &trusted, "bool")
            }

            fn __len__(&self) -> usize {
                self.core.len()
            }

            $($(#[$doc])*
            #[getter]
            fn $name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                array(py, &self.core.$column, $dtype)
            })*
        }
    };
}

columns! {
    /// numpy.ndarray of uint32: Leading blocks of the prompt that the worker holds, or will hold once it has
    /// computed the prompts just sent to it.
    depth: predicted_blocks, "uint32";
    /// numpy.ndarray of uint32: Leading blocks of the prompt that the worker holds on its device, according to
    /// events so far.
    device_blocks: device_blocks, "uint32";
    /// numpy.ndarray of uint32: Leading blocks of the prompt on the worker's device or in its host memory.
    host_blocks: host_blocks, "uint32";
    /// numpy.ndarray of uint32: Leading blocks of the prompt that the worker holds on any tier.
    any_blocks: any_blocks, "uint32";
    /// numpy.ndarray of uint32: Leading blocks of the prompt that running requests of the worker use. These blocks
    /// stay in its cache until those requests have ended.
    shared_blocks: shared_blocks, "uint32";
    /// numpy.ndarray of uint32: Requests that were sent to the worker and have not finished.
    requests: requests, "uint32";
    /// numpy.ndarray of uint32: Requests sent to the worker that have no first token yet.
    waiting: waiting, "uint32";
    /// numpy.ndarray of float64: Prompt tokens of the worker's requests without a first token, minus the tokens
    /// expected in cache.
    queued_tokens: queued_tokens, "float64";
    /// numpy.ndarray of float64: Prompt tokens, including cached ones, of requests without a first token.
    queued_prompt_tokens: queued_prompt_tokens, "float64";
    /// numpy.ndarray of float64: The part of queued_tokens that belongs to the prompt being computed at present.
    head_tokens: head_tokens, "float64";
    /// numpy.ndarray of float64: Seconds since the worker began to compute its present prompt.
    head_elapsed: head_elapsed, "float64";
    /// numpy.ndarray of float64: Prompt tokens to compute for requests that wait in the router for this worker.
    held_tokens: held_tokens, "float64";
    /// numpy.ndarray of float64: Tokens of all requests at the worker, both prompts and generated tokens.
    context_tokens: context_tokens, "float64";
    /// numpy.ndarray of float64: Blocks of the prompts of all requests at the worker; a block shared by several
    /// counts once. Prompts given without tokens or hashes are left out.
    used_blocks: used_blocks, "float64";
    /// numpy.ndarray of float64: Tokens that requests at the worker are still expected to generate.
    output_tokens_left: output_tokens_left, "float64";
    /// numpy.ndarray of float64: Requests waiting in the engine's queue, as reported by the engine.
    reported_waiting: reported_waiting, "float64";
    /// numpy.ndarray of float64: Requests running at the engine, as reported by the engine.
    reported_running: reported_running, "float64";
    /// numpy.ndarray of float64: Share of the engine's KV cache in use, 0 to 1, as reported by the engine.
    reported_kv_usage: reported_kv_usage, "float64";
    /// numpy.ndarray of float64: Seconds since the engine last reported its queue and cache.
    reported_age: reported_age, "float64";
    /// numpy.ndarray of float64: Prompt tokens that the worker computes per second, as measured so far.
    prefill_rate: prefill_rate, "float64";
    /// numpy.ndarray of float64: Seconds between two tokens of one request, as measured so far.
    step_time: step_time, "float64";
    /// numpy.ndarray of float64: Seconds since the worker was added.
    age: age, "float64";
    /// numpy.ndarray of uint64: Requests sent to the worker since it was added.
    sent: sent, "uint64";
    /// numpy.ndarray of float64: The time of the last request sent to the worker for which no worker held a block;
    /// -inf if never.
    last_cold: last_cold, "float64";
    /// numpy.ndarray of float64: Blocks that the worker holds, according to the index.
    held_blocks: held_blocks, "float64";
    /// numpy.ndarray of float64: Capacity of the worker's cache in blocks.
    capacity_blocks: capacity_blocks, "float64";
    /// numpy.ndarray of float64: The worker's share of the work relative to others; 1 unless set otherwise.
    weight: weight, "float64";
}
