//! `SyncPrefixHashTable`, the prefix table as a Python class: conversion of arguments and answers.

use arguments::{ConstructorArguments, Origin, config, field, number, pods, refused};
use kvatlas_trees::prefix_table::SyncPrefixHashTable as Core;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyType};

mod arguments;

use super::{TokenBytes, token_bytes};
use crate::errors;
use crate::gil::detach_if;
use crate::raw::NewArray;
use crate::scalars::{block_hash, describe, string};
use crate::sequences::contents;
use crate::stats::grouped;

/// Number of bytes of tokens whose hashing and matching takes about 10 µs, long enough to detach from the interpreter.
const LONG_BYTES: usize = 32 << 10;

/// A table of the prefixes that each pod holds, by chained hashes of their blocks.
///
/// Each model and LoRA adapter has a context, which maps each prefix hash to the pods that hold the prefix. The table
/// is updated from engines' events and from the router's own decisions. A prefix hash is the XXH64, with the table's
/// seed, of the prefix hash before it (8 little-endian bytes; the seed if there is none) and the bytes of a block.
/// Blocks have block_size bytes, and a token has 4 big-endian bytes.
///
/// Limits are enforced at the end of every call: first the least recently used contexts are evicted, then the prefixes
/// unused for longest, of equally old ones the deepest first. A background thread evicts prefixes that were not used
/// for eviction_duration; close() or the end of the table stops this thread.
///
/// Any number of threads may use a table at once. A refused call changes nothing.
///
/// Args:
///     max_contexts: Maximum number of contexts; AIBRIX_SYNC_MAX_CONTEXTS or 1,000 if None.
///     max_prefixes_per_context: Maximum number of prefixes in each; AIBRIX_SYNC_MAX_PREFIXES_PER_CONTEXT or 10,000.
///     eviction_interval: Seconds between two checks for expired prefixes; AIBRIX_SYNC_EVICTION_INTERVAL_SECONDS or 60.
///     eviction_duration: Seconds after which an unused prefix expires, to a tenth;
///         AIBRIX_SYNC_EVICTION_DURATION_MINUTES (minutes there) or 1,200.
///     block_size: Bytes of tokens in a block, 4 for each token; AIBRIX_PREFIX_CACHE_BLOCK_SIZE or 16. Engines'
///         blocks must be multiples.
///     seed: Seed of the prefix hashes, from 0 to 2**64 - 1; a random one if None. Tables with the same seed and
///         block_size compute the same prefix hashes.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     ConfigError: An argument or a variable is invalid; the message names it.
#[pyclass(frozen, weakref, module = "kvatlas._native")]
pub(crate) struct SyncPrefixHashTable {
    core: Core,
}

