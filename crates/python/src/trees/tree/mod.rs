//! `StringTree` and `TokenTree`, radix trees over prompts, as Python classes: conversion of arguments and answers.

mod classes;
mod methods;
mod sizes;

use std::ops::Deref;
use std::sync::Arc;

use kvatlas_trees::tree::{self, Entry, EvictionPolicy, PrefixMatch, TreeError};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors;
use crate::gil::detach_if;
use crate::prompt::LONG_BYTES;
use crate::scalars::{TopK, describe, int, string};
use crate::sequences::{Tokens, tokens};
use crate::stats::grouped;
use crate::worker_depths::WorkerDepths;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<classes::StringTree>()?;
    module.add_class::<classes::TokenTree>()?;
    module.add_class::<TreeMatch>()?;
    module.add_class::<TreeDepths>()?;
    module.add_class::<StringEntries>()?;
    module.add_class::<TokenEntries>()?;
    module.add_function(wrap_pyfunction!(hash_node_path, module)?)?;
    module.add_function(wrap_pyfunction!(hash_token_path, module)?)?;
    module.add("GLOBAL_EVICTION_HASH", kvatlas_trees::GLOBAL_EVICTION_HASH)
}

/// A node of a tree: its path from the root, and its tenants with the times of their last use.
type Node<P> = (P, Vec<(String, u64)>);

