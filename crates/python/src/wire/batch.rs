//! Batches of events: decoding from payloads, encoding, and application to an index, which keeps the state of each
//! stream; and content hashes of blocks with extra keys.

use std::collections::HashMap;
use std::sync::Arc;

use kvatlas_index::{BlockIndex, Tier};
use kvatlas_wire::encode::{Dialect, encode};
use kvatlas_wire::keys::content_hash;
use kvatlas_wire::{self as wire, Event, Reader, Reason};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use super::{Object, from_python, keys, to_python};
use crate::errors;
use crate::gil::detach_if;
use crate::prompt::LONG_BYTES;
use crate::raw::{NewArray, Offer, offer};
use crate::scalars::{BlockSize, Rank, describe, optional_string, string};
use crate::sequences::tokens as convert;
use crate::stats::truth;

/// An event of a batch that could not be decoded.
#[pyclass(frozen, eq, module = "kvatlas._native")]
#[derive(PartialEq)]
pub(crate) struct RefusedEvent(wire::RefusedEvent);

#[pymethods]
impl RefusedEvent {
    /// int: The event's index in the batch as sent, from 0.
    #[getter]
    fn at(&self) -> usize {
        self.0.at
    }

    /// int: The number of events that could not be decoded: more than one if the following events were lost with
    /// this one.
    #[getter]
    fn events(&self) -> u64 {
        self.0.events
    }

    /// str: The reason, a word that is the same in every release.
    #[getter]
    fn reason(&self) -> &'static str {
        self.0.reason.code()
    }

    /// str: A description of the error, for people.
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

/// The events of one engine step, published in one message, in order. Returned by decode_batch().
#[pyclass(frozen, eq, module = "kvatlas._native")]
pub(crate) struct Batch {
    pub(super) it: wire::Batch,
    /// The events as Python objects, created on first use.
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
    /// float: The time on the engine's clock when the batch was sent, in seconds.
    #[getter]
    fn timestamp(&self) -> f64 {
        self.it.timestamp
    }

    /// int or None: The data-parallel rank in the batch; None if the engine sends none.
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

/// Counts of the events applied from a batch, returned by BlockIndex.apply(worker, batch).
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

    /// int: The number of blocks in the applied stores.
    #[getter]
    fn stored_blocks(&self) -> u64 {
        self.it.stored_blocks
    }

    /// int: The number of blocks in the applied removals, held or not.
    #[getter]
    fn removed_blocks(&self) -> u64 {
        self.it.removed_blocks
    }

    /// int: The number of applied clears.
    #[getter]
    fn clears(&self) -> u64 {
        self.it.clears
    }

    /// dict of str to int: The number of events left out by reason, including undecodable events.
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

    /// bool: True if depths of the stream are only upper bounds: the model is hybrid, or the engine's speculative
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

/// The state of each event stream whose batches were applied to an index, by worker and rank.
#[derive(Default)]
pub(crate) struct Readers(Mutex<HashMap<Box<str>, Ranks>>);

/// The state of each event stream of one worker, by rank.
type Ranks = HashMap<u32, Arc<Mutex<Reader>>>;

impl Readers {
    /// Applies a batch of one stream to an index. Other batches of the same stream wait meanwhile.
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

    /// Resets the state of the streams of a worker whose blocks were cleared, or of one rank, one tier or both.
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

