//! The names of nodes by their whole paths, for `evict_by_path_hash`.

use kvatlas_trees::tree;
use pyo3::prelude::*;

use super::arguments::{text_key, tokens_key};
use crate::gil::detach_if;
use crate::hashing::LONG_BYTES;

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
