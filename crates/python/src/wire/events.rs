//! `Cleared`, and the three events between Python and the wire.

use kvatlas_wire::encode::Dialect;
use kvatlas_wire::{self as wire, Event};
use pyo3::prelude::*;

use super::Object;
use super::removed::Removed;
use super::stored::Stored;
use crate::errors;
use crate::scalars::describe;

/// An event that says that a rank has lost all its blocks.
#[pyclass(frozen, eq, hash, module = "kvatlas._native")]
#[derive(PartialEq, Hash)]
pub(crate) struct Cleared;

#[pymethods]
impl Cleared {
    #[new]
    fn new() -> Self {
        Self
    }

    fn __repr__(&self) -> &'static str {
        "Cleared()"
    }
}

pub(super) fn to_python<'py>(py: Python<'py>, event: &Event) -> PyResult<Object<'py>> {
    match event {
        Event::Stored(it) => Ok(Bound::new(py, Stored { tier: it.tier(), it: wire::Stored::clone(it) })?.into_any()),
        Event::Removed(it) => Ok(Bound::new(py, Removed { tier: it.tier(), it: it.clone() })?.into_any()),
        Event::Cleared(_) => Ok(Bound::new(py, Cleared)?.into_any()),
    }
}

pub(super) fn from_python(event: &Object<'_>, at: usize, dialect: Dialect) -> PyResult<Event> {
    let medium = |tier| Some(dialect.medium(tier).into());
    if let Ok(stored) = event.cast::<Stored>() {
        let Stored { it, tier } = stored.get();
        let mut it = it.clone();
        it.medium = it.medium.or_else(|| medium(*tier));
        return Ok(it.into());
    }
    if let Ok(removed) = event.cast::<Removed>() {
        let Removed { it, tier } = removed.get();
        let mut it = it.clone();
        it.medium = it.medium.or_else(|| medium(*tier));
        return Ok(it.into());
    }
    if event.is_instance_of::<Cleared>() {
        return Ok(wire::Cleared.into());
    }
    let given = describe(event);
    Err(errors::wrong_type(&format!("events[{at}] must be a Stored, Removed or Cleared of kvatlas.wire, got {given}")))
}
