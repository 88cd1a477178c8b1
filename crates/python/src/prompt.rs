//! Prompts as arguments of a call, given by exactly one of content hashes and tokens to be hashed; and the functions
//! `content_hashes` and `prefix_hashes`.

use std::borrow::Cow;

use kvatlas_index::{BlockHash, Error, hash};
use pyo3::prelude::*;

use crate::errors;
use crate::gil::detach_if;
use crate::raw::NewArray;
use crate::scalars::{BlockSize, optional_string};
use crate::sequences::{Contents, Tokens, contents, tokens as convert};

/// Number of blocks whose lookup takes about 10 µs, long enough to detach from the interpreter.
const LONG_FIND: usize = 4096;

/// The contents of blocks in the arguments `tokens`, `content_hashes`, `lora` and `salt` of `store` and `find`.
pub(crate) enum PromptArguments<'a> {
    Hashes(Contents),
    Tokens { tokens: Tokens, lora: Option<&'a str>, salt: Option<&'a str> },
}

impl<'a> PromptArguments<'a> {
    /// Reads the arguments of a call that must have exactly one of tokens and content hashes. `call`: the method's name
    /// for errors.
    #[inline]
    pub(crate) fn new(
        call: &str,
        tokens: Option<&Bound<'_, PyAny>>,
        content_hashes: Option<&Bound<'_, PyAny>>,
        lora: Option<&'a Bound<'_, PyAny>>,
        salt: Option<&'a Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        match (tokens, content_hashes) {
            (None, Some(hashes)) => {
                if lora.is_some() || salt.is_some() {
                    let message = "lora and salt can only be used with tokens; content_hashes already include them";
                    return Err(errors::argument("conflicting_arguments", message));
                }
                contents(hashes).map(Self::Hashes)
            }
            (Some(tokens), None) => {
                let tokens = convert(tokens)?;
                Ok(Self::Tokens { tokens, lora: optional_string(lora, "lora")?, salt: optional_string(salt, "salt")? })
            }
            (None, None) => {
                Err(errors::argument("missing_argument", &format!("{call} needs content_hashes or tokens")))
            }
            (Some(_), Some(_)) => {
                let message = format!("{call} takes either content_hashes or tokens, not both");
                Err(errors::argument("conflicting_arguments", &message))
            }
        }
    }

    /// Copies content hashes to memory owned by Rust. Other threads may write to the array while the call waits without
    /// the GIL, and the index must see one state of it. Tokens are not copied, since they are read once, when they are
    /// hashed.
    #[inline]
    pub(crate) fn own(self) -> Self {
        match self {
            Self::Hashes(Contents::Array(array)) => Self::Hashes(Contents::Items(array.to_vec())),
            other => other,
        }
    }

    #[inline]
    pub(crate) fn prompt(&self) -> Prompt<'_> {
        match self {
            Self::Hashes(contents) => Prompt::Hashes(contents.as_slice()),
            Self::Tokens { tokens, lora, salt } => {
                Prompt::Tokens { tokens: tokens.as_slice(), lora: *lora, salt: *salt }
            }
        }
    }
}

/// Refuses a prompt given to `find` as a positional argument: numbers alone do not show whether they are tokens or
/// hashes.
#[inline]
pub(crate) fn by_keyword(prompt: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    match prompt {
        None => Ok(()),
        Some(_) => Err(errors::wrong_type("find takes a prompt by keyword: find(tokens=…) or find(content_hashes=…)")),
    }
}

/// The contents of a call's blocks without Python objects, for use while detached from the interpreter.
#[derive(Clone, Copy)]
pub(crate) enum Prompt<'a> {
    Hashes(&'a [u64]),
    Tokens { tokens: &'a [u32], lora: Option<&'a str>, salt: Option<&'a str> },
}

impl<'a> Prompt<'a> {
    /// Number of full blocks of the prompt.
    #[inline]
    pub(crate) fn blocks(self, block_size: u32) -> usize {
        match self {
            Self::Hashes(hashes) => hashes.len(),
            Self::Tokens { tokens, .. } => tokens.len() / block_size as usize,
        }
    }

    /// True if looking up the prompt takes about 10 µs or more, long enough to detach from the interpreter.
    #[inline]
    pub(crate) fn is_long(self) -> bool {
        match self {
            Self::Hashes(hashes) => hashes.len() >= LONG_FIND,
            Self::Tokens { tokens, .. } => size_of_val(tokens) >= LONG_BYTES,
        }
    }

    /// Content hashes of the prompt's full blocks.
    #[inline]
    pub(crate) fn hashes(self, block_size: u32) -> Cow<'a, [u64]> {
        match self {
            Self::Hashes(hashes) => Cow::Borrowed(hashes),
            Self::Tokens { tokens, lora, salt } => {
                Cow::Owned(hash::content_hashes(tokens, block_size as usize, lora, salt))
            }
        }
    }

    /// Checks that the prompt has one content hash for each of the block hashes `names`, or the tokens of exactly as
    /// many blocks.
    pub(crate) fn fills(self, names: &[BlockHash], block_size: u32) -> PyResult<()> {
        let (block_hashes, block_size) = (names.len(), block_size as usize);
        let error = match self {
            Self::Hashes(hashes) if hashes.len() != block_hashes => {
                Error::LengthMismatch { block_hashes, content_hashes: hashes.len() }
            }
            Self::Tokens { tokens, .. } if block_hashes.checked_mul(block_size) != Some(tokens.len()) => {
                Error::TokenCount { tokens: tokens.len(), block_hashes, block_size }
            }
            _ => return Ok(()),
        };
        Err(errors::index(&error))
    }
}

/// Number of bytes whose hashing takes about 10 µs, long enough to detach from the interpreter.
pub(crate) const LONG_BYTES: usize = 128 << 10;

/// Computes the content hash of each full block of tokens.
///
/// The hash of a block is XXH3-64 with seed 1337 of its tokens as little-endian uint32s. It does not depend on the
/// block's position. LoRA name and salt change the seed, so that prompts with different names or salts never share a
/// block.
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

/// Computes the prefix hash of each block of a chain that starts at the beginning of a prompt.
///
/// A prefix hash identifies a block together with all blocks before it. The first is the content hash itself. Every
/// other one is the XXH3-64 with seed 1337 of two hashes, 16 bytes in little-endian order: the prefix hash before it
/// and the block's content hash.
///
/// Args:
///     content_hashes: Content hashes of blocks 0 to n - 1, shape (n,): a uint64 array or a list of ints.
///
/// Returns:
///     numpy.ndarray of uint64, shape (n,).
///
/// Raises:
///     InvalidTypeError: content_hashes is not a uint64 array or a list of ints.
///     InvalidArgumentError: A hash is out of range.
#[pyfunction]
pub(crate) fn prefix_hashes<'py>(py: Python<'py>, content_hashes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    /// Number of prefix hashes whose computation takes about 10 µs, long enough to detach from the interpreter. Each
    /// hash depends on the one before.
    const LONG: usize = 1024;
    let contents = contents(content_hashes)?;
    let contents = contents.as_slice();
    let mut hashes = NewArray::with_length(py, contents.len())?;
    let out = hashes.as_mut_slice();
    detach_if(py, contents.len() >= LONG, || hash::prefix_hashes_into(contents, out));
    Ok(hashes.into_object())
}
