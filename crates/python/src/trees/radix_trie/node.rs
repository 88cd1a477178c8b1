//! `TrieNode`, which refers to the end of a cached sequence in a trie; and the trie with the caller's blocks, shared by
//! all its `TrieNode`s.

use std::hash::{DefaultHasher, Hash, Hasher};

use kvatlas_trees::radix_trie::{Error, NodeId, RadixTrie as Core, Tokens};
use parking_lot::{Mutex, MutexGuard};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyDict, PyList, PySet, PyString, PyTuple};

use super::tokens::{Symbols, Token, TokenCall};
use crate::errors;
use crate::raw::Layout;
use crate::scalars::describe;

/// The end of a cached sequence of tokens, in one RadixTrie.
///
/// Nodes are created by the trie. A node stands for the same end even after the trie has split the path to it. Once the
/// end itself is evicted, every call refuses the node (InvalidArgumentError, code "evicted_node"); the node never
/// stands for another end. Two nodes are equal if they stand for the same end in the same trie.
#[pyclass(frozen, weakref, module = "kvatlas._native")]
pub(crate) struct TrieNode {
    trie: Py<SharedTrie>,
    id: NodeId,
}

impl TrieNode {
    pub(super) fn new(trie: &Py<SharedTrie>, py: Python<'_>, id: NodeId) -> Self {
        Self { trie: trie.clone_ref(py), id }
    }

    /// Id of the node if it belongs to the given trie; else `None`.
    pub(super) fn of(&self, trie: &Py<SharedTrie>) -> Option<NodeId> {
        self.trie.is(trie).then_some(self.id)
    }
}

#[pymethods]
impl TrieNode {
    /// list: The tokens of the node itself, without those above it. The root has none.
    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let tokens = self.trie.get().look(py, |state| Ok(state.symbols.tokens(state.trie.tokens(self.id)?)))?;
        list(py, &tokens)
    }

    /// list: The blocks of the node itself, one for each page.
    #[getter]
    fn blocks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let blocks = self.trie.get().look(py, |state| Ok(copies(py, state.trie.blocks(self.id)?)))?;
        given(py, blocks)
    }

    /// TrieNode | None: The node above; None for the root.
    #[getter]
    fn parent(&self, py: Python<'_>) -> PyResult<Option<Self>> {
        let parent = self.trie.get().look(py, |state| state.trie.parent(self.id))?;
        Ok(parent.map(|id| Self { trie: self.trie.clone_ref(py), id }))
    }

    /// dict[tuple, TrieNode]: The nodes directly below, by their first page, in the order of insertion.
    #[getter]
    fn children<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let trie = self.trie.get();
        let children = trie.look(py, |state| {
            let children = state.trie.children(self.id)?.into_iter();
            let first = |id| Ok((state.symbols.tokens(&state.trie.tokens(id)?[..trie.page_size]), id));
            children.map(first).collect::<Result<Vec<_>, _>>()
        })?;
        let dict = PyDict::new(py);
        for (page, id) in children {
            let page = page.iter().map(|token| token.to_python(py)).collect::<PyResult<Vec<_>>>()?;
            dict.set_item(PyTuple::new(py, page)?, Self { trie: self.trie.clone_ref(py), id })?;
        }
        Ok(dict)
    }

    /// set[int]: The sequences that use the node.
    #[getter]
    fn active_seqs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PySet>> {
        let users = self.trie.get().look(py, |state| state.trie.users(self.id).map(<[i64]>::to_vec))?;
        PySet::new(py, users)
    }

    /// bool: True once the end that the node stood for has been evicted. Never raises.
    #[getter]
    fn evicted(&self, py: Python<'_>) -> bool {
        self.trie.get().look(py, |state| state.trie.parent(self.id)).is_err()
    }

    /// Returns True if the node is the root.
    fn is_root(&self, py: Python<'_>) -> PyResult<bool> {
        self.trie.get().look(py, |state| Ok(state.trie.parent(self.id)?.is_none()))
    }

    /// Returns True if the node has no children.
    fn is_leaf(&self, py: Python<'_>) -> PyResult<bool> {
        self.trie.get().look(py, |state| Ok(state.trie.children(self.id)?.is_empty()))
    }

    /// All tokens from the root to the node's end, and their blocks.
    ///
    /// Returns:
    ///     tuple[list, list]: Tokens and blocks.
    fn get_prefix_tokens_and_blocks<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        let (tokens, blocks) = self.trie.get().look(py, |state| {
            let (mut tokens, mut blocks) = (Vec::new(), Vec::new());
            for (words, more) in state.trie.path(self.id)? {
                tokens.extend(state.symbols.tokens(words));
                blocks.extend(copies(py, more));
            }
            Ok((tokens, blocks))
        })?;
        Ok((list(py, &tokens)?, given(py, blocks)?))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.trie.is(&other.get().trie) && self.id == other.get().id)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.id, self.trie.as_ptr() as usize).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        if self.evicted(py) {
            return Ok("TrieNode(evicted)".to_owned());
        }
        Ok(format!("TrieNode({} : {})", self.tokens(py)?.repr()?, self.blocks(py)?.repr()?))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.trie)
    }
}

