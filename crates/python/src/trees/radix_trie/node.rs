//! `TrieNode`: a handle to where a sequence ends.

use std::hash::{DefaultHasher, Hash, Hasher};

use kvatlas_trees::radix_trie::NodeId;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet, PyTuple};

use super::blocks::{copies, given, list};
use super::shared::SharedTrie;

/// The end of a cached sequence of tokens, in one RadixTrie.
///
/// Nodes are created by the trie. A node stands for the same end even after the trie has split the path to it. Once the
/// end itself is evicted, every call refuses the node (InvalidArgumentError, code "evicted_node"); it never stands for
/// another end. Two nodes are equal if they stand for the same end in the same trie.
#[pyclass(frozen, weakref, module = "kvatlas._native")]
pub(crate) struct TrieNode {
    trie: Py<SharedTrie>,
    id: NodeId,
}

impl TrieNode {
    pub(super) fn new(trie: &Py<SharedTrie>, py: Python<'_>, id: NodeId) -> Self {
        Self { trie: trie.clone_ref(py), id }
    }

    /// The node's name if it is of this trie.
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

    /// Returns whether this is the root.
    fn is_root(&self, py: Python<'_>) -> PyResult<bool> {
        self.trie.get().look(py, |state| Ok(state.trie.parent(self.id)?.is_none()))
    }

    /// Returns whether the node has no children.
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
