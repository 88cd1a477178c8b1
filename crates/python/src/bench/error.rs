//! Refusals of the load bench as exceptions.

use kvatlas_bench::Error;
use pyo3::prelude::*;

use crate::errors;
use crate::files::failed;

/// A refusal as the exception of `kvatlas.errors`, or of Python's own if it is the system's.
pub(super) fn raised(error: &Error) -> PyErr {
    match error {
        Error::Io { path, source } => failed(path, source),
        _ => errors::argument(error.code(), &error.to_string()),
    }
}
