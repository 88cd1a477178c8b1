//! `StringTree` and `TokenTree`: conversion of arguments and answers.

mod answers;
mod arguments;
mod classes;
mod entries;
mod hashes;
mod methods;
mod sizes;

use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<classes::StringTree>()?;
    module.add_class::<classes::TokenTree>()?;
    module.add_class::<answers::TreeMatch>()?;
    module.add_class::<answers::TreeDepths>()?;
    module.add_class::<entries::StringEntries>()?;
    module.add_class::<entries::TokenEntries>()?;
    module.add_function(wrap_pyfunction!(hashes::hash_node_path, module)?)?;
    module.add_function(wrap_pyfunction!(hashes::hash_token_path, module)?)?;
    module.add("GLOBAL_EVICTION_HASH", kvatlas_trees::GLOBAL_EVICTION_HASH)
}