pub(super) fn refused(error: &Error) -> PyErr {
    errors::argument(error.code(), &error.to_string())
}

/// A trie shared by several Python objects. It is a Python object as well, so that the garbage collector visits each
/// block once, regardless of the number of objects that refer to the trie.
#[pyclass(frozen, module = "kvatlas._native")]
pub(super) struct SharedTrie {
    pub(super) page_size: usize,
    state: Mutex<State>,
}

/// A trie with its symbols: numbers that stand for tokens which are not small ints.
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

    /// Reads a node with the trie locked.
    pub(super) fn look<T>(&self, py: Python<'_>, look: impl FnOnce(&State) -> Result<T, Error>) -> PyResult<T> {
        let looked = look(&self.lock(py));
        looked.map_err(|error| refused(&error))
    }
}

#[pymethods]
impl SharedTrie {
    /// Visits the blocks for Python's garbage collector, since they may refer back to the trie. If the trie is locked,
    /// no blocks are visited, which is safe: the thread that uses the trie keeps it alive.
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

pub(super) struct InsertCall<'a, 'py> {
    pub(super) trie: &'a mut Core<Py<PyAny>>,
    pub(super) blocks: &'a Bound<'py, PyList>,
    pub(super) node: Option<NodeId>,
}

impl TokenCall<Result<(NodeId, usize), Error>> for InsertCall<'_, '_> {
    fn with(self, tokens: &(impl Tokens + ?Sized)) -> Result<(NodeId, usize), Error> {
        let count = self.blocks.len();
        // Only the blocks that are needed are looked at. That counts references up and runs nothing; a list that
        // another thread has made shorter meanwhile gives too few, and is refused.
        let blocks = |start| match Layout::of(self.blocks.py()) {
            Some(layout) => layout.part(self.blocks, start, count),
            None => (start..count).map_while(|at| self.blocks.get_item(at).ok()).map(Bound::unbind).collect(),
        };
        self.trie.insert_from(tokens, count, self.node, blocks)
    }
}

pub(super) struct MatchCall<'a, 'py> {
    pub(super) py: Python<'py>,
    pub(super) trie: &'a mut Core<Py<PyAny>>,
    pub(super) blocks: &'a mut Vec<Py<PyAny>>,
    pub(super) node: Option<NodeId>,
}

impl TokenCall<Result<NodeId, Error>> for MatchCall<'_, '_> {
    fn with(self, tokens: &(impl Tokens + ?Sized)) -> Result<NodeId, Error> {
        let show = |more: &[Py<PyAny>]| copy(self.py, more, self.blocks);
        self.trie.match_prefix_with(tokens, self.node, show)
    }
}

fn copy(py: Python<'_>, blocks: &[Py<PyAny>], to: &mut Vec<Py<PyAny>>) {
    match Layout::of(py) {
        Some(layout) => layout.copy(blocks, to),
        None => to.extend(blocks.iter().map(|block| block.clone_ref(py))),
    }
}

pub(super) fn copies(py: Python<'_>, blocks: &[Py<PyAny>]) -> Vec<Py<PyAny>> {
    let mut copies = Vec::new();
    copy(py, blocks, &mut copies);
    copies
}

/// Creates a Python list of blocks for the caller.
pub(super) fn given(py: Python<'_>, blocks: Vec<Py<PyAny>>) -> PyResult<Bound<'_, PyList>> {
    match Layout::of(py) {
        Some(layout) => layout.list(blocks),
        None => PyList::new(py, blocks),
    }
}

pub(super) fn list<'py>(py: Python<'py>, tokens: &[Token]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, tokens.iter().map(|token| token.to_python(py)).collect::<PyResult<Vec<_>>>()?)
}

/// Converts the caller's blocks to a list. The items of an array become Python numbers.
pub(super) fn objects<'py>(blocks: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    if let Ok(list) = blocks.cast::<PyList>() {
        return Ok(list.clone());
    }
    let wrong = || errors::wrong_type(&format!("blocks must be a list or an array, got {}", describe(blocks)));
    if blocks.is_instance_of::<PyString>() {
        return Err(wrong());
    }
    if let Ok(list) = blocks.call_method0(intern!(blocks.py(), "tolist"))
        && let Ok(list) = list.cast_into::<PyList>()
    {
        return Ok(list);
    }
    let items = blocks.try_iter().map_err(|_| wrong())?.collect::<PyResult<Vec<_>>>()?;
    PyList::new(blocks.py(), items)
}
