//! `kvatlas.wire`: the events of engines as values, their payloads, and the index's state of each stream.

mod batch;
mod convert;
mod payload;
mod removed;
mod stored;

use kvatlas_index::Tier;
use kvatlas_wire::encode::Dialect;
use kvatlas_wire::{self as wire, Event};
use pyo3::prelude::*;

use crate::errors;
use crate::scalars::describe;

pub(crate) use self::batch::{Batch, Readers, RefusedEvent, Tally};
pub(crate) use self::payload::{decode_batch, encode_batch, keyed_content_hashes};
pub(crate) use self::removed::Removed;
pub(crate) use self::stored::Stored;

type Object<'py> = Bound<'py, PyAny>;

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

fn to_python<'py>(py: Python<'py>, event: &Event) -> PyResult<Object<'py>> {
    match event {
        Event::Stored(it) => Ok(Bound::new(py, Stored { tier: it.tier(), it: wire::Stored::clone(it) })?.into_any()),
        Event::Removed(it) => Ok(Bound::new(py, Removed { tier: it.tier(), it: it.clone() })?.into_any()),
        Event::Cleared(_) => Ok(Bound::new(py, Cleared)?.into_any()),
    }
}

fn from_python(event: &Object<'_>, at: usize, dialect: Dialect) -> PyResult<Event> {
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

/// The tier of an event from its tier and its medium, which must agree if both are given.
fn agreed(said: Tier, has_medium: bool, medium: Tier) -> PyResult<Tier> {
    match (said, has_medium) {
        (said, false) => Ok(said),
        (Tier::Gpu, true) => Ok(medium),
        (said, true) if said == medium => Ok(said),
        (said, true) => {
            let message = format!("tier is \"{said}\", but the medium is of tier \"{medium}\": give one of them");
            Err(errors::argument("conflicting_arguments", &message))
        }
    }
}

/// The fields that say something, as they stand in a repr.
fn said(event: &Bound<'_, PyAny>, fields: &[&str]) -> PyResult<String> {
    let mut text = String::new();
    for field in fields {
        let value = event.getattr(*field)?;
        if !value.is_none() {
            text += &format!(", {field}={}", value.repr()?);
        }
    }
    Ok(text)
}
