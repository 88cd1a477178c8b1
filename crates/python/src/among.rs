//! The argument `among` of matches.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors;
use crate::scalars::{describe, string};

/// The names of `among`.
pub(crate) fn names(among: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let wanted = || errors::wrong_type(&format!("among must be an iterable of str, got {}", describe(among)));
    if among.is_instance_of::<PyString>() {
        return Err(wanted());
    }
    let items = among.try_iter().map_err(|_| wanted())?.enumerate();
    items.map(|(at, worker)| Ok(string(&worker?, &format!("among[{at}]"))?.to_owned())).collect()
}
