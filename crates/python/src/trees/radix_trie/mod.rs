//! `RadixTrie` and `TrieNode`, a trie of cached pages as Python classes.
//!
//! Blocks are objects of the caller, and freeing one may run the caller's code, which may use the trie. So nothing that
//! could run Python code happens while the trie is locked: no object is created or freed, only reference counts are
//! increased and references moved.

mod node;
mod tokens;

use kvatlas_trees::radix_trie::{NodeId, RadixTrie as Core};
use parking_lot::MutexGuard;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PySet};

use self::node::{InsertCall, MatchCall, SharedTrie, State, copies, given, list, objects, refused};
pub(crate) use node::TrieNode;
use tokens::{Token, Words};

use crate::errors;
use crate::scalars::{describe, int};
use crate::stats::grouped;

/// A trie of the cached pages that a prompt can use, for an allocator of paged attention inside an engine.
///
/// A radix trie over whole pages of tokens with one block for each page. Blocks are any values of the caller (slot
/// numbers, objects) and are returned as the same objects. Pages in use by a running sequence are marked and stay. The
/// others are evicted when blocks are needed: least recently created or released first, from the end, children before
/// parents. Matching does not make pages more recent.
///
/// Any number of threads may use a trie at once. A refused call changes nothing.
///
/// Args:
///     page_size: Number of tokens in a page, at least 1.
///
/// Raises:
///     InvalidTypeError: page_size is not an int.
///     InvalidArgumentError: page_size is less than 1.
#[pyclass(frozen, weakref, module = "kvatlas._native")]
pub(crate) struct RadixTrie {
    shared: Py<SharedTrie>,
}

/// Depth, tokens and blocks of a node, to be converted to Python objects once the trie is unlocked.
type NodeText = (usize, Vec<Token>, Vec<Py<PyAny>>);

