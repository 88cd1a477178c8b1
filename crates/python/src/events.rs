//! Conversion of events between Python's dataclasses (`kvatlas.events`) and the index's types.

use kvatlas_index::{BlockHash, Event, Tier};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use crate::errors;
use crate::scalars::{block_hash, describe, rank, tier, worker};
use crate::sequences::{contents, names};

/// The four event classes of `kvatlas.events`, imported once.
struct Classes<'py> {
    store: &'py Bound<'py, PyType>,
    remove: &'py Bound<'py, PyType>,
    clear: &'py Bound<'py, PyType>,
    drop: &'py Bound<'py, PyType>,
}

fn classes(py: Python<'_>) -> PyResult<Classes<'_>> {
    static STORE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static REMOVE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static CLEAR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static DROP: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Ok(Classes {
        store: STORE.import(py, "kvatlas.events", "Store")?,
        remove: REMOVE.import(py, "kvatlas.events", "Remove")?,
        clear: CLEAR.import(py, "kvatlas.events", "Clear")?,
        drop: DROP.import(py, "kvatlas.events", "Drop")?,
    })
}

/// Converts an event to its Python dataclass.
pub(crate) fn to_python<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyAny>> {
    let classes = classes(py)?;
    let tuple = |hashes: &[BlockHash]| PyTuple::new(py, hashes.iter().map(|hash| hash.0));
    match event {
        Event::Store { worker, rank, tier, parent, block_hashes, content_hashes } => {
            let contents = PyTuple::new(py, content_hashes)?;
            let parent = parent.map(|parent| parent.0);
            classes.store.call1((&**worker, tuple(block_hashes)?, contents, parent, rank, tier.name()))
        }
        Event::Remove { worker, rank, tier, block_hashes } => {
            classes.remove.call1((&**worker, tuple(block_hashes)?, rank, tier.name()))
        }
        Event::Clear { worker, rank, tier } => classes.clear.call1((&**worker, rank, tier.map(Tier::name))),
        Event::Drop { worker } => classes.drop.call1((&**worker,)),
    }
}

/// Converts an iterable of Python events. All are checked before any is applied.
pub(crate) fn all_from_python(events: &Bound<'_, PyAny>) -> PyResult<Vec<Event>> {
    let wanted =
        || errors::wrong_type(&format!("events must be an iterable of kvatlas.events, got {}", describe(events)));
    let items = events.try_iter().map_err(|_| wanted())?.enumerate();
    items.map(|(at, event)| from_python(&event?, at)).collect()
}

/// Converts the Python event at index `at` of a list; errors carry a note of the index.
fn from_python(event: &Bound<'_, PyAny>, at: usize) -> PyResult<Event> {
    convert(event, at).inspect_err(|error| {
        // A note that cannot be added is no reason to hide the error itself.
        let _ = error.value(event.py()).call_method1(intern!(event.py(), "add_note"), (format!("in events[{at}]"),));
    })
}

fn convert(event: &Bound<'_, PyAny>, at: usize) -> PyResult<Event> {
    let py = event.py();
    let classes = classes(py)?;
    let worker = || Ok::<Box<str>, PyErr>(worker(&event.getattr(intern!(py, "worker"))?)?.into());
    let rank_of = || event.getattr(intern!(py, "rank"));
    let tier_of = || event.getattr(intern!(py, "tier"));
    let hashes = || names(&event.getattr(intern!(py, "block_hashes"))?);
    if event.is_instance(classes.store)? {
        let parent = event.getattr(intern!(py, "parent"))?;
        let block_hashes = hashes()?;
        let content_hashes = contents(&event.getattr(intern!(py, "content_hashes"))?)?.as_slice().to_vec();
        if block_hashes.len() != content_hashes.len() {
            let (block_hashes, content_hashes) = (block_hashes.len(), content_hashes.len());
            return Err(errors::index(&kvatlas_index::Error::LengthMismatch { block_hashes, content_hashes }));
        }
        return Ok(Event::Store {
            worker: worker()?,
            rank: rank(&rank_of()?)?,
            tier: tier(&tier_of()?)?,
            parent: some(parent).map(|parent| block_hash(&parent, || "parent".to_owned())).transpose()?,
            block_hashes,
            content_hashes,
        });
    }
    if event.is_instance(classes.remove)? {
        let (worker, rank, tier) = (worker()?, rank(&rank_of()?)?, tier(&tier_of()?)?);
        return Ok(Event::Remove { worker, rank, tier, block_hashes: hashes()? });
    }
    if event.is_instance(classes.clear)? {
        let rank = some(rank_of()?).map(|number| rank(&number)).transpose()?;
        let tier = some(tier_of()?).map(|name| tier(&name)).transpose()?;
        return Ok(Event::Clear { worker: worker()?, rank, tier });
    }
    if event.is_instance(classes.drop)? {
        return Ok(Event::Drop { worker: worker()? });
    }
    let message =
        format!("events[{at}] must be a Store, Remove, Clear or Drop of kvatlas.events, got {}", describe(event));
    Err(errors::wrong_type(&message))
}

fn some(value: Bound<'_, PyAny>) -> Option<Bound<'_, PyAny>> {
    (!value.is_none()).then_some(value)
}
