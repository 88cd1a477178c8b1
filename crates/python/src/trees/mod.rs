//! The structures of `kvatlas.trees`.

mod prefix_table;
mod radix_trie;
mod token_bytes;
mod tree;

use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    tree::register(module)?;
    radix_trie::register(module)?;
    prefix_table::register(module)
}
