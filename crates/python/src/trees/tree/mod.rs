//! `StringTree` and `TokenTree`: conversion of arguments and answers.

mod answers;
mod arguments;
mod classes;
mod methods;
mod sizes;

use kvatlas_trees::tree;
use kvatlas_trees::tree::Entry;
use pyo3::prelude::*;

use self::arguments::{text_key, tokens_key};
use crate::gil::detach_if;
use crate::hashing::LONG_BYTES;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<classes::StringTree>()?;
    module.add_class::<classes::TokenTree>()?;
    module.add_class::<answers::TreeMatch>()?;
    module.add_class::<answers::TreeDepths>()?;
    module.add_class::<StringEntries>()?;
    module.add_class::<TokenEntries>()?;
    module.add_function(wrap_pyfunction!(hash_node_path, module)?)?;
    module.add_function(wrap_pyfunction!(hash_token_path, module)?)?;
    module.add("GLOBAL_EVICTION_HASH", kvatlas_trees::GLOBAL_EVICTION_HASH)
}

/// A node: its whole path, and its tenants with the time of their last use.
type Node<P> = (P, Vec<(String, u64)>);

/// Gives the next node, from any thread.
type EntrySource<P> = Box<dyn Fn(Python<'_>) -> Option<Entry<P>> + Send + Sync>;

macro_rules! entries {
    ($name:ident, $path:ty) => {
        /// The nodes of a tree, returned by iter_entries(). Threads may share it: each node goes to one of them.
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

/// The name of the node that a text ends in: the first 8 bytes of BLAKE3 of its UTF-8, little-endian, and 1 for 0.
///
/// Args:
///     text: The whole text from the root on.
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

/// The name of the node that a sequence of tokens ends in: as hash_node_path(), over little-endian uint32s.
///
/// Args:
///     tokens: All tokens from the root on, shape (n,), as content_hashes() takes them.
///
/// Returns:
///     int, from 1 to 2**64 - 1. Never GLOBAL_EVICTION_HASH.
///
/// Raises:
///     InvalidTypeError: Not tokens.
///     InvalidArgumentError: A token out of range, or an array of more than one dimension.
#[pyfunction]
pub(crate) fn hash_token_path(py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<u64> {
    let tokens = tokens_key(tokens)?;
    let tokens = &*tokens;
    Ok(detach_if(py, size_of_val(tokens) >= LONG_BYTES, || tree::hash_token_path(tokens)))
}
