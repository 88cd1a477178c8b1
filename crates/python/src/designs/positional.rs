//! `PositionalIndexer`, a positional index whose operations have the names that SMG's and Dynamo's crates give them.

use kvatlas_designs::positional::{InvalidOption, Layout, Options, PositionalIndexer as Core, Search, StoredBlock};
use kvatlas_designs::{ConcurrentDesign, Refusal};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::{JumpSize, Names, Strict, design};
use crate::errors;
use crate::scalars::{block_hash, describe, int, string, worker as name};
use crate::sequences::{contents, names};
use crate::stats::truth;

/// The positional index: a map from (position, content hash) to holders, searched in jumps.
///
/// The design "positional" of kvatlas.lab.designs by itself, without a queue: when a call returns, its change is
/// applied; a refused change raises an error. Any number of threads may call at once.
/// kvatlas.lab.designs.RUNGS["positional"] describes the wrong results without strict, and those that remain with
/// strict.
///
/// Args:
///     jump_size: Number of blocks by which the search advances, at least 1.
///     search: Action when a jump fails: "jump" checks each position within the jump, "bisect" halves the jump.
///     layout: "map" (by position and content hash) or "arrays" (by position, of maps by content hash).
///     strict: True to always compare prefix hashes and check for holes.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: jump_size is less than 1, or search or layout is unknown.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct PositionalIndexer {
    core: Core,
    workers: Names,
}

#[pymethods]
impl PositionalIndexer {
    #[new]
    #[pyo3(signature = (*, jump_size=JumpSize(32), search=None, layout=None, strict=Strict(false)))]
    #[pyo3(text_signature = "(*, jump_size=32, search='jump', layout='map', strict=False)")]
    fn new(
        jump_size: JumpSize,
        search: Option<&Bound<'_, PyAny>>,
        layout: Option<&Bound<'_, PyAny>>,
        strict: Strict,
    ) -> PyResult<Self> {
        let search = match search.map(|search| string(search, "search")).transpose()? {
            None | Some("jump") => Search::Jump,
            Some("bisect") => Search::Bisect,
            Some(other) => {
                let message = format!("unknown search {other:?}: it is one of \"jump\", \"bisect\"");
                return Err(errors::argument("unknown_search", &message));
            }
        };
        let layout = match layout.map(|layout| string(layout, "layout")).transpose()? {
            None | Some("map") => Layout::Map,
            Some("arrays") => Layout::Arrays,
            Some(other) => {
                let message = format!("unknown layout {other:?}: it is one of \"map\", \"arrays\"");
                return Err(errors::argument("unknown_layout", &message));
            }
        };
        let options = Options { jump_size: jump_size.0, search, layout, strict: strict.0 };
        let refused = |error: InvalidOption| errors::argument(error.code(), &error.to_string());
        Ok(Self { core: Core::new(options).map_err(refused)?, workers: Names::default() })
    }

    /// Records that a worker has cached consecutive blocks of one chain.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     blocks: (block hash, content hash) of each block, a list of pairs.
    ///     parent: The block hash before the first; None at the beginning of a prompt.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: A content hash is out of range.
    ///     UnknownParentError: The worker does not hold the parent. Nothing was changed.
    #[pyo3(signature = (worker, blocks, parent=None))]
    fn apply_stored(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        parent: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let worker_name = name(worker)?;
        let blocks = pairs(blocks)?;
        let parent = parent.map(|parent| block_hash(parent, || "parent".to_owned())).transpose()?;
        let worker = self.workers.number(worker_name);
        py.detach(|| self.core.apply_stored(worker, &blocks, parent)).map_err(|refusal| match refusal {
            Refusal::UnknownParent { parent, .. } => errors::unknown_parent(&format!(
                "worker {worker_name:?} does not hold block {}, which the store continues: store the parent first",
                parent.0
            )),
            other => errors::argument(other.code(), &other.to_string()),
        })
    }

