//! The common part of the fields of `Stored` and `Removed`.

use kvatlas_index::Tier;
use pyo3::prelude::*;

use crate::errors;

/// The tier said and that of the medium: one of them if the other was not said, both if they are the same.
pub(super) fn agreed(said: Tier, has_medium: bool, medium: Tier) -> PyResult<Tier> {
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
pub(super) fn said(event: &Bound<'_, PyAny>, fields: &[&str]) -> PyResult<String> {
    let mut text = String::new();
    for field in fields {
        let value = event.getattr(*field)?;
        if !value.is_none() {
            text += &format!(", {field}={}", value.repr()?);
        }
    }
    Ok(text)
}
