//! The caller's blocks: taken from what was given, kept, and given back.

use kvatlas_trees::radix_trie::{Error, NodeId, RadixTrie as Core, Tokens};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::tokens::{Token, TokenCall};
use crate::errors;
use crate::raw::Layout;
use crate::scalars::describe;

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

/// Makes the list of blocks that a caller gets.
pub(super) fn given(py: Python<'_>, blocks: Vec<Py<PyAny>>) -> PyResult<Bound<'_, PyList>> {
    match Layout::of(py) {
        Some(layout) => layout.list(blocks),
        None => PyList::new(py, blocks),
    }
}

pub(super) fn list<'py>(py: Python<'py>, tokens: &[Token]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, tokens.iter().map(|token| token.to_python(py)).collect::<PyResult<Vec<_>>>()?)
}

/// The caller's blocks as a list. An array gives Python's own numbers.
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
