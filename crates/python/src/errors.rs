//! Refusals: each error of the crates becomes one of the exceptions of `kvatlas.errors`.

use kvatlas_index::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// The refusal of a value that has the right type but cannot be used.
pub(crate) fn argument(code: &str, message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "InvalidArgumentError", code, message)
}

/// The refusal of a setting that cannot be used.
pub(crate) fn config(message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "ConfigError", "invalid_config", message)
}

/// The refusal of a value of the wrong type.
pub(crate) fn wrong_type(message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "InvalidTypeError", "wrong_type", message)
}

/// The exception for a refusal of the index itself.
pub(crate) fn index(error: &Error) -> PyErr {
    static FULL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match error {
        Error::Full { .. } => raise(&FULL, "IndexFullError", error.code(), &error.to_string()),
        _ => argument(error.code(), &error.to_string()),
    }
}

/// The refusal of a store of the ladder that continues a block that is not held.
#[cfg(feature = "lab")]
pub(crate) fn unknown_parent(message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "UnknownParentError", "unknown_parent", message)
}

/// The exception for a rung of the ladder that cannot go on.
#[cfg(feature = "lab")]
pub(crate) fn rung(code: &str, message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "DesignError", code, message)
}

/// The exception for a refusal of the service.
pub(crate) fn service(error: &kvatlas_follow::Error) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    raise(&CLASS, "ServiceError", error.code(), &error.to_string())
}

/// The exception for a refusal of the router.
pub(crate) fn router(error: &kvatlas_router::Error) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match error.code() {
        "invalid_config" => config(&error.to_string()),
        code => raise(&CLASS, "ServiceError", code, &error.to_string()),
    }
}

/// The refusal of a payload that is not a batch.
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
