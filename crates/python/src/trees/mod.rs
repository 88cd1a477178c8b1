//! Radix trees, a trie and a prefix table of other routers and engines (`kvatlas.trees`), as Python classes.

mod prefix_table;
mod radix_trie;
mod tree;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

use crate::errors;
use crate::raw::{Array, Offer, offer};
use crate::scalars::describe;
use crate::sequences::tokens;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    tree::register(module)?;
    radix_trie::register(module)?;
    prefix_table::register(module)
}

enum TokenBytes {
    InPlace(Array<u8>),
    Written(Vec<u8>),
}

impl TokenBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::InPlace(bytes) => bytes,
            Self::Written(bytes) => bytes,
        }
    }
}

/// Converts tokens to bytes: bytes stay as they are, an array of integers or a list of ints becomes big-endian 32-bit
/// numbers.
fn token_bytes(object: &Bound<'_, PyAny>, what: &str) -> PyResult<TokenBytes> {
    let is_bytes = object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>()
        || object.is_instance_of::<PyMemoryView>();
    if is_bytes {
        return match offer(object, what)? {
            Offer::U8(bytes) => Ok(TokenBytes::InPlace(bytes)),
            _ => Err(errors::wrong_type(&format!("{what} must be bytes or token ids, got {}", describe(object)))),
        };
    }
    let ids = tokens(object)?;
    Ok(TokenBytes::Written(ids.as_slice().iter().flat_map(|id| id.to_be_bytes()).collect()))
}