#[pymethods]
impl SyncPrefixHashTable {
    #[new]
    #[pyo3(signature = (*, max_contexts=None, max_prefixes_per_context=None, eviction_interval=None,
                        eviction_duration=None, block_size=None, seed=None))]
    fn new(
        max_contexts: Option<&Bound<'_, PyAny>>,
        max_prefixes_per_context: Option<&Bound<'_, PyAny>>,
        eviction_interval: Option<&Bound<'_, PyAny>>,
        eviction_duration: Option<&Bound<'_, PyAny>>,
        block_size: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let config = config(ConstructorArguments {
            max_contexts,
            max_prefixes_per_context,
            eviction_interval,
            eviction_duration,
            block_size,
            seed,
        })?;
        Ok(Self { core: Core::new(config).map_err(|error| refused(&error))? })
    }

    /// int: The number of bytes of tokens in a block.
    #[getter]
    fn block_size(&self) -> usize {
        self.core.config().block_size
    }

    /// int: The maximum number of contexts.
    #[getter]
    fn max_contexts(&self) -> usize {
        self.core.config().max_contexts
    }

    /// int: The maximum number of prefixes per context.
    #[getter]
    fn max_prefixes_per_context(&self) -> usize {
        self.core.config().max_prefixes_per_context
    }

    /// float: The seconds between two checks for expired prefixes.
    #[getter]
    fn eviction_interval(&self) -> f64 {
        self.core.config().eviction_interval.as_secs_f64()
    }

    /// float: The seconds after which an unused prefix expires.
    #[getter]
    fn eviction_duration(&self) -> f64 {
        self.core.config().eviction_duration.as_secs_f64()
    }

    /// int: The seed of the prefix hashes.
    #[getter]
    fn seed(&self) -> u64 {
        self.core.seed()
    }

    /// bool: True once close() was called.
    #[getter]
    fn closed(&self) -> bool {
        self.core.is_closed()
    }

    /// Computes the prefix hash of each full block of tokens.
    ///
    /// Args:
    ///     tokens: Bytes, 4 in big-endian order for each token, or token ids: an integer array of 32 or 64 bits or a
    ///         list of ints.
    ///
    /// Returns:
    ///     numpy.ndarray of uint64, shape (bytes // block_size,). A part of a block at the end has no hash.
    ///
    /// Raises:
    ///     InvalidTypeError: tokens are of another type.
    ///     InvalidArgumentError: A token is not from 0 to 2**32 - 1.
    fn get_prefix_hashes<'py>(&self, py: Python<'py>, tokens: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let tokens = token_bytes(tokens, "tokens")?;
        let bytes = tokens.as_slice();
        let hashes = detach_if(py, bytes.len() >= LONG_BYTES, || self.core.get_prefix_hashes(bytes));
        array(py, &hashes)
    }

    /// Finds the share of a prompt that each ready pod holds, in percent of its full blocks.
    ///
    /// A pod's share ends at the first block that the pod does not hold. It is rounded down, but at least 1; pods
    /// without the first block are left out. O(blocks), and O(pods) where the set of pods changes.
    ///
    /// Args:
    ///     model: The model's name.
    ///     lora_id: The adapter's number, -1 for none.
    ///     tokens: Tokens, as in get_prefix_hashes().
    ///     ready_pods: The pods to consider: names, or a mapping by name. None means all.
    ///
    /// Returns:
    ///     tuple[dict[str, int], numpy.ndarray]: Percents by pod, and the prompt's prefix hashes, for add_prefix().
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A token or lora_id is out of range.
    #[pyo3(signature = (model, lora_id, tokens, ready_pods=None))]
    fn match_prefix<'py>(
        &self,
        py: Python<'py>,
        model: &Bound<'py, PyAny>,
        lora_id: &Bound<'py, PyAny>,
        tokens: &Bound<'py, PyAny>,
        ready_pods: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyAny>)> {
        let (model, lora_id) = (string(model, "model")?, number(lora_id)?);
        let tokens = token_bytes(tokens, "tokens")?;
        let ready: Option<Vec<Bound<'py, PyAny>>> = ready_pods.map(pods).transpose()?;
        let ready: Option<Vec<&str>> =
            ready.as_ref().map(|ready| ready.iter().map(|pod| string(pod, "ready_pods")).collect()).transpose()?;
        let (percents, hashes) = self.percents(py, model, lora_id, tokens.as_slice(), ready.as_deref())?;
        Ok((percents, array(py, &hashes)?))
    }

    /// Finds the same shares as match_prefix(), as a match in percent like that of other indexes.
    ///
    /// Args:
    ///     tokens: Tokens, as in get_prefix_hashes().
    ///     model: The model's name.
    ///     lora_id: The adapter's number, -1 for none.
    ///
    /// Returns:
    ///     kvatlas.types.Counts: The share of each pod; its unit is "percent" and its length 100.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A token or lora_id is out of range.
    #[pyo3(signature = (*, tokens, model, lora_id=None), text_signature = "($self, *, tokens, model, lora_id=-1)")]
    fn find<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        model: &Bound<'py, PyAny>,
        lora_id: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static COUNTS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let (model, lora_id) = (string(model, "model")?, lora_id.map_or(Ok(-1), number)?);
        let tokens = token_bytes(tokens, "tokens")?;
        let percents = self.percents(py, model, lora_id, tokens.as_slice(), None)?.0;
        COUNTS.import(py, "kvatlas.types", "Counts")?.call1((percents, 100, "percent"))
    }

    /// Records that the router sent a prompt to a pod, which is then expected to hold the prompt's prefixes.
    ///
    /// The prefixes are removed when the pod's engine removes them, or when they expire.
    ///
    /// Args:
    ///     model: The model's name.
    ///     lora_id: The adapter's number, -1 for none.
    ///     pod: The pod's name.
    ///     prefix_hashes: Prefix hashes from match_prefix() or get_prefix_hashes(): a uint64 array or a list of ints.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A number is out of range.
    fn add_prefix(
        &self,
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        lora_id: &Bound<'_, PyAny>,
        pod: &Bound<'_, PyAny>,
        prefix_hashes: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (model, lora_id, pod) = (string(model, "model")?, number(lora_id)?, string(pod, "pod")?);
        // Others may write to an array while this waits: the table must see one state of it.
        let hashes = contents(prefix_hashes)?.as_slice().to_vec();
        py.detach(|| self.core.add_prefix(model, lora_id, pod, &hashes));
        Ok(())
    }

    /// Removes a pod's prefixes for one model and adapter. O(prefixes of the context).
    ///
    /// Args:
    ///     model: The model's name.
    ///     lora_id: The adapter's number, -1 for none.
    ///     pod: The pod's name.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: lora_id is out of range.
    fn remove_prefix(
        &self,
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        lora_id: &Bound<'_, PyAny>,
        pod: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (model, lora_id, pod) = (string(model, "model")?, number(lora_id)?, string(pod, "pod")?);
        py.detach(|| self.core.remove_prefix(model, lora_id, pod));
        Ok(())
    }

    /// Records that a pod's engine has cached consecutive blocks, the first of them after the event's parent.
    ///
    /// If the pod announces a block hash again that it has not removed, and the content is the same, this counts as one
    /// more copy. Otherwise, the block hash stands for the new content from now on.
    ///
    /// Args:
    ///     event: A BlockStored, or anything with its fields.
    ///
    /// Returns:
    ///     int: The number of the event's blocks that are now known: 0 if the pod does not hold the parent, and not all
    ///     if one event has more prefixes than a context may have.
    ///
    /// Raises:
    ///     InvalidTypeError: A field is of the wrong type.
    ///     InvalidArgumentError: Tokens are not one item for each block hash, a block whose tokens are not a multiple
    ///         of block_size bytes, or a number out of range.
    fn process_block_stored(&self, py: Python<'_>, event: &Bound<'_, PyAny>) -> PyResult<usize> {
        let event = Origin::new(event)?;
        let (model, lora_id, pod) = event.names()?;
        let parent = event.field(intern!(py, "parent_block_hash"))?;
        let parent =
            if parent.is_none() { None } else { Some(block_hash(&parent, || "parent_block_hash".to_owned())?) };
        let blocks: Vec<u64> = event.blocks()?;
        let tokens = event.field(intern!(py, "tokens"))?;
        let wrong = || {
            errors::wrong_type(&format!("tokens must be a list of one item for each block, got {}", describe(&tokens)))
        };
        if tokens.is_instance_of::<PyString>() {
            return Err(wrong());
        }
        let tokens = tokens.try_iter().map_err(|_| wrong())?;
        let tokens: Vec<TokenBytes> = tokens
            .enumerate()
            .map(|(at, some)| token_bytes(&some?, &format!("tokens[{at}]")))
            .collect::<PyResult<_>>()?;
        let tokens: Vec<&[u8]> = tokens.iter().map(TokenBytes::as_slice).collect();
        let stored = py.detach(|| {
            self.core.process_block_stored(model, lora_id, pod, parent.map(|parent| parent.0), &blocks, &tokens)
        });
        stored.map_err(|error| refused(&error))
    }

    /// Records that a pod's engine has evicted one copy of each of an event's blocks. Other pods keep their copies.
    ///
    /// Blocks that the pod does not hold are counted in stats()["unknown_removals"] and change nothing.
    ///
    /// Args:
    ///     event: A BlockRemoved, or anything with its fields.
    ///
    /// Raises:
    ///     InvalidTypeError: A field is of the wrong type.
    ///     InvalidArgumentError: A number out of range.
    fn process_block_removed(&self, py: Python<'_>, event: &Bound<'_, PyAny>) -> PyResult<()> {
        let event = Origin::new(event)?;
        let (model, lora_id, pod) = event.names()?;
        let blocks = event.blocks()?;
        py.detach(|| self.core.process_block_removed(model, lora_id, pod, &blocks));
        Ok(())
    }

    /// Records that a pod's engine has dropped its whole cache. O(prefixes of the contexts).
    ///
    /// Args:
    ///     event: An AllBlocksCleared, or anything with its fields. A model_name of None means all models.
    ///
    /// Raises:
    ///     InvalidTypeError: A field is of the wrong type.
    ///     InvalidArgumentError: A number out of range.
    fn process_all_blocks_cleared(&self, py: Python<'_>, event: &Bound<'_, PyAny>) -> PyResult<()> {
        let pod = field(event, intern!(py, "source_pod"))?;
        let pod = string(&pod, "source_pod")?;
        let model = field(event, intern!(py, "model_name"))?;
        if model.is_none() {
            py.detach(|| self.core.process_all_blocks_cleared(None, pod));
            return Ok(());
        }
        let (model, lora_id) = (string(&model, "model_name")?, number(&field(event, intern!(py, "lora_id"))?)?);
        py.detach(|| self.core.process_all_blocks_cleared(Some((model, lora_id)), pod));
        Ok(())
    }

    /// Evicts expired prefixes now, as the background thread does. O(prefixes).
    ///
    /// Returns:
    ///     int: The number of prefixes evicted.
    fn evict_expired(&self, py: Python<'_>) -> usize {
        py.detach(|| self.core.evict_expired())
    }

    /// Sizes and counts of the table.
    ///
    /// Returns:
    ///     dict[str, int]: "contexts"; "prefixes" (entries: prefix hashes that a pod holds); "other_names" (names of a
    ///     prefix beyond its first); "pod_sets" (different sets of pods); "pods" (once per context); "bytes" (memory of
    ///     the whole table); and since the table was created: "unknown_parents" (stored events without effect),
    ///     "unknown_removals" (blocks), "evicted_by_age" and "evicted_by_limit" (prefixes), "evicted_contexts".
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.core.stats());
        let dict = PyDict::new(py);
        dict.set_item("contexts", stats.contexts)?;
        dict.set_item("prefixes", stats.prefixes)?;
        dict.set_item("other_names", stats.other_names)?;
        dict.set_item("pod_sets", stats.pod_sets)?;
        dict.set_item("pods", stats.pods)?;
        dict.set_item("bytes", stats.bytes)?;
        dict.set_item("unknown_parents", stats.unknown_parents)?;
        dict.set_item("unknown_removals", stats.unknown_removals)?;
        dict.set_item("evicted_by_age", stats.evicted_by_age)?;
        dict.set_item("evicted_by_limit", stats.evicted_by_limit)?;
        dict.set_item("evicted_contexts", stats.evicted_contexts)?;
        Ok(dict)
    }

    /// Stops the background thread that evicts expired prefixes, and waits for its end. Further calls do nothing.
    ///
    /// The table can still be used: its limits hold, and evict_expired() does the work of the thread.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.core.close());
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let stats = py.detach(|| self.core.stats());
        let [contexts, prefixes] = [stats.contexts, stats.prefixes].map(|number| grouped(number as u64));
        let block_size = self.block_size();
        format!("SyncPrefixHashTable(block_size={block_size}, contexts={contexts}, prefixes={prefixes})")
    }
}

impl SyncPrefixHashTable {
    /// Finds the share of each pod in percent, and the prompt's prefix hashes.
    fn percents<'py>(
        &self,
        py: Python<'py>,
        model: &str,
        lora_id: i64,
        tokens: &[u8],
        ready: Option<&[&str]>,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<u64>)> {
        let (found, hashes) =
            detach_if(py, tokens.len() >= LONG_BYTES, || self.core.match_prefix(model, lora_id, tokens, ready));
        let percents = PyDict::new(py);
        for (pod, percent) in found {
            percents.set_item(&*pod, percent)?;
        }
        Ok((percents, hashes))
    }
}

fn array<'py>(py: Python<'py>, hashes: &[u64]) -> PyResult<Bound<'py, PyAny>> {
    let mut array = NewArray::with_length(py, hashes.len())?;
    array.as_mut_slice().copy_from_slice(hashes);
    Ok(array.into_object())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SyncPrefixHashTable>()
}
