//! `content_hashes` and `prefix_hashes`.

use kvatlas_index::hash;
use pyo3::prelude::*;

use crate::gil::detach_if;
use crate::raw::NewArray;
use crate::scalars::{BlockSize, optional_string};
use crate::sequences::{contents, tokens as convert};

/// Number of bytes that take about 10 µs to hash.
pub(crate) const LONG_BYTES: usize = 128 << 10;

/// The content hash of each full block of tokens.
///
/// The hash of a block is XXH3-64 with seed 1337 of its tokens as little-endian uint32s. It does not depend on the
/// block's position. LoRA name and salt change the seed, so that prompts under different ones never share a block.
///
/// Args:
///     tokens: Token ids, each from 0 to 2**32 - 1, shape (n,): an array of uint32 or int32 (read in place), of
///         uint64 or int64, bytes of little-endian uint32s, or a list of ints.
///     block_size: Tokens in a block, at least 1.
///     lora: Name of the LoRA adapter; None and "" mean none.
///     salt: Cache salt or namespace; None and "" mean none.
///
/// Returns:
///     numpy.ndarray of uint64, shape (n // block_size,). A trailing partial block has no hash.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: A token is out of range, or block_size is less than 1.
#[pyfunction]
#[pyo3(signature = (tokens, block_size, lora=None, salt=None))]
pub(crate) fn content_hashes<'py>(
    py: Python<'py>,
    tokens: &Bound<'py, PyAny>,
    block_size: BlockSize,
    lora: Option<&Bound<'py, PyAny>>,
    salt: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let block_size = block_size.0 as usize;
    let (lora, salt) = (optional_string(lora, "lora")?, optional_string(salt, "salt")?);
    let tokens = convert(tokens)?;
    let tokens = tokens.as_slice();
    let mut hashes = NewArray::with_length(py, tokens.len() / block_size)?;
    let out = hashes.as_mut_slice();
    detach_if(py, size_of_val(tokens) >= LONG_BYTES, || hash::content_hashes_into(tokens, block_size, lora, salt, out));
    Ok(hashes.into_object())
}

/// The prefix hash of each block of a chain that starts at the beginning of a prompt.
///
/// It identifies a block together with all blocks before it. The first is the content hash itself. Every other one
/// is the XXH3-64 with seed 1337 of the prefix hash before it and the block's content hash, 16 bytes, little-endian.
///
/// Args:
///     content_hashes: Content hashes of blocks 0 to n - 1, shape (n,): a uint64 array or a list of ints.
///
/// Returns:
///     numpy.ndarray of uint64, shape (n,).
///
/// Raises:
///     InvalidTypeError: Not a uint64 array or a list of ints.
///     InvalidArgumentError: A hash is out of range.
#[pyfunction]
pub(crate) fn prefix_hashes<'py>(py: Python<'py>, content_hashes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    /// Number of links that take about 10 µs: each waits for the one before.
    const LONG: usize = 1024;
    let contents = contents(content_hashes)?;
    let contents = contents.as_slice();
    let mut hashes = NewArray::with_length(py, contents.len())?;
    let out = hashes.as_mut_slice();
    detach_if(py, contents.len() >= LONG, || hash::prefix_hashes_into(contents, out));
    Ok(hashes.into_object())
}