/// Function that returns the next node of a tree and may be called from any thread; `None` at the end.
type EntrySource<P> = Box<dyn Fn(Python<'_>) -> Option<Entry<P>> + Send + Sync>;

macro_rules! entries {
    ($name:ident, $path:ty) => {
        /// Iterator over the nodes of a tree, returned by iter_entries(). Threads may share it: each node goes to one
        /// of them.
        #[pyclass(frozen, module = "kvatlas._native")]
        pub(crate) struct $name(EntrySource<$path>);

        impl $name {
            fn new(next: impl Fn(Python<'_>) -> Option<Entry<$path>> + Send + Sync + 'static) -> Self {
                Self(Box::new(next))
            }
        }

        #[pymethods]
        impl $name {
            fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
                slf
            }

            fn __next__(&self, py: Python<'_>) -> Option<Node<$path>> {
                let entry = (self.0)(py)?;
                let tenants = entry.tenants.into_iter().map(|(tenant, used)| (tenant.as_ref().to_owned(), used));
                Some((entry.path, tenants.collect()))
            }
        }
    };
}

entries!(StringEntries, String);
entries!(TokenEntries, Vec<u32>);

/// Computes the hash of the node at which a text ends: the first 8 bytes of BLAKE3 of its UTF-8, little-endian, with
/// 0 replaced by 1.
///
/// Args:
///     text: The whole text from the root to the node.
///
/// Returns:
///     int, from 1 to 2**64 - 1. Never GLOBAL_EVICTION_HASH.
///
/// Raises:
///     InvalidTypeError: Not a str.
///     InvalidArgumentError: A str with a lone surrogate in it.
#[pyfunction]
pub(crate) fn hash_node_path(py: Python<'_>, text: &Bound<'_, PyAny>) -> PyResult<u64> {
    let text = text_key(text)?;
    Ok(detach_if(py, text.len() >= LONG_BYTES, || tree::hash_node_path(text)))
}

/// Computes the hash of the node at which a sequence of tokens ends, like hash_node_path(), over little-endian
/// uint32s.
///
/// Args:
///     tokens: All tokens from the root to the node, shape (n,), as accepted by content_hashes().
///
/// Returns:
///     int, from 1 to 2**64 - 1. Never GLOBAL_EVICTION_HASH.
///
/// Raises:
///     InvalidTypeError: The argument is not tokens.
///     InvalidArgumentError: A token out of range, or an array of more than one dimension.
#[pyfunction]
pub(crate) fn hash_token_path(py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<u64> {
    let tokens = tokens_key(tokens)?;
    let tokens = &*tokens;
    Ok(detach_if(py, size_of_val(tokens) >= LONG_BYTES, || tree::hash_token_path(tokens)))
}

/// The tenant with the longest prefix of a query, and the prefix's length. Returned by the match methods of
/// StringTree and TokenTree.
///
/// Lengths count the characters of a text (Unicode scalar values) or tokens.
#[pyclass(frozen, eq, hash, module = "kvatlas._native")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct TreeMatch {
    tenant: Option<Arc<str>>,
    matched: usize,
    input: usize,
    paged: usize,
}

impl From<&PrefixMatch> for TreeMatch {
    fn from(found: &PrefixMatch) -> Self {
        Self { tenant: found.tenant.clone(), matched: found.matched, input: found.input, paged: found.paged }
    }
}

#[pymethods]
impl TreeMatch {
    /// str or None: The tenant that has held the deepest matched node for longest; None if nothing matched.
    #[getter]
    fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// int: The length of the longest prefix that any tenant has.
    #[getter]
    fn matched(&self) -> usize {
        self.matched
    }

    /// int: The length of the query.
    #[getter]
    fn input(&self) -> usize {
        self.input
    }

    /// int: The length of the query that could have matched: whole pages of tokens, or the whole text.
    #[getter]
    fn paged(&self) -> usize {
        self.paged
    }

    /// float: The ratio matched / input; 0.0 for an empty input.
    #[getter]
    fn hit_ratio(&self) -> f64 {
        ratio(self.matched, self.input)
    }

    /// float: The ratio matched / paged: 1.0 if all whole pages matched; 0.0 for a query without a whole page.
    #[getter]
    fn paged_ratio(&self) -> f64 {
        ratio(self.matched, self.paged)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let tenant = self.tenant().into_pyobject(py)?.repr()?;
        Ok(format!("TreeMatch(tenant={tenant}, matched={}, input={}, paged={})", self.matched, self.input, self.paged))
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The depth to which each tenant has a prompt. Returned by StringTree.find and TokenTree.find.
///
/// Lengths count characters (Unicode scalar values), or tokens in whole pages; `unit` says which. The class implements
/// kvatlas.types.PrefixMatch.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct TreeDepths {
    ranked: WorkerDepths,
    length: usize,
    unit: &'static str,
}

impl TreeDepths {
    fn new(depths: Vec<(Arc<str>, usize)>, length: usize, unit: &'static str) -> Self {
        Self { ranked: WorkerDepths::new(depths), length, unit }
    }
}

#[pymethods]
impl TreeDepths {
    /// int: The greatest depth of any tenant; 0 if no tenant has a prefix of the prompt.
    #[getter]
    fn depth(&self) -> usize {
        self.ranked.depth()
    }

    /// int: The length of the prompt in whole pages. No depth is greater.
    #[getter]
    fn length(&self) -> usize {
        self.length
    }

    /// str: The unit of depths and length: "characters" of a StringTree, "tokens" of a TokenTree.
    #[getter]
    fn unit(&self) -> &'static str {
        self.unit
    }

    /// The tenants grouped by depth.
    ///
    /// Returns:
    ///     list of (depth, list of tenants by name), deepest first.
    fn levels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.ranked.levels(py)
    }

    /// The depth of every tenant that has a prefix of the prompt.
    ///
    /// Returns:
    ///     dict of tenant to depth, deepest first, equal depths by name.
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.ranked.scores(py)
    }

    /// The tenants with the greatest depths.
    ///
    /// Args:
    ///     top_k: Maximum number of tenants returned, at least 0.
    ///     among: Consider only these tenants, an iterable of str; None for all. Names not in the answer are ignored.
    ///
    /// Returns:
    ///     list of (tenant, depth), at most top_k, deepest first, equal depths by name.
    ///
    /// Raises:
    ///     InvalidTypeError: top_k is not an int, or among is not an iterable of str.
    ///     InvalidArgumentError: top_k is negative.
    #[pyo3(signature = (top_k=TopK(1), among=None), text_signature = "($self, top_k=1, among=None)")]
    fn best<'py>(
        &self,
        py: Python<'py>,
        top_k: TopK,
        among: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.ranked.best(py, top_k, among)
    }

    fn __repr__(&self) -> String {
        let (depth, length, unit) = (self.ranked.depth(), self.length, self.unit);
        format!(
            "TreeDepths(depth={depth}, length={length}, unit='{unit}', tenants={})",
            grouped(self.ranked.len() as u64)
        )
    }
}

/// Converts an error of a tree to an exception of `kvatlas.errors`.
fn refused(error: &TreeError) -> PyErr {
    errors::argument(error.code(), &error.to_string())
}

