//! The Python module `kvatlas._native`: conversion between Python's types and the crates', and no logic.

mod buffer;
mod errors;
mod events;
mod family;
mod files;
mod found;
mod gil;
mod hashing;
mod index;
mod ladder;
mod layout;
mod prompt;
mod replay;
mod scalars;
mod sequences;
mod service;
mod text;
mod wire;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<index::BlockIndex>()?;
    module.add_class::<found::Match>()?;
    module.add_class::<service::Service>()?;
    module.add_class::<wire::Batch>()?;
    module.add_class::<wire::Cleared>()?;
    module.add_class::<wire::Refused>()?;
    module.add_class::<wire::Removed>()?;
    module.add_class::<wire::Stored>()?;
    module.add_class::<wire::Tally>()?;
    module.add_function(wrap_pyfunction!(hashing::content_hashes, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::prefix_hashes, module)?)?;
    module.add_function(wrap_pyfunction!(wire::decode_batch, module)?)?;
    module.add_function(wrap_pyfunction!(wire::encode_batch, module)?)?;
    module.add_function(wrap_pyfunction!(wire::keyed_content_hashes, module)?)?;
    ladder::register(module)?;
    replay::register(module)?;
    family::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("build_profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
    Ok(())
}
