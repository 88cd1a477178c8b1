//! `kvatlas.wire`: the events of engines as values, their payloads, and the index's state of each stream.

mod batch;
mod convert;
mod events;
mod fields;
mod payload;
mod readers;
mod removed;
mod stored;

pub(crate) use batch::{Batch, RefusedEvent, Tally};
pub(crate) use events::Cleared;
pub(crate) use payload::{decode_batch, encode_batch, keyed_content_hashes};
pub(crate) use readers::Readers;
pub(crate) use removed::Removed;
pub(crate) use stored::Stored;

use pyo3::prelude::*;

type Object<'py> = Bound<'py, PyAny>;