/// Reads a text in place, which is safe as Python strings do not change.
fn text_key<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    string(value, "text")
}

/// Tokens as a key of the tree, read in place if they are in an array.
struct TokensKey(Tokens);

impl Deref for TokensKey {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        self.0.as_slice()
    }
}

fn tokens_key(value: &Bound<'_, PyAny>) -> PyResult<TokensKey> {
    tokens(value).map(TokensKey)
}

/// Copies tokens to memory owned by Rust. Other threads may write to the array while the call waits without the GIL,
/// and the tree must see one state of it.
fn own_tokens_key(value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    Ok(match tokens(value)? {
        Tokens::Items(items) => items,
        array => array.as_slice().to_vec(),
    })
}

/// Converts a number of characters, tokens or bytes, at least 0. `what`: the argument's name for errors.
fn size(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    let value = int(value, || what.to_owned())?;
    if value.lt(0)? {
        return Err(errors::argument("out_of_range", &format!("{what} must be at least 0, got {value}")));
    }
    Ok(value.extract().unwrap_or(usize::MAX))
}

/// Converts a memory limit in bytes; `None` for no limit.
fn budget(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    value.filter(|value| !value.is_none()).map(|value| size(value, "budget_bytes")).transpose()
}

/// Argument `priority` of an insert: nodes of lower priority are evicted first.
struct Priority(i32);

impl FromPyObject<'_, '_> for Priority {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let value = int(&value, || "priority".to_owned())?;
        let wrong = || format!("priority must be from {} to {}, got {value}", i32::MIN, i32::MAX);
        value.extract().map(Self).map_err(|_| errors::argument("out_of_range", &wrong()))
    }
}

/// Argument `policy`: the order in which leaves are evicted.
struct Policy(EvictionPolicy);

impl Default for Policy {
    fn default() -> Self {
        Self(EvictionPolicy::Lru)
    }
}

impl FromPyObject<'_, '_> for Policy {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let value: &Bound<'_, PyAny> = &value;
        let name = string(value, "policy")?;
        let known = || EvictionPolicy::ALL.map(|policy| format!("\"{}\"", policy.as_str())).join(", ");
        let unknown =
            |_| errors::argument("unknown_policy", &format!("unknown policy {name:?}: it is one of {}", known()));
        name.parse().map(Self).map_err(unknown)
    }
}

/// Argument `page_size`: number of tokens in a page, a power of two.
struct PageSize(usize);

impl FromPyObject<'_, '_> for PageSize {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let value = int(&value, || "page_size".to_owned())?;
        let wrong = || format!("page_size must be a power of two from 1 to 128, got {value}");
        value.extract().map(Self).map_err(|_| errors::argument("invalid_page_size", &wrong()))
    }
}

/// Converts the hash of a node's path, as returned by hash_node_path() and hash_token_path().
fn path_hash(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let value = int(value, || "path_hash".to_owned())?;
    value.extract().map_err(|error: PyErr| match error.is_instance_of::<PyOverflowError>(value.py()) {
        true => errors::argument("out_of_range", &format!("path_hash must be from 0 to 2**64 - 1, got {value}")),
        false => error,
    })
}

/// The caller's function that chooses a tenant between a match and an insert, callable from any thread.
struct Selector(Py<PyAny>);

impl Selector {
    fn new(select: &Bound<'_, PyAny>) -> PyResult<Self> {
        if select.is_callable() {
            return Ok(Self(select.clone().unbind()));
        }
        Err(errors::wrong_type(&format!("select must be callable, got {}", describe(select))))
    }

    /// Calls the caller's function with a match and returns the chosen tenant. Attaches to the interpreter if the tree
    /// works detached.
    fn call(&self, found: &PrefixMatch) -> PyResult<Option<String>> {
        Python::attach(|py| {
            let chosen = self.0.bind(py).call1((TreeMatch::from(found),))?;
            if chosen.is_none() {
                return Ok(None);
            }
            let wrong = |_| {
                let given = describe(&chosen);
                errors::wrong_type(&format!("select must return the tenant as a str, or None; it returned {given}"))
            };
            chosen.cast::<pyo3::types::PyString>().map_err(wrong)?;
            string(&chosen, "what select returned").map(|tenant| Some(tenant.to_owned()))
        })
    }
}
