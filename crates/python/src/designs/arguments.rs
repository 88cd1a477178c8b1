//! The arguments of the designs.

use pyo3::prelude::*;

use crate::errors;
use crate::scalars::{argument, flag, int};

argument! {
    /// True if a rung's deviations are mended.
    Strict(bool) = |value| flag(value, "strict");
    /// The number of threads that apply a rung's events.
    EventThreads(usize) = |value| size(value, "event_threads");
    /// The number of blocks that a positional rung jumps.
    JumpSize(usize) = |value| size(value, "jump_size");
    /// The number of actors of a sharded rung.
    Shards(usize) = |value| size(value, "shards");
    /// The number of workers in a group.
    GroupSize(usize) = |value| size(value, "group_size");
}

/// A number of things, at least 1.
fn size(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    let value = int(value, || what.to_owned())?;
    if value.lt(1)? {
        return Err(errors::argument("out_of_range", &format!("{what} must be at least 1, got {value}")));
    }
    Ok(value.extract().unwrap_or(usize::MAX))
}
