//! Conversion of the errors of the Rust crates to the exceptions of `kvatlas.errors`.

use kvatlas_index::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Creates the exception for an argument that has the right type but an unusable value.
pub(crate) fn argument(code: &str, message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "InvalidArgumentError", code, message)
}

/// Creates the exception for a setting with an unusable value.
pub(crate) fn config(message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "ConfigError", "invalid_config", message)
}

/// Creates the exception for an argument of the wrong type.
pub(crate) fn wrong_type(message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "InvalidTypeError", "wrong_type", message)
}

/// Creates the exception for an error of the block index.
pub(crate) fn index(error: &Error) -> PyErr {
    static FULL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match error {
        Error::Full { .. } => raise(&FULL, "IndexFullError", error.code(), &error.to_string()),
        _ => argument(error.code(), &error.to_string()),
    }
}

/// Creates the exception for a store that continues a block which the worker does not hold, in a design of
/// `kvatlas.lab.designs`.
#[cfg(feature = "lab")]
pub(crate) fn unknown_parent(message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "UnknownParentError", "unknown_parent", message)
}

/// Creates the exception for an index design of `kvatlas.lab.designs` that has failed.
#[cfg(feature = "lab")]
pub(crate) fn rung(code: &str, message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "DesignError", code, message)
}

/// Creates the exception for an error of the index service.
pub(crate) fn service(error: &kvatlas_follow::Error) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "ServiceError", error.code(), &error.to_string())
}

/// Creates the exception for an error of the router.
pub(crate) fn router(error: &kvatlas_router::Error) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match error.code() {
        "invalid_config" => config(&error.to_string()),
        code => raise(&CLASS, "ServiceError", code, &error.to_string()),
    }
}

/// Creates the exception for a payload that is not a batch of events.
pub(crate) fn decode(code: &str, message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "DecodeError", code, message)
}

fn raise(class: &'static PyOnceLock<Py<PyType>>, name: &str, code: &str, message: &str) -> PyErr {
    Python::attach(|py| {
        let made = class.import(py, "kvatlas.errors", name).and_then(|class| class.call1((message, code)));
        made.map_or_else(|failed| failed, PyErr::from_value)
    })
}
