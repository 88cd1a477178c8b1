//! The candidates for a request, as arrays.

use bytemuck::{NoUninit, cast_slice};
use kvatlas_routing::Candidates as Core;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

/// The workers that may take a request: an array for each thing known, with an item for each worker and rank.
///
/// Arrays are made when asked for, and cannot be written to. What is not known is NaN in arrays of float64, and 0 in
/// others.
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
            /// list of (str, int): The name and rank of each.
            #[getter]
            fn workers(&self, py: Python<'_>) -> Py<PyAny> {
                self.workers.clone_ref(py)
            }

            /// numpy.ndarray of bool: Whether what the index says of it can be trusted right now.
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
    /// numpy.ndarray of uint32: Leading blocks of the prompt that it holds, or will hold once what was just sent
    /// there is computed.
    depth: predicted_blocks, "uint32";
    /// numpy.ndarray of uint32: Leading blocks that it holds on the device, by the events so far.
    device_blocks: device_blocks, "uint32";
    /// numpy.ndarray of uint32: The same, with the host's memory.
    host_blocks: host_blocks, "uint32";
    /// numpy.ndarray of uint32: The same, with every tier.
    any_blocks: any_blocks, "uint32";
    /// numpy.ndarray of uint32: Requests sent there and not finished.
    requests: requests, "uint32";
    /// numpy.ndarray of uint32: Of those, the ones without a first token.
    waiting: waiting, "uint32";
    /// numpy.ndarray of float64: Prompt tokens of requests without a first token, less those expected cached.
    queued_tokens: queued_tokens, "float64";
    /// numpy.ndarray of float64: Prompt tokens of requests without a first token, cached or not.
    queued_prompt_tokens: queued_prompt_tokens, "float64";
    /// numpy.ndarray of float64: Of queued_tokens, those of the prompt whose turn it is.
    head_tokens: head_tokens, "float64";
    /// numpy.ndarray of float64: Seconds since its turn came.
    head_elapsed: head_elapsed, "float64";
    /// numpy.ndarray of float64: Tokens of all requests there, prompts and what they have generated.
    context_tokens: context_tokens, "float64";
    /// numpy.ndarray of float64: Tokens that requests there are expected to generate still.
    output_tokens_left: output_tokens_left, "float64";
    /// numpy.ndarray of float64: Requests that the engine says are waiting in its queue.
    reported_waiting: reported_waiting, "float64";
    /// numpy.ndarray of float64: Requests that the engine says are running.
    reported_running: reported_running, "float64";
    /// numpy.ndarray of float64: Share of its KV cache that the engine says is in use, 0 to 1.
    reported_kv_usage: reported_kv_usage, "float64";
    /// numpy.ndarray of float64: Seconds since the engine said so.
    reported_age: reported_age, "float64";
    /// numpy.ndarray of float64: Prompt tokens that it computes a second, as learnt.
    prefill_rate: prefill_rate, "float64";
    /// numpy.ndarray of float64: Seconds between two tokens of one request, as learnt.
    step_time: step_time, "float64";
    /// numpy.ndarray of float64: Seconds since it joined.
    age: age, "float64";
    /// numpy.ndarray of uint64: Requests sent there since it joined.
    sent: sent, "uint64";
    /// numpy.ndarray of float64: When it last took a request that nobody held anything of; -inf if never.
    last_cold: last_cold, "float64";
    /// numpy.ndarray of float64: Blocks that the index says it holds.
    held_blocks: held_blocks, "float64";
    /// numpy.ndarray of float64: Blocks that its cache has room for.
    capacity_blocks: capacity_blocks, "float64";
    /// numpy.ndarray of float64: Its share of the work beside others: 1 unless the user says otherwise.
    weight: weight, "float64";
}
