//! The trie itself, as a `RadixTrie` and its `TrieNode`s share it. Python code does not see it.

use kvatlas_trees::radix_trie::{Error, RadixTrie as Core};
use parking_lot::{Mutex, MutexGuard};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use super::tokens::Symbols;
use crate::errors;

pub(super) fn refused(error: &Error) -> PyErr {
    errors::argument(error.code(), &error.to_string())
}

/// A trie that several of Python's objects share. It is an object of Python's too, so that the collector finds the blocks
/// once, however many objects lead to them.
#[pyclass(frozen, module = "kvatlas._native")]
pub(super) struct SharedTrie {
    pub(super) page_size: usize,
    state: Mutex<State>,
}

/// The trie, and the symbols among its tokens.
pub(super) struct State {
    pub(super) trie: Core<Py<PyAny>>,
    pub(super) symbols: Symbols,
}

impl SharedTrie {
    pub(super) fn new(page_size: usize, trie: Core<Py<PyAny>>) -> Self {
        Self { page_size, state: Mutex::new(State { trie, symbols: Symbols::default() }) }
    }

    pub(super) fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.state.lock_py_attached(py)
    }

    /// Looks at a node with the trie locked.
    pub(super) fn look<T>(&self, py: Python<'_>, look: impl FnOnce(&State) -> Result<T, Error>) -> PyResult<T> {
        let looked = look(&self.lock(py));
        looked.map_err(|error| refused(&error))
    }
}

#[pymethods]
impl SharedTrie {
    /// Shows the blocks to the collector: they may lead back to the trie. Who is just using the trie holds it, so that
    /// seeing nothing then is right.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.state.try_lock() {
            Some(state) => state.trie.all_blocks().try_for_each(|block| visit.call(block)),
            None => Ok(()),
        }
    }

    fn __clear__(&self) {
        if let Some(mut state) = self.state.try_lock() {
            let blocks = state.trie.clear();
            state.symbols = Symbols::default();
            drop(state);
            drop(blocks);
        }
    }
}