    /// Drops the state of the streams of a removed worker.
    pub(crate) fn drop_worker(&self, worker: &str) {
        self.0.lock().remove(worker);
    }
}

/// Decodes a batch of events from a payload: the third frame of an engine's message.
///
/// Accepts messages of vLLM 0.11 to 0.33 and SGLang up to 0.5.23, as maps or as the older arrays. An event that cannot
/// be decoded is left out, and listed in the batch's `refused`.
///
/// Args:
///     payload: bytes, or any contiguous buffer: a bytearray, a memoryview, a zmq.Frame.
///
/// Returns:
///     Batch
///
/// Raises:
///     InvalidTypeError: payload is not bytes.
///     DecodeError: The payload is not a batch.
#[pyfunction]
pub(crate) fn decode_batch(py: Python<'_>, payload: &Object<'_>) -> PyResult<Batch> {
    let decoded = match payload.cast::<PyBytes>() {
        Ok(bytes) => {
            let bytes = bytes.as_bytes();
            detach_if(py, bytes.len() >= LONG_BYTES, || wire::decode(bytes))
        }
        // Others may write into it: the interpreter is not let go of.
        Err(_) => match offer(payload, "payload")? {
            Offer::U8(bytes) => wire::decode(&bytes),
            _ => return Err(errors::wrong_type(&format!("payload must be bytes, got {}", describe(payload)))),
        },
    };
    let it = decoded.map_err(|error| errors::decode(error.code(), &error.to_string()))?;
    Ok(Batch { it, events: PyOnceLock::new() })
}

/// Writes the payload of a batch of events, byte for byte as an engine writes it.
///
/// Fields that the engine's format does not have are left out, as the engine does: SGLang has no groups, and vLLM
/// shows a salt on the first block of a prompt only.
///
/// Args:
///     events: An iterable of Stored, Removed and Cleared.
///     timestamp: The engine's clock in seconds.
///     rank: Data-parallel rank; None for none.
///     dialect: "vllm" or "sglang" for the present format, "vllm-arrays" or "sglang-arrays" for the older one.
///
/// Returns:
///     bytes
///
/// Raises:
///     InvalidTypeError: An item of events is not an event, or an argument has the wrong type.
///     InvalidArgumentError: dialect is unknown, or rank is out of range.
#[pyfunction]
#[pyo3(signature = (events, *, timestamp, rank=Some(Rank(0)), dialect=None))]
#[pyo3(text_signature = "(events, *, timestamp, rank=0, dialect='vllm')")]
pub(crate) fn encode_batch<'py>(
    py: Python<'py>,
    events: &Object<'py>,
    timestamp: f64,
    rank: Option<Rank>,
    dialect: Option<&Object<'py>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let dialect = match dialect {
        Some(name) => string(name, "dialect")?
            .parse::<Dialect>()
            .map_err(|error| errors::argument("unknown_dialect", &error.to_string()))?,
        None => Dialect::default(),
    };
    let wanted = || errors::wrong_type(&format!("events must be an iterable of events, got {}", describe(events)));
    let items = events.try_iter().map_err(|_| wanted())?.enumerate();
    let events = items.map(|(at, event)| from_python(&event?, at, dialect)).collect::<PyResult<Vec<_>>>()?;
    let batch = wire::Batch { timestamp, rank: rank.map(|rank| rank.0), events, refused: Vec::new() };
    Ok(PyBytes::new(py, &encode(&batch, dialect)))
}

/// Computes the content hash of each full block of tokens, where some blocks have extra keys for images or prompt
/// embeddings.
///
/// A block without keys has the same hash as in content_hashes(). The keys of a block follow its tokens as one
/// little-endian uint64 each: for an identifier of 64 hexadecimal digits the first 16 of them as a number, for any
/// other key an XXH3-64 (the Rust documentation of kvatlas_wire::keys says of what). So a block with an image never
/// equals one without an image or with another image.
///
/// Args:
///     tokens: Token ids, as accepted by content_hashes().
///     block_size: Tokens in a block, at least 1.
///     extra_keys: For each full block a sequence of keys, as in Stored, or None.
///     lora: Name of the LoRA adapter; None and "" mean none.
///     salt: Cache salt; None and "" mean none.
///
/// Returns:
///     numpy.ndarray of uint64, shape (n // block_size,), for BlockIndex.find().
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: A number is out of range, or there are keys for more blocks than are full.
#[pyfunction]
#[pyo3(signature = (tokens, block_size, extra_keys, lora=None, salt=None))]
pub(crate) fn keyed_content_hashes<'py>(
    py: Python<'py>,
    tokens: &Object<'py>,
    block_size: BlockSize,
    extra_keys: &Object<'py>,
    lora: Option<&Object<'py>>,
    salt: Option<&Object<'py>>,
) -> PyResult<Object<'py>> {
    let block_size = block_size.0 as usize;
    let (lora, salt) = (optional_string(lora, "lora")?, optional_string(salt, "salt")?);
    let tokens = convert(tokens)?;
    let keys = keys(extra_keys)?;
    let tokens = tokens.as_slice();
    let mut hashes = NewArray::with_length(py, tokens.len() / block_size)?;
    let out = hashes.as_mut_slice();
    detach_if(py, size_of_val(tokens) >= LONG_BYTES, || {
        kvatlas_index::hash::content_hashes_into(tokens, block_size, lora, salt, out);
    });
    for own in keys.chunk_by(|a, b| a.0 == b.0) {
        let block = own[0].0 as usize;
        let (Some(tokens), Some(hash)) = (tokens.chunks_exact(block_size).nth(block), out.get_mut(block)) else {
            let message = format!("extra_keys has keys for block {block}, but {} are full", out.len());
            return Err(errors::argument("length_mismatch", &message));
        };
        *hash = content_hash(tokens, own.iter().map(|(_, key)| key), lora, salt);
    }
    Ok(hashes.into_object())
}
