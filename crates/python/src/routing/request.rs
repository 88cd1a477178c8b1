//! A request and its candidates, as a policy in Python sees them.

use bytemuck::{NoUninit, cast_slice};
use kvatlas_routing::{Candidates as Core, Kind, Request};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use super::arguments::BlockDepth;

/// A request to place.
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

    /// int or None: A hash of the session's name.
    #[getter]
    fn session(&self) -> Option<u64> {
        self.session
    }

    /// int or None: A hash of the name of the session that started this one, as an agent starts another.
    #[getter]
    fn parent(&self) -> Option<u64> {
        self.parent
    }

    /// str or None: The event that brought the request about: "start" or "subagent" of a session, "tool" (one that
    /// the previous answer called has ended), "user" (that answer called none), or "compaction".
    #[getter]
    fn kind(&self) -> Option<&'static str> {
        self.kind.map(Kind::as_str)
    }

    /// int or None: The maximum number of tokens that it may generate.
    #[getter]
    fn max_tokens(&self) -> Option<u32> {
        self.max_tokens
    }

    /// int: The rank among waiting requests: those of higher priority are placed first.
    #[getter]
    fn priority(&self) -> i32 {
        self.priority
    }

    /// int: The number of answers that it asks for.
    #[getter]
    fn answers(&self) -> u32 {
        self.answers
    }

    /// int: The request's number, which no other request has.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// The prompt tokens left to compute on a worker that holds some leading blocks: at least one.
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

/// The workers that may take a request. Each property is an array with one item for each worker and rank.
///
/// Arrays are created when you read them, and are read-only. An unknown value is NaN in arrays of float64, and 0 in
/// other arrays.
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

/// A NumPy array with a copy of the items.
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

            /// numpy.ndarray of bool: True if what the index says about the worker can be trusted at present.
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
    /// computed the prompts that were just sent to it.
    depth: predicted_blocks, "uint32";
    /// numpy.ndarray of uint32: Leading blocks that the worker holds on the device, according to events so far.
    device_blocks: device_blocks, "uint32";
    /// numpy.ndarray of uint32: Leading blocks that it holds on the device or in host memory.
    host_blocks: host_blocks, "uint32";
    /// numpy.ndarray of uint32: Leading blocks that it holds on any tier.
    any_blocks: any_blocks, "uint32";
    /// numpy.ndarray of uint32: Leading blocks of the prompt that requests at the worker use. They stay in its cache
    /// until those have ended.
    shared_blocks: shared_blocks, "uint32";
    /// numpy.ndarray of uint32: Requests that were sent to the worker and have not finished.
    requests: requests, "uint32";
    /// numpy.ndarray of uint32: Requests sent to the worker that have no first token yet.
    waiting: waiting, "uint32";
    /// numpy.ndarray of float64: Prompt tokens of requests without a first token, minus those expected in cache.
    queued_tokens: queued_tokens, "float64";
    /// numpy.ndarray of float64: All prompt tokens of requests without a first token, cached ones included.
    queued_prompt_tokens: queued_prompt_tokens, "float64";
    /// numpy.ndarray of float64: The part of queued_tokens that belongs to the prompt being computed.
    head_tokens: head_tokens, "float64";
    /// numpy.ndarray of float64: Seconds since that prompt's turn came.
    head_elapsed: head_elapsed, "float64";
    /// numpy.ndarray of float64: Prompt tokens to compute of requests that wait in the router for this worker.
    held_tokens: held_tokens, "float64";
    /// numpy.ndarray of float64: Tokens of all requests at the worker: prompts and generated tokens.
    context_tokens: context_tokens, "float64";
    /// numpy.ndarray of float64: Blocks of the prompts of all requests at the worker; what several share counts
    /// once. Prompts that were given without tokens or hashes are left out.
    used_blocks: used_blocks, "float64";
    /// numpy.ndarray of float64: Tokens that requests at the worker are still expected to generate.
    output_tokens_left: output_tokens_left, "float64";
    /// numpy.ndarray of float64: Requests waiting in the engine's queue, as reported by the engine.
    reported_waiting: reported_waiting, "float64";
    /// numpy.ndarray of float64: Requests running at the engine, as reported by the engine.
    reported_running: reported_running, "float64";
    /// numpy.ndarray of float64: Share of the KV cache in use, 0 to 1, as reported by the engine.
    reported_kv_usage: reported_kv_usage, "float64";
    /// numpy.ndarray of float64: Seconds since the engine's last such report.
    reported_age: reported_age, "float64";
    /// numpy.ndarray of float64: Prompt tokens that the worker computes per second, as measured so far.
    prefill_rate: prefill_rate, "float64";
    /// numpy.ndarray of float64: Seconds between two tokens of one request, as measured so far.
    step_time: step_time, "float64";
    /// numpy.ndarray of float64: Seconds since the worker joined.
    age: age, "float64";
    /// numpy.ndarray of uint64: Requests sent to the worker since it joined.
    sent: sent, "uint64";
    /// numpy.ndarray of float64: The time of the worker's last request of which no worker held a block; -inf if
    /// never.
    last_cold: last_cold, "float64";
    /// numpy.ndarray of float64: Blocks that the worker holds, according to the index.
    held_blocks: held_blocks, "float64";
    /// numpy.ndarray of float64: Blocks that the worker's cache has room for.
    capacity_blocks: capacity_blocks, "float64";
    /// numpy.ndarray of float64: The worker's share of the work relative to others; 1 unless set otherwise.
    weight: weight, "float64";
}
