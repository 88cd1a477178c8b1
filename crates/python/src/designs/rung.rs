//! `Rung`, a running index design with the methods of `BlockIndex`, and the answer of its lookups.

use std::sync::Arc;

use kvatlas_designs::{Change, Feed, OpenError, Options, Scores, open};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::{EventThreads, GroupSize, JumpSize, Names, Shards, Strict, design};
use crate::errors;
use crate::gil::detach_if;
use crate::prompt::{PromptArguments, by_keyword};
use crate::scalars::{BlockSize, TopK, block_hash, string, worker as name};
use crate::sequences::names;
use crate::stats::{grouped, truth};
use crate::worker_depths::WorkerDepths;

/// A running index of one of the designs in kvatlas.lab.designs, with the methods of BlockIndex.
///
/// Changes go through the design's own queue and threads, as they would in a router: store(), remove(), clear() and
/// drop() return at once, and find() answers from the changes applied so far. flush() waits for all earlier changes.
/// Changes of one worker made by one thread are applied in their order.
///
/// An invalid argument raises an error at once, and changes nothing. Changes that the design refuses later, such as a
/// store with an unknown parent in a design that cannot keep it, are counted in stats()["refused"].
///
/// Created by kvatlas.lab.designs.open_rung, which lists the designs and explains each option.
///
/// Args:
///     name: The name of the design. With "-strict" appended, strict is true.
///     strict: True to correct the design's known errors where possible.
///     event_threads: Number of threads that apply events, for designs with a pool of threads; 1 to 1,024.
///     jump_size: Number of blocks by which the search of positional designs advances; at least 1.
///     shards: Number of shards of "radix-sharded", each with its own thread; 1 to 1,024.
///     group_size: Number of workers per group of "grouped", at least 1.
///     block_size: Number of tokens in a block, for prompts given as tokens, at least 1.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: The design is unknown or has no strict form, or a number is out of range.
///     DesignError: Threads could not be started.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct Rung {
    name: String,
    strict: bool,
    block_size: u32,
    feed: Box<dyn Feed>,
    workers: Names,
}

