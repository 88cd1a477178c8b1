//! `LoadableIndex`: the part of a `BlockIndex` for the blocks that engines can load from host memory, disks and pools.

use std::collections::HashSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use kvatlas_index::{BlockIndex as Core, EvictionOrder, Loadable, Members, OffloadSettings, SharedPool, Tier};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};

use crate::errors;
use crate::gil::detach_if;
use crate::prompt::{PromptArguments, by_keyword};
use crate::scalars::{Rank, TierName, argument, flag, number, string, strings, within, worker as name};
use crate::sequences::names;

argument! {
    /// Argument for the number of blocks in a chunk: blocks that an engine stores and loads together.
    Chunk(NonZeroU32) = |value| {
        let blocks = within(value, "chunk", 1..=u32::MAX)?;
        Ok(NonZeroU32::new(blocks).unwrap_or(NonZeroU32::MIN))
    };
    /// Argument `announces_removals`: true if the members of a pool announce removals.
    Announces(bool) = |value| flag(value, "announces_removals");
    /// True if the store itself says what it holds.
    Follows(bool) = |value| flag(value, "follows_store");
    /// True if engines load from a pool only what continues, without a gap, the beginning of a prompt.
    Gapless(bool) = |value| flag(value, "from_beginning");
    /// Order in which a full pool evicts.
    Evicts(EvictionOrder) = |value| match string(value, "evicts")? {
        "announced" => Ok(EvictionOrder::Announced),
        "used" => Ok(EvictionOrder::Used),
        other => {
            let message = format!("evicts is \"announced\" or \"used\", not {other:?}");
            Err(errors::argument("out_of_range", &message))
        }
    };
    /// Number of blocks before the first one loaded.
    Start(usize) = |value| within(value, "start", 0..=usize::MAX);
}

/// The part of an index for the blocks that engines can load from host memory, disks and pools, beyond their device
/// memory.
///
/// Its workers have stored blocks on a tier other than their device, or are members of pools. After the leading blocks
/// on its device, an engine looks for the prompt's next blocks chunk by chunk (consecutive blocks that are stored and
/// loaded together): first in host memory, then on the other tiers, then in pools.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct LoadableIndex {
    core: Arc<Core>,
}

impl LoadableIndex {
    pub(crate) fn of(core: Arc<Core>) -> Self {
        Self { core }
    }
}

#[pymethods]
impl LoadableIndex {
    /// Sets how a worker's engine offloads blocks, for all its ranks, including after restarts.
    ///
    /// Args:
    ///     worker: The worker's name, known or not.
    ///     host_chunk: Number of blocks in a chunk of host memory, at least 1; None to infer it from the stores in
    ///         batches.
    ///     disk_chunk: Number of blocks in a chunk on local disks, or None to infer it.
    ///     external_chunk: Number of blocks in a chunk on the tier "external", if it is not a pool, or None to infer
    ///         it.
    ///     resets_keep: True if a reset of the engine's prefix cache keeps offloaded blocks; None if unknown.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A chunk has less than 1 block.
    #[pyo3(signature = (worker, *, host_chunk=None, disk_chunk=None, external_chunk=None, resets_keep=None))]
    fn set_offloading(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        host_chunk: Option<Chunk>,
        disk_chunk: Option<Chunk>,
        external_chunk: Option<Chunk>,
        resets_keep: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let worker = name(worker)?;
        let resets_keep = resets_keep.map(|value| flag(value, "resets_keep")).transpose()?;
        let chunks = [host_chunk, disk_chunk, external_chunk].map(|chunk| Some(chunk?.0));
        let settings = OffloadSettings { chunks, resets_keep };
        py.detach(|| self.core.set_offloading(worker, settings));
        Ok(())
    }

