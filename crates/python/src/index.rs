//! `BlockIndex`: conversion of each method's arguments and answer.

use std::path::PathBuf;
use std::sync::Arc;

use kvatlas_index::{BlockIndex as Core, Config, Error, Event, Tier};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyType};

use crate::gil::{Writers, detach_if};
use crate::index_match::Match;
use crate::loading::LoadableIndex;
use crate::prompt::{PromptArguments, by_keyword};
use crate::scalars::{BlockSize, Flag, Rank, TierName, block_hash, worker as name};
use crate::sequences::{bytes, names};
use crate::stats::grouped;
use crate::wire::{Batch, Readers};
use crate::{errors, events, files, stats as counts};

/// Number of blocks whose storing or removal takes about 10 µs, long enough to detach from the interpreter.
const LONG_WRITE: usize = 128;

/// An exact index of the cached blocks that each worker holds.
///
/// Given the events that engines announce (store, remove, clear), the index returns for a prompt how many of its
/// leading blocks each worker holds at present. Events may come in any order: a block whose parent is missing is kept
/// and counts as soon as the chain to the root is complete.
///
/// Any number of threads may look up and change the index at once; lookups never wait. A refused call changes nothing.
///
/// Args:
///     block_size: Tokens in a block, at least 1.
///     count_copies: True if a block announced n times counts as held until removed n times. False for engines that
///         announce a block once, for any number of copies.
///
/// Raises:
///     InvalidTypeError: block_size is not an int, or count_copies is not a bool.
///     InvalidArgumentError: block_size is less than 1.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct BlockIndex {
    core: Arc<Core>,
    writers: Writers,
    readers: Readers,
}

#[pymethods]
impl BlockIndex {
    #[new]
    #[pyo3(signature = (block_size=BlockSize(16), count_copies=Flag(true)))]
    #[pyo3(text_signature = "(block_size=16, count_copies=True)")]
    fn new(block_size: BlockSize, count_copies: Flag) -> PyResult<Self> {
        let config = Config { block_size: block_size.0, count_copies: count_copies.0 };
        Core::new(config).map(Self::of).map_err(|error| errors::index(&error))
    }

    /// int: The number of tokens in a block.
    #[getter]
    fn block_size(&self) -> u32 {
        self.core.config().block_size
    }

    /// bool: True if a block announced n times counts as held until removed n times.
    #[getter]
    fn count_copies(&self) -> bool {
        self.core.config().count_copies
    }

    /// LoadableIndex: The blocks that engines can load from host memory, disks and pools.
    #[getter]
    fn loading(&self) -> LoadableIndex {
        LoadableIndex::of(self.core.clone())
    }

