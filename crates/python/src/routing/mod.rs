//! `kvatlas.routing`: the decision core, and policies that are Python classes.

mod arguments;
mod candidates;
mod decision;
mod policies;
mod policy;
mod request;
mod router;
mod shared;

pub(crate) use policies::policies;
pub(crate) use policy::{Failure, Names, PythonPolicy};
use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<candidates::Candidates>()?;
    module.add_class::<decision::Decision>()?;
    module.add_class::<request::RoutedRequest>()?;
    module.add_class::<router::Router>()?;
    module.add_function(wrap_pyfunction!(router::policy_names, module)?)?;
    module.add_function(wrap_pyfunction!(router::routing_defaults, module)?)
}
