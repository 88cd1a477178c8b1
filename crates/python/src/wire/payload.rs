//! Payloads to batches and back, and the content hashes of blocks with keys.

use kvatlas_wire as wire;
use kvatlas_wire::encode::{Dialect, encode};
use kvatlas_wire::keys::content_hash;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use super::{Batch, Object, from_python, keys};
use crate::errors;
use crate::gil::detach_if;
use crate::prompt::LONG_BYTES;
use crate::raw::{NewArray, Offer, offer};
use crate::scalars::{BlockSize, Rank, describe, optional_string, string};
use crate::sequences::tokens as convert;

/// Decodes a payload: the third frame of an engine's message.
///
/// Accepts what vLLM 0.11 to 0.33 and SGLang up to 0.5.23 send, as maps or as the older arrays. An event that cannot
/// be decoded is left out, and listed in the batch's `refused`.
///
/// Args:
///     payload: bytes, or any contiguous buffer: a bytearray, a memoryview, a zmq.Frame.
///
/// Returns:
///     Batch
///
/// Raises:
///     InvalidTypeError: Not bytes.
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
///     InvalidArgumentError: An unknown dialect, or a rank out of range.
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

/// The content hash of each full block of tokens, where some blocks have extra keys: images, prompt embeddings.
///
/// A block without keys has the hash that content_hashes() gives. The keys of a block follow its tokens as one
/// little-endian uint64 each: for an identifier of 64 hexadecimal digits the first 16 of them as a number, for anything
/// else an XXH3-64 (the Rust documentation of kvatlas_wire::keys says which). So a block with an image never equals
/// one without or with another.
///
/// Args:
///     tokens: Token ids, as content_hashes() takes them.
///     block_size: Tokens in a block, at least 1.
///     extra_keys: For each full block a sequence of keys as Stored takes them, or None.
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