#[pymethods]
impl Rung {
    #[new]
    #[pyo3(signature = (name, *, strict=Strict(false), event_threads=EventThreads(1), jump_size=JumpSize(32),
                        shards=Shards(2), group_size=GroupSize(64), block_size=BlockSize(16)))]
    #[pyo3(text_signature = "(name, *, strict=False, event_threads=1, jump_size=32, shards=2, group_size=64, \
                             block_size=16)")]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn new(
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        strict: Strict,
        event_threads: EventThreads,
        jump_size: JumpSize,
        shards: Shards,
        group_size: GroupSize,
        block_size: BlockSize,
    ) -> PyResult<Self> {
        let name = string(name, "name")?;
        let options = Options {
            event_threads: event_threads.0,
            jump_size: jump_size.0,
            shards: shards.0,
            group_size: group_size.0,
            strict: strict.0,
        };
        let feed = py.detach(|| open(name, &options)).map_err(|error| refused(&error))?;
        let (name, strict) = match name.strip_suffix("-strict") {
            Some(name) => (name, true),
            None => (name, strict.0),
        };
        Ok(Self { name: name.to_owned(), strict, block_size: block_size.0, feed, workers: Names::default() })
    }

    /// str: The name of the design.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// bool: True if the design's known errors are corrected where possible.
    #[getter]
    fn strict(&self) -> bool {
        self.strict
    }

    /// int: The number of tokens in a block.
    #[getter]
    fn block_size(&self) -> u32 {
        self.block_size
    }

    /// int: The number of changes applied so far, including those that the design refused.
    #[getter]
    fn applied(&self) -> u64 {
        self.feed.applied()
    }

    /// Records that a worker has cached consecutive blocks of one chain: see BlockIndex.store.
    ///
    /// A block announced twice is held once.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     block_hashes: The engine's names of the blocks, shape (n,): a list of ints of any width and sign or of
    ///         bytes, or an integer array.
    ///     content_hashes: Content hashes of the blocks, shape (n,): a uint64 array or a list of ints.
    ///     tokens: Token ids of the blocks, shape (n * block_size,), as accepted by content_hashes().
    ///     parent: The engine's name of the block before the first; None at the beginning of a prompt.
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: Lengths that do not match, both or neither of content_hashes and tokens, or a
    ///         number out of range.
    #[pyo3(signature = (worker, *, block_hashes, content_hashes=None, tokens=None, parent=None, lora=None, salt=None))]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn store(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        block_hashes: &Bound<'_, PyAny>,
        content_hashes: Option<&Bound<'_, PyAny>>,
        tokens: Option<&Bound<'_, PyAny>>,
        parent: Option<&Bound<'_, PyAny>>,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let worker = name(worker)?;
        let parent = parent.map(|parent| block_hash(parent, || "parent".to_owned())).transpose()?;
        let names = names(block_hashes)?;
        let given = PromptArguments::new("store", tokens, content_hashes, lora, salt)?.own();
        let prompt = given.prompt();
        prompt.fills(&names, self.block_size)?;
        let contents = detach_if(py, prompt.is_long(), || prompt.hashes(self.block_size).into_owned());
        self.feed.send(Change::Store {
            worker: self.workers.number(worker),
            parent,
            block_hashes: names.into(),
            content_hashes: contents.into(),
        });
        Ok(())
    }

    /// Records that a worker has evicted blocks.
    ///
    /// A block that is not held is counted in stats()["unknown_removals"] and changes nothing else.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     block_hashes: The engine's names of the blocks, in any order, shape (n,), as accepted by store().
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    #[pyo3(signature = (worker, *, block_hashes))]
    fn remove(&self, worker: &Bound<'_, PyAny>, block_hashes: &Bound<'_, PyAny>) -> PyResult<()> {
        let worker = name(worker)?;
        let block_hashes = names(block_hashes)?.into();
        self.feed.send(Change::Remove { worker: self.workers.number(worker), block_hashes });
        Ok(())
    }

    /// Removes all blocks of a worker. An unknown worker changes nothing.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///
    /// Raises:
    ///     InvalidTypeError: worker is not a str.
    fn clear(&self, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(worker) = self.workers.known(name(worker)?) {
            self.feed.send(Change::Clear { worker });
        }
        Ok(())
    }

    /// Removes a worker and its blocks. Its next store registers it again. An unknown worker changes nothing.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///
    /// Raises:
    ///     InvalidTypeError: worker is not a str.
    fn drop(&self, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(worker) = self.workers.known(name(worker)?) {
            self.feed.send(Change::Drop { worker });
        }
        Ok(())
    }

    /// Waits until all earlier changes have been applied.
    ///
    /// Raises:
    ///     DesignError: An earlier change has made the design unusable.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.feed.flush());
        self.sound()
    }

    /// Finds how many leading blocks of a prompt each worker holds, according to the events applied so far.
    ///
    /// The prompt is given by exactly one of tokens and content_hashes.
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
    ///     RungMatch
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: Both or neither of tokens and content_hashes, lora or salt with content_hashes, a
    ///         number out of range, or an array of more than one dimension.
    ///     DesignError: An earlier change has made the design unusable.
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
    ) -> PyResult<RungMatch> {
        by_keyword(prompt)?;
        let given = PromptArguments::new("find", tokens, content_hashes, lora, salt)?;
        let prompt = given.prompt();
        // Detached whatever the rung: an actor's answer comes from another thread.
        let scores = py.detach(|| {
            let mut scores = Scores::new();
            self.feed.find(&prompt.hashes(self.block_size), &mut scores);
            self.workers.resolve(scores)
        });
        self.sound()?;
        Ok(RungMatch::new(scores, prompt.blocks(self.block_size)))
    }

    /// Statistics of the contents and of the changes so far. Waits for all earlier changes.
    ///
    /// Returns:
    ///     dict of str to int: "workers" (known workers), "blocks" (held by all workers), "entries" (of the design's
    ///     own kind: keys, nodes, positions or runs), "refused" (stores), "unknown_removals" (blocks), and "messages"
    ///     (between the parts of a design with several).
    ///
    /// Raises:
    ///     DesignError: An earlier change has made the design unusable.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.feed.stats());
        self.sound()?;
        design(py, &stats)
    }

    /// The workers that hold any blocks. Waits for all earlier changes.
    ///
    /// Returns:
    ///     dict of worker to number of blocks held.
    ///
    /// Raises:
    ///     DesignError: An earlier change has made the design unusable.
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let holdings = py.detach(|| self.feed.holdings());
        self.sound()?;
        let workers = holdings.chunk_by(|one, next| one.0 == next.0).map(|blocks| (blocks[0].0, blocks.len()));
        let counts = PyDict::new(py);
        for (worker, blocks) in self.workers.resolve(workers) {
            counts.set_item(&*worker, blocks)?;
        }
        Ok(counts)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = PyString::new(py, &self.name).repr()?;
        let (strict, block_size, applied) = (truth(self.strict), self.block_size, grouped(self.applied()));
        Ok(format!("Rung({name}, strict={strict}, block_size={block_size}, applied={applied})"))
    }
}

