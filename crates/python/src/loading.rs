//! `LoadableIndex`: the part of a `BlockIndex` that knows what engines can load.

use std::collections::HashSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use kvatlas_index::{BlockIndex as Core, Loadable, Members, OffloadSettings, SharedPool, Tier};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};

use crate::errors;
use crate::gil::detach_if;
use crate::prompt::{PromptArguments, by_keyword};
use crate::scalars::{Rank, TierName, argument, flag, number, string, strings, within, worker as name};
use crate::sequences::names;

argument! {
    /// The number of blocks in a chunk.
    Chunk(NonZeroU32) = |value| {
        let blocks = within(value, "chunk", 1..=u32::MAX)?;
        Ok(NonZeroU32::new(blocks).unwrap_or(NonZeroU32::MIN))
    };
    /// True if removals are announced.
    Announces(bool) = |value| flag(value, "announces_removals");
}

/// The part of an index that knows what engines can load beyond their device memory.
///
/// The workers in it have stored something on another tier than their device, or are members of pools. Their
/// engines look for a prompt's continuation from where their device has no more of it, chunk by chunk: first in host
/// memory, then on the other tiers, then in pools.
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
    /// Sets how a worker's engine offloads, for all its ranks and lives.
    ///
    /// Args:
    ///     worker: The worker's name, known or not.
    ///     host_chunk: Blocks in a chunk of host memory, at least 1; None for what the stores of batches show.
    ///     disk_chunk: Blocks in a chunk on local disks, likewise.
    ///     external_chunk: Blocks in a chunk elsewhere, if that is no pool, likewise.
    ///     resets_keep: Whether a reset of the engine's prefix cache leaves what is offloaded; None if not known.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A chunk of less than 1 block.
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

    /// Adds a pool: a store that several engines put blocks in and load from.
    ///
    /// Blocks that its members store on its tier from now on are in the pool. A pool of the same name gets the
    /// new settings and keeps its blocks.
    ///
    /// Args:
    ///     name: The pool's name.
    ///     members: Names of the workers that put blocks in it and load from it, known or not; None for all.
    ///     chunk: Blocks in a chunk, at least 1; None for what the members' stores of batches show.
    ///     tier: The tier by which members' events call it: "cpu", "disk" or "external".
    ///     announces_removals: Whether members announce what is removed.
    ///     lifetime: Seconds after which a block counts no more unless it was announced again; None for no limit.
    ///     room: Blocks that it has room for, at least 1: of more, those that were announced longest ago count no
    ///         more. None for no limit.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A chunk or room of less than 1 block, the tier "gpu" or an unknown one, or a lifetime
    ///         that is not positive.
    #[pyo3(signature = (name, *, members=None, chunk=None, tier=TierName(Tier::External),
                        announces_removals=Announces(false), lifetime=None, room=None))]
    #[pyo3(text_signature = "($self, name, *, members=None, chunk=None, tier='external', announces_removals=False, \
                             lifetime=None, room=None)")]
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
        let pool = SharedPool { name, members, tier, chunk, announces_removals, lifetime, room, from_beginning: false };
        py.detach(|| self.core.add_pool(pool));
        Ok(())
    }

    /// Sets the time of what is stored in pools from now on, and until when their blocks have aged.
    ///
    /// Args:
    ///     seconds: Seconds since any moment, the same for all calls.
    ///
    /// Raises:
    ///     InvalidTypeError: Not a number.
    ///     InvalidArgumentError: Not finite.
    fn set_time(&self, seconds: &Bound<'_, PyAny>) -> PyResult<()> {
        self.core.set_time(number(seconds, "seconds", "finite", |_| true)?);
        Ok(())
    }

    /// Records that a worker's engine has reset its prefix cache, without a word on what it has offloaded.
    ///
    /// As BlockIndex.clear(), and it may hold more in host memory than is counted from then on, unless
    /// set_offloading() says what its resets do: those that keep what is offloaded take what was on the device alone.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     rank: Data-parallel rank; None means all.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A rank out of range.
    #[pyo3(signature = (worker, *, rank=None))]
    fn reset(&self, py: Python<'_>, worker: &Bound<'_, PyAny>, rank: Option<Rank>) -> PyResult<()> {
        let worker = name(worker)?;
        py.detach(|| self.core.reset(worker, rank.map(|rank| rank.0)));
        Ok(())
    }

    /// Records that an engine could not load from a pool what was expected.
    ///
    /// The chunk that ends after all of these blocks is gone, and what continues it.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     tokens: Token ids up to the end of the chunk, as BlockIndex.find() takes them.
    ///     content_hashes: Content hashes of the blocks up to the end of the chunk, as BlockIndex.find() takes them.
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///
    /// Returns:
    ///     int: The number of blocks that are gone from the pool.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: As of BlockIndex.find().
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

    /// Records what a look at a pool's store has found.
    ///
    /// Blocks of the pool that were announced until then and were not found are gone. Of a chunk, only the last block
    /// need be found.
    ///
    /// Args:
    ///     pool: The pool's name.
    ///     block_hashes: The engines' names of the blocks that were found, as BlockIndex.store() takes them.
    ///     until: The time when the look began, on the clock of set_time(); None for the time that was set last.
    ///
    /// Returns:
    ///     int: The number of blocks that are gone from the pool.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A time that is not finite.
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

    /// Finds what each worker can use of a prompt without computing it.
    ///
    /// Args:
    ///     tokens: Token ids of the prompt, as BlockIndex.find() takes them.
    ///     content_hashes: Content hashes of the prompt's blocks, as BlockIndex.find() takes them.
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///
    /// Returns:
    ///     list of kvatlas.types.Loadable, by worker and rank: of ranks that have offloaded anything, and of members of
    ///     pools. Of other ranks BlockIndex.find() says all.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: As of BlockIndex.find().
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

/// The Python form of an answer.
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
    let Loadable { worker, rank, device, host, may_hold_more, .. } = found;
    loadable.call1((&**worker, *rank, *device, *host, *may_hold_more, parts))
}