    /// Records that a worker has cached consecutive blocks of one chain.
    ///
    /// The first block follows `parent`, every other block the one before it. Exactly one of content_hashes and tokens
    /// gives the contents of the blocks. If the worker already holds a block under the same name with other content or
    /// another parent, that block is replaced. A store of no blocks does nothing.
    ///
    /// Args:
    ///     worker: The worker's name. The first store registers it.
    ///     block_hashes: The engine's names of the blocks, shape (n,): a list of ints of any width and sign or of
    ///         bytes, or an integer array.
    ///     content_hashes: Content hashes of the blocks, shape (n,): a uint64 array or a list of ints.
    ///     tokens: Token ids of the blocks, shape (n * block_size,), as accepted by content_hashes().
    ///     parent: The engine's name of the block before the first; None at the beginning of a prompt.
    ///     rank: Data-parallel rank, from 0 to 2**32 - 1.
    ///     tier: Tier of the blocks: "gpu", "cpu", "disk" or "external".
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: Lengths that do not match, both or neither of content_hashes and tokens, a
    ///         number out of range, or an unknown tier.
    ///     IndexFullError: The index cannot number any more workers or blocks.
    #[pyo3(signature = (worker, *, block_hashes, content_hashes=None, tokens=None, parent=None, rank=Rank(0),
                        tier=TierName(Tier::Gpu), lora=None, salt=None))]
    #[pyo3(text_signature = "($self, worker, *, block_hashes, content_hashes=None, tokens=None, parent=None, rank=0, \
                             tier='gpu', lora=None, salt=None)")]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn store(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        block_hashes: &Bound<'_, PyAny>,
        content_hashes: Option<&Bound<'_, PyAny>>,
        tokens: Option<&Bound<'_, PyAny>>,
        parent: Option<&Bound<'_, PyAny>>,
        rank: Rank,
        tier: TierName,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let worker = name(worker)?;
        let parent = parent.map(|parent| block_hash(parent, || "parent".to_owned())).transpose()?;
        let names = names(block_hashes)?;
        let given = PromptArguments::new("store", tokens, content_hashes, lora, salt)?.own();
        let (prompt, block_size) = (given.prompt(), self.block_size());
        prompt.fills(&names, block_size)?;
        let stored = self.writers.write(py, names.len() >= LONG_WRITE || prompt.is_long(), || {
            self.core.store(worker, rank.0, tier.0, parent, &names, &prompt.hashes(block_size))
        });
        stored.map_err(|error| errors::index(&error))
    }

    /// Records that a worker has evicted one copy of each of the given blocks.
    ///
    /// A block that is not held is counted in stats()["unknown_removals"] and changes nothing else.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     block_hashes: The engine's names of the blocks, in any order, shape (n,), as accepted by store().
    ///     rank: Data-parallel rank, from 0 to 2**32 - 1.
    ///     tier: Tier of the blocks: "gpu", "cpu", "disk" or "external".
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A rank out of range or an unknown tier.
    #[pyo3(signature = (worker, *, block_hashes, rank=Rank(0), tier=TierName(Tier::Gpu)))]
    #[pyo3(text_signature = "($self, worker, *, block_hashes, rank=0, tier='gpu')")]
    fn remove(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        block_hashes: &Bound<'_, PyAny>,
        rank: Rank,
        tier: TierName,
    ) -> PyResult<()> {
        let worker = name(worker)?;
        let names = names(block_hashes)?;
        self.writers.write(py, names.len() >= LONG_WRITE, || self.core.remove(worker, rank.0, tier.0, &names));
        Ok(())
    }

    /// Removes all blocks of a worker, or those of one rank, one tier or both. An unknown worker changes nothing.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank; None means all.
    ///     tier: "gpu", "cpu", "disk" or "external"; None means all.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A rank out of range or an unknown tier.
    #[pyo3(signature = (worker, *, rank=None, tier=None))]
    fn clear(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        rank: Option<Rank>,
        tier: Option<TierName>,
    ) -> PyResult<()> {
        let worker = name(worker)?;
        let (rank, tier) = (rank.map(|rank| rank.0), tier.map(|tier| tier.0));
        self.writers.write(py, true, || {
            self.core.clear(worker, rank, tier);
            self.readers.clear(worker, rank, tier);
        });
        Ok(())
    }

    /// Removes a worker and its blocks. Its next store registers it again. An unknown worker changes nothing.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///
    /// Raises:
    ///     InvalidTypeError: worker is not a str.
    fn drop(&self, py: Python<'_>, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        let worker = name(worker)?;
        self.writers.write(py, true, || {
            self.core.drop_worker(worker);
            self.readers.drop_worker(worker);
        });
        Ok(())
    }

    /// Finds how many leading blocks of a prompt each worker holds.
    ///
    /// The prompt is given by exactly one of tokens and content_hashes. While other threads change the index, each
    /// depth lies between the smallest and the largest true depth of that worker during the call. One exception: if a
    /// worker announces a block hash for another block than before, the old block may be removed before the new block
    /// counts.
    ///
    /// Args:
    ///     tokens: Token ids of the prompt, shape (n,), as accepted by content_hashes(). A trailing partial block is
    ///         left out.
    ///     content_hashes: Content hashes of the prompt's blocks, first block first, shape (n,): a uint64 array
    ///         (read in place) or a list of ints.
    ///     lora: Name of the LoRA adapter, with tokens only; None and "" mean none.
    ///     salt: Cache salt, with tokens only; None and "" mean none.
    ///
    /// Returns:
    ///     Match
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: Both or neither of tokens and content_hashes, lora or salt with content_hashes, a
    ///         number out of range, or an array of more than one dimension.
    #[pyo3(signature = (prompt=None, /, *, tokens=None, content_hashes=None, lora=None, salt=None))]
    #[pyo3(text_signature = "($self, *, tokens=None, content_hashes=None, lora=None, salt=None)")]
    fn find(
        &self,
        py: Python<'_>,
        prompt: Option<&Bound<'_, PyAny>>,
        tokens: Option<&Bound<'_, PyAny>>,
        content_hashes: Option<&Bound<'_, PyAny>>,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Match> {
        by_keyword(prompt)?;
        let given = PromptArguments::new("find", tokens, content_hashes, lora, salt)?;
        let (prompt, block_size) = (given.prompt(), self.block_size());
        let found = detach_if(py, prompt.is_long(), || self.core.find(&prompt.hashes(block_size)).to_owned());
        Ok(Match::new(found, prompt.blocks(block_size), block_size))
    }

    /// Statistics of the contents, the memory and the events applied so far.
    ///
    /// Returns:
    ///     dict of str to int; "bytes" is in bytes, everything else is a count.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.writers.write(py, true, || self.core.stats());
        counts::index(py, &stats)
    }

    /// The registered workers.
    ///
    /// Returns:
    ///     dict of worker to the number of blocks held over all its ranks, sorted by name. A block that is both in
    ///     device memory and offloaded counts twice.
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let workers = PyDict::new(py);
        for (worker, blocks) in self.writers.write(py, true, || self.core.workers()) {
            workers.set_item(&*worker, blocks)?;
        }
        Ok(workers)
    }

    /// The contents as events. Other threads may use the index during the call; the blocks of each rank are those of
    /// one moment.
    ///
    /// Returns:
    ///     list of kvatlas.events.Store. Applied to an empty index, they make an equal one. Block hashes are ints from
    ///     0 to 2**64 - 1, a uniform form of the engine's names. The new index still accepts the engine's own names.
    fn dump<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let dump = self.writers.write(py, true, || self.core.dump());
        let list = PyList::empty(py);
        for event in &dump {
            list.append(events::to_python(py, event)?)?;
        }
        Ok(list)
    }

    /// Applies a list of events, or a batch sent by an engine.
    ///
    /// apply(events) applies the events in order; all are checked before the first is applied. It returns None.
    ///
    /// apply(worker, batch) applies a batch returned by decode_batch(). Data needed for later batches of the rank
    /// (salts of chains, kinds of cache groups) are kept with the index until clear() or drop(). Events that cannot be
    /// applied are left out and counted. The call returns a Tally.
    ///
    /// Args:
    ///     events: An iterable of Store, Remove, Clear and Drop of kvatlas.events; or the worker's name.
    ///     batch: A Batch of kvatlas.wire.
    ///     rank: Data-parallel rank, with a batch only; None for the rank in the batch, or 0 if the batch has none.
    ///
    /// Returns:
    ///     None, or kvatlas.wire.Tally.
    ///
    /// Raises:
    ///     InvalidTypeError: An item of events is not an event, or an argument or field has the wrong type.
    ///     InvalidArgumentError: A field that store, remove or clear would refuse, or a rank without a batch.
    ///     IndexFullError: The index cannot number any more workers or blocks; earlier events are applied.
    #[pyo3(signature = (events, batch=None, /, *, rank=None))]
    fn apply<'py>(
        &self,
        py: Python<'py>,
        events: &Bound<'py, PyAny>,
        batch: Option<&Bound<'py, PyAny>>,
        rank: Option<Rank>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(batch) = batch else {
            if rank.is_some() {
                let message = "rank can only be used with a batch; events have their own rank";
                return Err(errors::argument("conflicting_arguments", message));
            }
            self.apply_events(py, events)?;
            return Ok(py.None().into_bound(py));
        };
        let worker = name(events)?;
        let batch = batch.cast::<Batch>().map_err(|_| {
            let given = crate::scalars::describe(batch);
            errors::wrong_type(&format!("batch must be a Batch of kvatlas.wire, got {given}"))
        })?;
        let (batch, rank) = (batch.get(), rank.map(|rank| rank.0));
        let tally =
            self.writers.write(py, batch.is_long(LONG_WRITE), || self.readers.apply(batch, &self.core, worker, rank));
        Ok(Bound::new(py, tally)?.into_any())
    }

    /// Writes contents, settings and counts as bytes, for from_snapshot(). Other threads may use the index during
    /// the call; the blocks of each rank are those of one moment.
    ///
    /// Data that apply(worker, batch) keeps between the batches of a rank are not included.
    fn snapshot<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes = self.writers.write(py, true, || self.core.snapshot());
        PyBytes::new(py, &bytes)
    }

    /// Restores an index from a snapshot.
    ///
    /// Args:
    ///     snapshot: Return value of snapshot(): bytes, or any contiguous buffer with the same bytes.
    ///
    /// Returns:
    ///     A new BlockIndex.
    ///
    /// Raises:
    ///     InvalidTypeError: snapshot is not bytes.
    ///     InvalidArgumentError: snapshot is not a snapshot of an index, has another version, or is truncated or
    ///         altered: code "invalid_snapshot".
    #[classmethod]
    fn from_snapshot(_cls: &Bound<'_, PyType>, py: Python<'_>, snapshot: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = bytes(snapshot, "snapshot")?;
        py.detach(|| Core::from_snapshot(&bytes)).map(Self::of).map_err(|error| errors::index(&error))
    }

    /// Writes snapshot() to a file, atomically: the file appears only when it is complete.
    ///
    /// Args:
    ///     path: Path of the file; an existing file is replaced.
    ///
    /// Raises:
    ///     OSError: The file cannot be written.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = self.writers.write(py, true, || files::write(&path, &self.core.snapshot()));
        written.map_err(|error| files::failed(&path.to_string_lossy(), &error))
    }

    /// Reads an index from a file that save() wrote.
    ///
    /// Args:
    ///     path: Path of the file.
    ///
    /// Returns:
    ///     A new BlockIndex.
    ///
    /// Raises:
    ///     OSError: The file cannot be read.
    ///     InvalidArgumentError: The file is not a snapshot of an index, has another version, or is truncated or
    ///         altered: code "invalid_snapshot".
    #[classmethod]
    fn load(_cls: &Bound<'_, PyType>, py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let name = path.to_string_lossy();
        let read = py.detach(|| std::fs::read(&path).map(|bytes| Core::from_snapshot(&bytes)));
        let made = read.map_err(|error| files::failed(&name, &error))?;
        made.map(Self::of).map_err(|error| match error {
            Error::Snapshot { .. } => errors::argument(error.code(), &format!("{name}: {error}")),
            _ => errors::index(&error),
        })
    }

    /// Supports pickle and copy, by means of a snapshot.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let make = slf.get_type().getattr(intern!(slf.py(), "from_snapshot"))?;
        Ok((make, (slf.get().snapshot(slf.py()),)))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Config { block_size, count_copies } = self.core.config();
        let count_copies = if count_copies { "" } else { ", count_copies=False" };
        let workers = self.writers.write(py, true, || self.core.workers());
        let blocks = grouped(workers.iter().map(|(_, blocks)| blocks).sum());
        let workers = grouped(workers.len() as u64);
        format!("BlockIndex(block_size={block_size}{count_copies}, workers={workers}, blocks={blocks})")
    }
}

impl BlockIndex {
    fn of(core: Core) -> Self {
        Self { core: Arc::new(core), writers: Writers::default(), readers: Readers::default() }
    }

    /// Shared reference to the Rust index.
    pub(crate) fn shared(&self) -> Arc<Core> {
        self.core.clone()
    }

    fn apply_events(&self, py: Python<'_>, events: &Bound<'_, PyAny>) -> PyResult<()> {
        let events = events::all_from_python(events)?;
        let apply = |event: &Event| {
            self.core.apply(event)?;
            match event {
                Event::Clear { worker, rank, tier } => self.readers.clear(worker, *rank, *tier),
                Event::Drop { worker } => self.readers.drop_worker(worker),
                Event::Store { .. } | Event::Remove { .. } => {}
            }
            Ok(())
        };
        let applied: Result<(), Error> = self.writers.write(py, true, || events.iter().try_for_each(apply));
        applied.map_err(|error| errors::index(&error))
    }
}
