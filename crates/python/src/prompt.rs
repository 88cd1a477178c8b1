//! The contents of the blocks of a call: content hashes, or tokens to be hashed. Exactly one of the two.

use std::borrow::Cow;

use kvatlas_index::{BlockHash, Error, hash};
use pyo3::prelude::*;

use crate::errors;
use crate::hashing::LONG_BYTES;
use crate::scalars::optional_string;
use crate::sequences::{Contents, Tokens, contents, tokens as convert};

/// Number of blocks that take about 10 µs to look up.
const LONG_FIND: usize = 4096;

/// The arguments `tokens`, `content_hashes`, `lora` and `salt` of `store` and `find`.
pub(crate) enum PromptArguments<'a> {
    Hashes(Contents),
    Tokens { tokens: Tokens, lora: Option<&'a str>, salt: Option<&'a str> },
}

impl<'a> PromptArguments<'a> {
    /// Takes exactly one of tokens and content hashes, and refuses the call otherwise. `call` names the method in
    /// errors.
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

    /// Copies content hashes into memory of our own. Others may write to an array while a call waits without the GIL:
    /// an index must see one state of it. Tokens are read once, when they are hashed.
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

/// Refuses a prompt given to `find` by position: numbers alone do not say whether they are tokens or hashes.
#[inline]
pub(crate) fn by_keyword(prompt: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    match prompt {
        None => Ok(()),
        Some(_) => Err(errors::wrong_type("find takes a prompt by keyword: find(tokens=…) or find(content_hashes=…)")),
    }
}

/// The contents of a call's blocks without Python's objects, for use while other threads have the interpreter.
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

    /// True if the prompt takes about 10 µs or more to look up.
    #[inline]
    pub(crate) fn is_long(self) -> bool {
        match self {
            Self::Hashes(hashes) => hashes.len() >= LONG_FIND,
            Self::Tokens { tokens, .. } => size_of_val(tokens) >= LONG_BYTES,
        }
    }

    /// The content hash of each full block.
    #[inline]
    pub(crate) fn hashes(self, block_size: u32) -> Cow<'a, [u64]> {
        match self {
            Self::Hashes(hashes) => Cow::Borrowed(hashes),
            Self::Tokens { tokens, lora, salt } => {
                Cow::Owned(hash::content_hashes(tokens, block_size as usize, lora, salt))
            }
        }
    }

    /// Refuses a prompt that is not one content hash for each name, or the tokens of just as many blocks.
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
