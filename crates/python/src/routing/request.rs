//! A request in the form that a policy in Python sees.

use kvatlas_routing::{Kind, Request};
use pyo3::prelude::*;

use super::arguments::BlockDepth;
use super::candidates::array;

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