#[pymethods]
impl RadixTrie {
    #[new]
    #[pyo3(signature = (page_size=None), text_signature = "(page_size=1)")]
    fn new(py: Python<'_>, page_size: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let page_size = match page_size {
            None => 1,
            Some(given) => {
                let given = int(given, || "page_size".to_owned())?;
                given.extract::<usize>().ok().filter(|&size| size > 0).ok_or_else(|| {
                    errors::argument("invalid_page_size", &format!("page_size must be at least 1, got {given}"))
                })?
            }
        };
        let trie = Core::new(page_size).map_err(|error| refused(&error))?;
        Ok(Self { shared: Py::new(py, SharedTrie::new(page_size, trie))? })
    }

    /// int: The number of tokens in a page.
    #[getter]
    fn page_size(&self) -> usize {
        self.shared.get().page_size
    }

    /// TrieNode: The node at which every sequence begins.
    #[getter]
    fn root(slf: &Bound<'_, Self>) -> TrieNode {
        let root = slf.get().lock(slf.py()).trie.root();
        TrieNode::new(&slf.get().shared, slf.py(), root)
    }

    /// Adds tokens with a block for each page.
    ///
    /// Pages that exist already keep their blocks; the caller's blocks for those pages are not taken (insert_with_count
    /// returns their number). A new leaf can be evicted until marked. O(tokens).
    ///
    /// Args:
    ///     tokens: Tokens of whole pages, shape (n * page_size,): an integer array, read in place, or a list of ints or
    ///         strs.
    ///     blocks: One block for each page: a list or another iterable.
    ///     node: The node whose end the tokens follow; None for the root.
    ///
    /// Returns:
    ///     TrieNode: The end of the sequence, for inserting what follows and for marking.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: No tokens, tokens that are not whole pages, not one block for each page, or a node
    ///         that was evicted or belongs to another trie.
    #[pyo3(signature = (tokens, blocks, node=None))]
    fn insert(
        slf: &Bound<'_, Self>,
        tokens: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        node: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<TrieNode> {
        Self::insert_with_count(slf, tokens, blocks, node).map(|(node, _)| node)
    }

    /// Adds tokens like insert, and also returns the number of pages that existed already.
    ///
    /// Args:
    ///     tokens: Tokens of whole pages, as in insert().
    ///     blocks: One block for each page, as in insert().
    ///     node: The node whose end the tokens follow, as in insert().
    ///
    /// Returns:
    ///     tuple[TrieNode, int]: The end of the sequence, and the number n of pages that existed already. The first n
    ///     of the given blocks were not taken and still belong to the caller.
    ///
    /// Raises:
    ///     InvalidTypeError: For the reasons of insert().
    ///     InvalidArgumentError: For the reasons of insert().
    #[pyo3(signature = (tokens, blocks, node=None))]
    fn insert_with_count(
        slf: &Bound<'_, Self>,
        tokens: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        node: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(TrieNode, usize)> {
        let words = Words::new(tokens)?;
        let blocks = objects(blocks)?;
        let node = Self::own(slf, node)?;
        let count = blocks.len();
        let mut state = slf.get().lock(slf.py());
        let State { trie, symbols } = &mut *state;
        let inserted = trie.can_insert(words.len(), count, node).and_then(|()| {
            let raw = symbols.hold(&words);
            let inserted = words.give(&raw, InsertCall { trie, blocks: &blocks, node });
            let known = inserted.as_ref().map_or(count, |&(_, known)| known);
            symbols.release(raw.get(..known * slf.get().shared.get().page_size).unwrap_or_default());
            inserted
        });
        drop(state);
        let (end, known) = inserted.map_err(|error| refused(&error))?;
        Ok((TrieNode::new(&slf.get().shared, slf.py(), end), known))
    }

    /// Finds the longest cached prefix of tokens, in whole pages.
    ///
    /// A match that ends inside a node splits the node, so that the returned node ends exactly there. Nothing becomes
    /// more recently used. O(tokens).
    ///
    /// Args:
    ///     tokens: Tokens, at least one. A partial page at the end is ignored.
    ///     node: The node whose end the tokens follow; None for the root.
    ///
    /// Returns:
    ///     tuple[TrieNode, list]: The node at the end of the match (node itself if nothing matches), and the blocks of
    ///     the matched pages, in order.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: No tokens, or a node that was evicted or belongs to another trie.
    #[pyo3(signature = (tokens, node=None))]
    fn match_prefix<'py>(
        slf: &Bound<'py, Self>,
        tokens: &Bound<'py, PyAny>,
        node: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(TrieNode, Bound<'py, PyList>)> {
        let py = slf.py();
        let words = Words::new(tokens)?;
        let node = Self::own(slf, node)?;
        let mut blocks = Vec::new();
        let mut state = slf.get().lock(py);
        let State { trie, symbols } = &mut *state;
        let end = words.give(&symbols.find(&words), MatchCall { py, trie, blocks: &mut blocks, node });
        drop(state);
        let end = end.map_err(|error| refused(&error))?;
        Ok((TrieNode::new(&slf.get().shared, slf.py(), end), given(py, blocks)?))
    }

    /// Marks a node and all nodes above it as used by a sequence. They are not evicted until the sequence releases
    /// them.
    ///
    /// Mark the deepest node as the sequence grows. Marking a node again, or the root, changes nothing. O(nodes up to
    /// the root).
    ///
    /// Args:
    ///     node: A node of this trie.
    ///     seq_id: The sequence's number, from -2**63 to 2**63 - 1.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A node that was evicted or belongs to another trie, or a number out of range.
    fn mark_in_use_by(slf: &Bound<'_, Self>, node: &Bound<'_, PyAny>, seq_id: &Bound<'_, PyAny>) -> PyResult<()> {
        let (node, sequence) = (Self::own_node(slf, node)?, sequence(seq_id)?);
        let marked = slf.get().lock(slf.py()).trie.mark_in_use_by(node, sequence);
        marked.map_err(|error| refused(&error))
    }

    /// Releases a node and all nodes above it from a sequence. They become the most recently used ones.
    ///
    /// Release once, from the deepest marked node. O(nodes up to the root).
    ///
    /// Args:
    ///     node: A node of this trie.
    ///     seq_id: The sequence's number.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: The sequence does not use the node, the node was evicted or belongs to another trie,
    ///         or a number is out of range.
    fn mark_not_in_use_by(slf: &Bound<'_, Self>, node: &Bound<'_, PyAny>, seq_id: &Bound<'_, PyAny>) -> PyResult<()> {
        let (node, sequence) = (Self::own_node(slf, node)?, sequence(seq_id)?);
        let released = slf.get().lock(slf.py()).trie.mark_not_in_use_by(node, sequence);
        released.map_err(|error| refused(&error))
    }

    /// Removes blocks from the trie and returns them to the caller.
    ///
    /// The least recently created or released leaf not in use is evicted first, from its end; then the next leaf, and
    /// parents once their children are gone. If only the end of a leaf was needed, the rest of the leaf stays, and
    /// nodes that stood for its old end are refused from then on. O(evicted * log leaves).
    ///
    /// Args:
    ///     desired_num_evicted: Number of blocks to evict; 0 or less evicts none.
    ///
    /// Returns:
    ///     list: The blocks, leaf by leaf, those of each leaf in the order of their tokens. Fewer than desired if all
    ///     others are in use.
    ///
    /// Raises:
    ///     InvalidTypeError: desired_num_evicted is not an int.
    fn evict_blocks<'py>(
        &self,
        py: Python<'py>,
        desired_num_evicted: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let wanted: Bound<'_, PyInt> = int(desired_num_evicted, || "desired_num_evicted".to_owned())?;
        let wanted = if wanted.lt(0)? { 0 } else { wanted.extract().unwrap_or(usize::MAX) };
        let mut evicted = Vec::new();
        let mut state = self.lock(py);
        let State { trie, symbols } = &mut *state;
        trie.evict_with(wanted, |words, blocks| {
            symbols.release(words);
            evicted.extend(blocks);
        });
        drop(state);
        given(py, evicted)
    }

    /// All blocks in the trie. O(blocks).
    ///
    /// Returns:
    ///     set: A new set.
    ///
    /// Raises:
    ///     TypeError: A block cannot be hashed.
    fn get_all_blocks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PySet>> {
        let blocks: Vec<_> = self.lock(py).trie.all_blocks().map(|block| block.clone_ref(py)).collect();
        PySet::new(py, blocks)
    }

    /// The blocks that evict_blocks() could return now. O(nodes).
    ///
    /// Returns:
    ///     set: A new set.
    ///
    /// Raises:
    ///     TypeError: A block cannot be hashed.
    fn get_evictable_blocks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PySet>> {
        let blocks: Vec<_> = self.lock(py).trie.evictable_blocks().map(|block| block.clone_ref(py)).collect();
        PySet::new(py, blocks)
    }

    /// The trie as text: a line for each node, depth first, children in the order of insertion.
    ///
    /// Args:
    ///     print_blocks: True to show the blocks after the tokens.
    ///
    /// Returns:
    ///     list[str]: Two dashes for each level, then the tokens; with print_blocks also " : " and the blocks.
    #[pyo3(signature = (print_blocks=false))]
    fn pretty_format(&self, py: Python<'_>, print_blocks: bool) -> PyResult<Vec<String>> {
        let mut nodes: Vec<NodeText> = Vec::new();
        let state = self.lock(py);
        state.trie.visit(|depth, words, blocks| {
            let blocks = if print_blocks { copies(py, blocks) } else { Vec::new() };
            nodes.push((depth, state.symbols.tokens(words), blocks));
        });
        drop(state);
        let line = |(depth, tokens, blocks): NodeText| {
            let dashes = "--".repeat(depth);
            let tokens = list(py, &tokens)?.repr()?.to_string();
            let blocks = if print_blocks { format!(" : {}", PyList::new(py, blocks)?.repr()?) } else { String::new() };
            Ok(format!("{dashes}{tokens}{blocks}"))
        };
        nodes.into_iter().map(line).collect()
    }

    /// Prints the text that pretty_format() returns.
    ///
    /// Args:
    ///     print_blocks: True to show the blocks after the tokens.
    #[pyo3(signature = (print_blocks=true))]
    fn pretty_print(&self, py: Python<'_>, print_blocks: bool) -> PyResult<()> {
        let print = py.import("builtins")?.getattr(intern!(py, "print"))?;
        self.pretty_format(py, print_blocks)?.into_iter().try_for_each(|line| print.call1((line,)).map(|_| ()))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.lock(py).trie.len()
    }

    /// Returns true, even for an empty trie.
    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (blocks, nodes) = {
            let state = self.lock(py);
            (state.trie.len(), state.trie.node_count() - 1)
        };
        let [blocks, nodes] = [blocks, nodes].map(|number| grouped(number as u64));
        format!("RadixTrie(page_size={}, blocks={blocks}, nodes={nodes})", self.page_size())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.shared)
    }
}

impl RadixTrie {
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.shared.get().lock(py)
    }

    fn own(slf: &Bound<'_, Self>, node: Option<&Bound<'_, PyAny>>) -> PyResult<Option<NodeId>> {
        node.map(|node| Self::own_node(slf, node)).transpose()
    }

    /// Id of a node that must belong to this trie.
    fn own_node(slf: &Bound<'_, Self>, node: &Bound<'_, PyAny>) -> PyResult<NodeId> {
        let node = node
            .cast::<TrieNode>()
            .map_err(|_| errors::wrong_type(&format!("node must be a TrieNode, got {}", describe(node))))?;
        node.get()
            .of(&slf.get().shared)
            .ok_or_else(|| errors::argument("foreign_node", "the node belongs to another trie"))
    }
}

fn sequence(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let value = int(value, || "seq_id".to_owned())?;
    let wrong = |_| errors::argument("out_of_range", &format!("seq_id must be from -2**63 to 2**63 - 1, got {value}"));
    value.extract().map_err(wrong)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RadixTrie>()?;
    module.add_class::<TrieNode>()
}