    /// Adds a pool: a store into which several engines put blocks and from which they load.
    ///
    /// Blocks that members store on the pool's tier from now on are in the pool. An existing pool of the same name gets
    /// the new settings and keeps its blocks.
    ///
    /// Args:
    ///     name: The pool's name.
    ///     members: Names of the workers that use the pool, known or not; None for all.
    ///     chunk: Number of blocks in a chunk, at least 1; None to infer it from the stores in members' batches.
    ///     tier: The tier in members' events that stands for the pool: "cpu", "disk" or "external".
    ///     announces_removals: True if members announce removals.
    ///     lifetime: Seconds after which a block no longer counts unless announced again; None for no limit.
    ///     room: Capacity of the pool in blocks, at least 1: beyond it, the blocks announced longest ago no longer
    ///         count. None for no limit.
    ///     evicts: "used" if blocks that were loaded or announced longest ago leave it first, as far as loads are
    ///         known; "announced" if loads make no difference.
    ///     follows_store: Whether hold() and release() say what it holds: what members announce then only tells
    ///         what these blocks contain.
    ///     from_beginning: True if engines load from the pool only chunks that continue, without a gap from the
    ///         prompt's beginning, what they find beyond their devices, as LMCache does. Otherwise they continue
    ///         where their devices end.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: chunk or room is less than 1 block, the tier is "gpu" or unknown, the order of
    ///         eviction is unknown, or the lifetime is not positive.
    #[pyo3(signature = (name, *, members=None, chunk=None, tier=TierName(Tier::External),
                        announces_removals=Announces(false), lifetime=None, room=None,
                        evicts=Evicts(EvictionOrder::Announced), follows_store=Follows(false),
                        from_beginning=Gapless(false)))]
    #[pyo3(text_signature = "($self, name, *, members=None, chunk=None, tier='external', announces_removals=False, \
                             lifetime=None, room=None, evicts='announced', follows_store=False, \
                             from_beginning=False)")]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn add_pool(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        members: Option<&Bound<'_, PyAny>>,
        chunk: Option<Chunk>,
        tier: TierName,
        announces_removals: Announces,
        lifetime: Option<&Bound<'_, PyAny>>,
        room: Option<&Bound<'_, PyAny>>,
        evicts: Evicts,
        follows_store: Follows,
        from_beginning: Gapless,
    ) -> PyResult<()> {
        let name = string(name, "name")?;
        if tier.0 == Tier::Gpu {
            let message = "a pool is on another tier than the device: \"cpu\", \"disk\" or \"external\"";
            return Err(errors::argument("out_of_range", message));
        }
        let members = members.map_or(Ok(Members::All), |members| {
            strings(members, "members")
                .map(|names| Members::Named(names.into_iter().map(String::into_boxed_str).collect()))
        })?;
        let lifetime =
            lifetime.map(|value| number(value, "lifetime", "more than 0 seconds", |it| it > 0.0)).transpose()?;
        let room = room.map(|value| within(value, "room", 1..=u64::MAX)).transpose()?.and_then(NonZeroU64::new);
        let (name, tier, chunk, announces_removals) =
            (name.into(), tier.0, chunk.map(|chunk| chunk.0), announces_removals.0);
        let (evicts, follows_store) = (evicts.0, follows_store.0);
        let pool = SharedPool {
            name,
            members,
            tier,
            chunk,
            announces_removals,
            lifetime,
            room,
            evicts,
            follows_store,
            from_beginning: from_beginning.0,
        };
        py.detach(|| self.core.add_pool(pool));
        Ok(())
    }

    /// Sets the current time for pools: the time of later stores, and the time at which the age of pools' blocks is
    /// judged.
    ///
    /// Args:
    ///     seconds: Seconds since an arbitrary moment, the same for all calls.
    ///
    /// Raises:
    ///     InvalidTypeError: seconds is not a number.
    ///     InvalidArgumentError: seconds is not finite.
    fn set_time(&self, seconds: &Bound<'_, PyAny>) -> PyResult<()> {
        self.core.set_time(number(seconds, "seconds", "finite", |_| true)?);
        Ok(())
    }

    /// Records that a worker's engine has reset its prefix cache, without announcing what happened to offloaded
    /// blocks.
    ///
    /// Removes blocks like BlockIndex.clear(). From then on the worker may hold more blocks in host memory than are
    /// counted, unless set_offloading() says what its resets do: a reset that keeps offloaded blocks removes only those
    /// on the device.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank; None means all.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: The rank is out of range.
    #[pyo3(signature = (worker, *, rank=None))]
    fn reset(&self, py: Python<'_>, worker: &Bound<'_, PyAny>, rank: Option<Rank>) -> PyResult<()> {
        let worker = name(worker)?;
        py.detach(|| self.core.reset(worker, rank.map(|rank| rank.0)));
        Ok(())
    }

    /// Records that an engine could not load expected blocks from a pool.
    ///
    /// The chunk that ends with the last given block is removed from the pool, and with it the blocks that continue it.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     tokens: Token ids up to the end of the chunk, as accepted by BlockIndex.find().
    ///     content_hashes: Content hashes of the blocks up to the end of the chunk, as accepted by BlockIndex.find().
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///
    /// Returns:
    ///     int: The number of blocks removed from the pool.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: For the reasons of BlockIndex.find().
    #[pyo3(signature = (pool, *, tokens=None, content_hashes=None, lora=None, salt=None))]
    fn lose(
        &self,
        py: Python<'_>,
        pool: &Bound<'_, PyAny>,
        tokens: Option<&Bound<'_, PyAny>>,
        content_hashes: Option<&Bound<'_, PyAny>>,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let pool = string(pool, "pool")?;
        let given = PromptArguments::new("lose", tokens, content_hashes, lora, salt)?;
        let (prompt, block_size) = (given.prompt(), self.core.config().block_size);
        Ok(detach_if(py, true, || self.core.lose_from_pool(pool, &prompt.hashes(block_size))))
    }

    /// Records which blocks an inspection of a pool's store has found.
    ///
    /// Blocks of the pool that were announced before the inspection and were not found are removed. Of a chunk, only
    /// the last block has to be found.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     block_hashes: The engines' names of the blocks that were found, as accepted by BlockIndex.store().
    ///     until: The time when the inspection began, on the clock of set_time(); None for the time set last.
    ///
    /// Returns:
    ///     int: The number of blocks removed from the pool.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: until is not finite.
    #[pyo3(signature = (pool, *, block_hashes, until=None))]
    fn keep(
        &self,
        py: Python<'_>,
        pool: &Bound<'_, PyAny>,
        block_hashes: &Bound<'_, PyAny>,
        until: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let pool = string(pool, "pool")?;
        let found: HashSet<u64> = names(block_hashes)?.into_iter().map(|name| name.0).collect();
        let until = until.map(|value| number(value, "until", "finite", |_| true)).transpose()?;
        Ok(py.detach(|| self.core.keep_in_pool(pool, &found, until.unwrap_or(self.core.time()))))
    }

    /// Records that a pool's store says that it holds these blocks.
    ///
    /// They count if a member has told what they contain, and otherwise from when one does.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     block_hashes: The engines' names of the blocks, as BlockIndex.store() takes them.
    ///
    /// Returns:
    ///     int: The number of blocks that are in the pool now and were not before.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    #[pyo3(signature = (pool, *, block_hashes))]
    fn hold(&self, py: Python<'_>, pool: &Bound<'_, PyAny>, block_hashes: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (pool, names) = (string(pool, "pool")?, names(block_hashes)?);
        Ok(py.detach(|| self.core.name_in_pool(pool, &names).placed))
    }

    /// Records that a pool's store says that it holds these blocks no more.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     block_hashes: The engines' names of the blocks, as BlockIndex.store() takes them.
    ///
    /// Returns:
    ///     int: The number of blocks that are gone from the pool.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    #[pyo3(signature = (pool, *, block_hashes))]
    fn release(&self, py: Python<'_>, pool: &Bound<'_, PyAny>, block_hashes: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (pool, names) = (string(pool, "pool")?, names(block_hashes)?);
        Ok(py.detach(|| self.core.unname_in_pool(pool, &names)))
    }

    /// Sets whether all removals that a pool's store announced have been seen.
    ///
    /// While they may have not, answers about the pool are not certain.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     whole: Whether they have.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    fn set_whole(&self, py: Python<'_>, pool: &Bound<'_, PyAny>, whole: &Bound<'_, PyAny>) -> PyResult<()> {
        let (pool, whole) = (string(pool, "pool")?, flag(whole, "whole")?);
        py.detach(|| self.core.set_pool_whole(pool, whole));
        Ok(())
    }

    /// Records that an engine has loaded blocks of a prompt from a pool.
    ///
    /// A pool that evicts what was used longest ago keeps them longer; others ignore it.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     tokens: Token ids up to the end of what was loaded, as BlockIndex.find() takes them.
    ///     content_hashes: Content hashes of the blocks up to the end of what was loaded, likewise.
    ///     start: Number of blocks before the first one loaded.
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///
    /// Returns:
    ///     int: The number of blocks of the pool whose age begins anew.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: As of BlockIndex.find(), or a start below 0.
    #[pyo3(signature = (pool, *, tokens=None, content_hashes=None, start=Start(0), lora=None, salt=None))]
    #[pyo3(text_signature = "($self, pool, *, tokens=None, content_hashes=None, start=0, lora=None, salt=None)")]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn note_load(
        &self,
        py: Python<'_>,
        pool: &Bound<'_, PyAny>,
        tokens: Option<&Bound<'_, PyAny>>,
        content_hashes: Option<&Bound<'_, PyAny>>,
        start: Start,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let pool = string(pool, "pool")?;
        let given = PromptArguments::new("note_load", tokens, content_hashes, lora, salt)?;
        let (prompt, block_size) = (given.prompt(), self.core.config().block_size);
        Ok(detach_if(py, true, || self.core.use_from_pool(pool, &prompt.hashes(block_size), start.0)))
    }

    /// Finds the leading part of a prompt that each worker has or can load, without computing it.
    ///
    /// Args:
    ///     tokens: Token ids of the prompt, as accepted by BlockIndex.find().
    ///     content_hashes: Content hashes of the prompt's blocks, as accepted by BlockIndex.find().
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///
    /// Returns:
    ///     list of kvatlas.types.Loadable, one for each rank with offloaded blocks and for members of pools. For other
    ///     ranks, BlockIndex.find() has the full answer.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: For the reasons of BlockIndex.find().
    #[pyo3(signature = (prompt=None, /, *, tokens=None, content_hashes=None, lora=None, salt=None))]
    #[pyo3(text_signature = "($self, *, tokens=None, content_hashes=None, lora=None, salt=None)")]
    fn find<'py>(
        &self,
        py: Python<'py>,
        prompt: Option<&Bound<'py, PyAny>>,
        tokens: Option<&Bound<'py, PyAny>>,
        content_hashes: Option<&Bound<'py, PyAny>>,
        lora: Option<&Bound<'py, PyAny>>,
        salt: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        by_keyword(prompt)?;
        let given = PromptArguments::new("find", tokens, content_hashes, lora, salt)?;
        let (prompt, block_size) = (given.prompt(), self.core.config().block_size);
        let found = detach_if(py, true, || self.core.find_loadable(&prompt.hashes(block_size)));
        let list = PyList::empty(py);
        for it in &found {
            list.append(to_python(py, it)?)?;
        }
        Ok(list)
    }
}

/// Converts an answer about loadable blocks to `kvatlas.types.Loadable`.
fn to_python<'py>(py: Python<'py>, found: &Loadable) -> PyResult<Bound<'py, PyAny>> {
    static LOADABLE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static SEGMENT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let loadable = LOADABLE.import(py, "kvatlas.types", "Loadable")?;
    let segment = SEGMENT.import(py, "kvatlas.types", "Segment")?;
    let parts = found
        .segments
        .iter()
        .map(|it| segment.call1((it.start, it.end, it.tier.name(), it.pool.as_deref(), it.is_certain, it.age)));
    let parts = PyTuple::new(py, parts.collect::<PyResult<Vec<_>>>()?)?;
    let Loadable { worker, rank, device, host, may_hold_more, used, .. } = found;
    loadable.call1((&**worker, *rank, *device, *host, *may_hold_more, parts, *used))
}