    /// Records that a worker has evicted blocks. Blocks not held are counted in stats()["unknown_removals"].
    ///
    /// Args:
    ///     worker: The worker's name.
    ///     block_hashes: The engine's names of the blocks, in any order, shape (n,): a list of ints of any width and
    ///         sign or of bytes, or an integer array.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    fn apply_removed(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        block_hashes: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let worker = name(worker)?;
        let names = names(block_hashes)?;
        let worker = self.workers.number(worker);
        py.detach(|| self.core.apply_removed(worker, &names));
        Ok(())
    }

    /// Removes all blocks of a worker. An unknown worker changes nothing.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///
    /// Raises:
    ///     InvalidTypeError: worker is not a str.
    fn apply_cleared(&self, py: Python<'_>, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(worker) = self.workers.known(name(worker)?) {
            py.detach(|| self.core.apply_cleared(worker));
        }
        Ok(())
    }

    /// Removes a worker and its blocks. An unknown worker changes nothing.
    ///
    /// Args:
    ///     worker: The worker's name.
    ///
    /// Raises:
    ///     InvalidTypeError: worker is not a str.
    fn remove_worker(&self, py: Python<'_>, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(worker) = self.workers.known(name(worker)?) {
            py.detach(|| self.core.remove_worker(worker));
        }
        Ok(())
    }

    /// Finds how many leading blocks of a prompt each worker holds.
    ///
    /// Args:
    ///     content_hashes: Content hashes of the prompt's blocks, first block first, shape (n,): a uint64 array
    ///         (read in place) or a list of ints.
    ///
    /// Returns:
    ///     dict of worker to depth in blocks; only workers that hold the first block.
    ///
    /// Raises:
    ///     InvalidTypeError: Not a uint64 array or a list of ints.
    ///     InvalidArgumentError: A hash out of range, or an array of more than one dimension.
    fn find_matches<'py>(&self, py: Python<'py>, content_hashes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let contents = contents(content_hashes)?;
        let contents = contents.as_slice();
        let found = py.detach(|| self.workers.resolve(self.core.find_matches(contents)));
        let depths = PyDict::new(py);
        for (worker, depth) in found {
            depths.set_item(&*worker, depth)?;
        }
        Ok(depths)
    }

    /// Statistics of the contents and of the changes so far.
    ///
    /// Returns:
    ///     dict of str to int: "workers" (known workers), "blocks" (held by all workers), "entries" (pairs of position
    ///     and content hash), "refused" (stores), "unknown_removals" (blocks), and "messages", always 0.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        design(py, &py.detach(|| self.core.stats()))
    }

    fn __repr__(&self) -> String {
        let Options { jump_size, search, layout, strict } = self.core.options();
        let search = if search == Search::Bisect { "bisect" } else { "jump" };
        let layout = if layout == Layout::Arrays { "arrays" } else { "map" };
        let strict = truth(strict);
        format!("PositionalIndexer(jump_size={jump_size}, search='{search}', layout='{layout}', strict={strict})")
    }
}

fn pairs(blocks: &Bound<'_, PyAny>) -> PyResult<Vec<StoredBlock>> {
    let wanted = || {
        let given = describe(blocks);
        errors::wrong_type(&format!("blocks must be a list of (block hash, content hash), got {given}"))
    };
    let pair = |at: usize, item: &Bound<'_, PyAny>| {
        let wrong = || {
            let given = describe(item);
            errors::wrong_type(&format!("blocks[{at}] must be a pair (block hash, content hash), got {given}"))
        };
        let pair = item.cast::<PyTuple>().map_err(|_| wrong())?;
        let (Ok(hash), Ok(content), 2) = (pair.get_item(0), pair.get_item(1), pair.len()) else {
            return Err(wrong());
        };
        let block_hash = block_hash(&hash, || format!("blocks[{at}][0]"))?;
        let value = int(&content, || format!("blocks[{at}][1]"))?;
        let content_hash = value.extract().map_err(|_| {
            let message = format!("blocks[{at}][1] must be from 0 to 2**64 - 1, got {value}");
            errors::argument("out_of_range", &message)
        })?;
        Ok(StoredBlock { block_hash, content_hash })
    };
    let items = blocks.try_iter().map_err(|_| wanted())?.enumerate();
    items.map(|(at, item)| pair(at, &item?)).collect()
}
