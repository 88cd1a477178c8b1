//! The Python module `kvatlas._native`: conversion between the types of Python and of the Rust crates, without other
//! logic.

#[cfg(feature = "lab")]
mod bench;
#[cfg(feature = "lab")]
mod designs;
mod errors;
mod events;
mod files;
mod gil;
mod index;
mod index_match;
mod loading;
mod prompt;
#[allow(unsafe_code, reason = "the one room that has it; each use says why it is sound")]
mod raw;
mod router;
mod router_policy;
mod routing;
mod scalars;
mod sequences;
mod service;
mod sites;
mod stats;
#[cfg(feature = "trees")]
mod trees;
mod wire;
#[cfg(feature = "trees")]
mod worker_depths;

use pyo3::prelude::*;

/// The memory allocator, jemalloc. A router allocates and frees buffers of up to 64 KiB for every request, on which the
/// system's allocator spends a tenth of the router's CPU time. Python's own objects do not use this allocator.
#[cfg(all(feature = "jemalloc", target_os = "linux", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<index::BlockIndex>()?;
    module.add_class::<loading::LoadableIndex>()?;
    module.add_class::<index_match::Match>()?;
    module.add_class::<router::RouterServer>()?;
    module.add_class::<service::Service>()?;
    module.add_class::<sites::SitePublisher>()?;
    module.add_class::<sites::Sites>()?;
    module.add_class::<sites::SitesMatch>()?;
    module.add_class::<wire::Batch>()?;
    module.add_class::<wire::Cleared>()?;
    module.add_class::<wire::RefusedEvent>()?;
    module.add_class::<wire::Removed>()?;
    module.add_class::<wire::Stored>()?;
    module.add_class::<wire::Tally>()?;
    module.add_function(wrap_pyfunction!(prompt::content_hashes, module)?)?;
    module.add_function(wrap_pyfunction!(prompt::prefix_hashes, module)?)?;
    module.add_function(wrap_pyfunction!(router::adopt_sockets, module)?)?;
    module.add_function(wrap_pyfunction!(router::prompt_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(router::unused_sockets, module)?)?;
    module.add_function(wrap_pyfunction!(service::compare_snapshots, module)?)?;
    module.add_function(wrap_pyfunction!(wire::decode_batch, module)?)?;
    module.add_function(wrap_pyfunction!(wire::encode_batch, module)?)?;
    module.add_function(wrap_pyfunction!(wire::keyed_content_hashes, module)?)?;
    routing::register(module)?;
    #[cfg(feature = "trees")]
    trees::register(module)?;
    #[cfg(feature = "lab")]
    designs::register(module)?;
    #[cfg(feature = "lab")]
    bench::register(module)?;
    module.add("has_lab", cfg!(feature = "lab"))?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("build_profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
    Ok(())
}
