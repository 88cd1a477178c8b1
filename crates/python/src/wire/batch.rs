//! A batch, its refused events, and its application to an index, which keeps the state of each stream.

use std::collections::HashMap;
use std::sync::Arc;

use kvatlas_index::{BlockIndex, Tier};
use kvatlas_wire::{self as wire, Event, Reader, Reason};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::to_python;
use crate::stats::truth;

/// An event that could not be decoded.
#[pyclass(frozen, eq, module = "kvatlas._native")]
#[derive(PartialEq)]
pub(crate) struct RefusedEvent(wire::RefusedEvent);

#[pymethods]
impl RefusedEvent {
    /// int: The event's number in the batch as sent, from 0.
    #[getter]
    fn at(&self) -> usize {
        self.0.at
    }

    /// int: The number of events this stands for: more than one if the events after it were lost with it.
    #[getter]
    fn events(&self) -> u64 {
        self.0.events
    }

    /// str: The reason, a word that stays the same in every release.
    #[getter]
    fn reason(&self) -> &'static str {
        self.0.reason.code()
    }

    /// str: A description of what was found, for people.
    #[getter]
    fn detail(&self) -> &str {
        &self.0.detail
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let detail = PyString::new(py, &self.0.detail);
        Ok(format!(
            "RefusedEvent(at={}, events={}, reason='{}', detail={})",
            self.0.at,
            self.0.events,
            self.0.reason,
            detail.repr()?
        ))
    }
}

/// The events that an engine published at once, those of one step, in order. Made by decode_batch().
#[pyclass(frozen, eq, module = "kvatlas._native")]
pub(crate) struct Batch {
    pub(super) it: wire::Batch,
    /// The events as Python sees them, made when they are first asked for.
    pub(super) events: PyOnceLock<Py<PyTuple>>,
}

impl Batch {
    /// True if there are at least `blocks` blocks in the batch.
    pub(crate) fn is_long(&self, blocks: usize) -> bool {
        let names = |event: &Event| match event {
            Event::Stored(it) => it.block_hashes.len(),
            Event::Removed(it) => it.block_hashes.len(),
            Event::Cleared(_) => blocks,
        };
        self.it.events.iter().map(names).sum::<usize>() >= blocks
    }
}

impl PartialEq for Batch {
    fn eq(&self, other: &Self) -> bool {
        self.it == other.it
    }
}

#[pymethods]
impl Batch {
    /// float: The engine's clock in seconds, as sent.
    #[getter]
    fn timestamp(&self) -> f64 {
        self.it.timestamp
    }

    /// int or None: The data-parallel rank that the engine gives.
    #[getter]
    fn rank(&self) -> Option<u32> {
        self.it.rank
    }

    /// tuple of Stored, Removed or Cleared: The events that could be decoded, in order.
    #[getter]
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let events = self.events.get_or_try_init(py, || {
            let events = self.it.events.iter().map(|event| to_python(py, event)).collect::<PyResult<Vec<_>>>()?;
            Ok::<_, PyErr>(PyTuple::new(py, events)?.unbind())
        })?;
        Ok(events.bind(py).clone())
    }

    /// tuple of RefusedEvent: The events that could not be decoded.
    #[getter]
    fn refused<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let refused = self.it.refused.iter().map(|it| Bound::new(py, RefusedEvent(it.clone())));
        PyTuple::new(py, refused.collect::<PyResult<Vec<_>>>()?)
    }

    fn __repr__(&self) -> String {
        let rank = self.it.rank.map_or_else(|| "None".to_owned(), |rank| rank.to_string());
        let (events, refused) = (self.it.events.len(), self.it.refused.len());
        format!("Batch(timestamp={:?}, rank={rank}, events={events}, refused={refused})", self.it.timestamp)
    }
}

/// The outcome of applying a batch's events. Made by BlockIndex.apply(worker, batch).
#[pyclass(frozen, eq, module = "kvatlas._native")]
#[derive(PartialEq)]
pub(crate) struct Tally {
    pub(super) it: wire::Tally,
    pub(super) upper_bound: bool,
}

#[pymethods]
impl Tally {
    /// int: The number of events applied.
    #[getter]
    fn events(&self) -> u64 {
        self.it.events
    }

    /// int: The number of blocks in the stores among them.
    #[getter]
    fn stored_blocks(&self) -> u64 {
        self.it.stored_blocks
    }

    /// int: The number of blocks in the removals among them, held or not.
    #[getter]
    fn removed_blocks(&self) -> u64 {
        self.it.removed_blocks
    }

    /// int: The number of clears among them.
    #[getter]
    fn clears(&self) -> u64 {
        self.it.clears
    }

    /// dict of str to int: The numbers of events left out, by reason; those that could not be decoded among them.
    #[getter]
    fn refused<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let refused = PyDict::new(py);
        for &reason in Reason::ALL {
            let events = self.it.refused_for(reason);
            if events > 0 {
                refused.set_item(reason.code(), events)?;
            }
        }
        Ok(refused)
    }

    /// bool: True if depths of this stream are only upper bounds: the model is hybrid, or its speculative
    /// decoding looks ahead.
    #[getter]
    fn upper_bound(&self) -> bool {
        self.upper_bound
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let wire::Tally { events, stored_blocks, removed_blocks, clears, .. } = slf.get().it;
        let refused = slf.getattr("refused")?.repr()?;
        let upper_bound = truth(slf.get().upper_bound);
        Ok(format!(
            "Tally(events={events}, stored_blocks={stored_blocks}, removed_blocks={removed_blocks}, clears={clears}, \
             refused={refused}, upper_bound={upper_bound})"
        ))
    }
}

/// The state of each stream that an index was fed with.
#[derive(Default)]
pub(crate) struct Readers(Mutex<HashMap<Box<str>, Ranks>>);

/// The streams of a worker.
type Ranks = HashMap<u32, Arc<Mutex<Reader>>>;

impl Readers {
    /// Applies a batch of one stream; others of the same stream wait.
    pub(crate) fn apply(&self, batch: &Batch, index: &BlockIndex, worker: &str, rank: Option<u32>) -> Tally {
        let rank = rank.or(batch.it.rank).unwrap_or(0);
        let reader = {
            let mut readers = self.0.lock();
            if !readers.contains_key(worker) {
                readers.insert(worker.into(), HashMap::new());
            }
            let ranks = readers.get_mut(worker);
            let new = || Arc::new(Mutex::new(Reader::new(index.config().block_size)));
            ranks.map_or_else(new, |ranks| ranks.entry(rank).or_insert_with(new).clone())
        };
        let mut reader = reader.lock();
        let mut it = wire::Tally::default();
        reader.apply(&batch.it, index, worker, rank, &mut it);
        Tally { it, upper_bound: reader.upper_bound() }
    }

    /// Resets the state of the streams of a worker that was cleared, or of one rank, tier or both of it.
    pub(crate) fn clear(&self, worker: &str, rank: Option<u32>, tier: Option<Tier>) {
        let mut readers = self.0.lock();
        let Some(ranks) = readers.get_mut(worker) else { return };
        match tier {
            None => ranks.retain(|&other, _| rank.is_some_and(|rank| rank != other)),
            Some(tier) => {
                let cleared = ranks.iter().filter(|(other, _)| rank.is_none_or(|rank| rank == **other));
                cleared.for_each(|(_, reader)| reader.lock().reset_tier(tier));
            }
        }
    }

    /// Forgets the streams of a worker that is gone.
    pub(crate) fn drop_worker(&self, worker: &str) {
        self.0.lock().remove(worker);
    }
}