impl Rung {
    fn sound(&self) -> PyResult<()> {
        match self.feed.broken() {
            None => Ok(()),
            Some(said) => Err(errors::rung("broken", &format!("the design is broken; create a new one: {said}"))),
        }
    }
}

fn refused(error: &OpenError) -> PyErr {
    match error {
        OpenError::Threads(_) => errors::rung(error.code(), &error.to_string()),
        _ => errors::argument(error.code(), &error.to_string()),
    }
}

/// The depth to which each worker holds a query, according to the events applied at the time of the lookup.
///
/// Returned by Rung.find; later changes do not alter the answer. Workers that hold none of the query's blocks are left
/// out. The class implements kvatlas.types.PrefixMatch.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct RungMatch {
    ranked: WorkerDepths,
    length: usize,
}

impl RungMatch {
    pub(super) fn new(scores: Vec<(Arc<str>, u32)>, length: usize) -> Self {
        Self { ranked: WorkerDepths::new(scores.into_iter().map(|(worker, depth)| (worker, depth as usize))), length }
    }
}

#[pymethods]
impl RungMatch {
    /// int: The greatest depth of any worker, in blocks; 0 if no worker holds the first block.
    #[getter]
    fn depth(&self) -> usize {
        self.ranked.depth()
    }

    /// int: The number of blocks in the query. No depth is greater.
    #[getter]
    fn length(&self) -> usize {
        self.length
    }

    /// str: The unit of depths and length: "blocks".
    #[getter]
    fn unit(&self) -> &'static str {
        "blocks"
    }

    /// The workers grouped by depth.
    ///
    /// Returns:
    ///     list of (depth in blocks, list of workers), deepest first.
    fn levels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.ranked.levels(py)
    }

    /// The depth of every worker.
    ///
    /// Returns:
    ///     dict of worker to depth in blocks.
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.ranked.scores(py)
    }

    /// The workers with the greatest depths.
    ///
    /// Args:
    ///     top_k: Maximum number of workers returned, at least 0.
    ///     among: Consider only these workers, an iterable of str; None for all. Names not in the match are ignored.
    ///
    /// Returns:
    ///     list of (worker, depth in blocks), at most top_k, deepest first; equal depths in no particular order.
    ///
    /// Raises:
    ///     InvalidTypeError: top_k is not an int, or among is not an iterable of str.
    ///     InvalidArgumentError: top_k is negative.
    #[pyo3(signature = (top_k=TopK(1), among=None), text_signature = "($self, top_k=1, among=None)")]
    fn best<'py>(
        &self,
        py: Python<'py>,
        top_k: TopK,
        among: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.ranked.best(py, top_k, among)
    }

    fn __repr__(&self) -> String {
        let workers = grouped(self.ranked.len() as u64);
        format!("RungMatch(depth={}, length={}, workers={workers})", self.ranked.depth(), self.length)
    }
}
