//! `Plan`, a plan of a load test: made from columns, checked, saved and loaded.

use std::path::PathBuf;
use std::sync::Arc;

use kvatlas_bench::{Columns, Plan as Core};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::raised;
use crate::errors;
use crate::raw::{Offer, offer};
use crate::scalars::{describe, int, string};
use crate::stats::grouped;

/// A plan of a load test: the operations on an index (lookups, stores, removals, clears) and the time of each.
///
/// Plans with equal columns are equal, and have equal files and digests. Columns are copied.
///
/// Args:
///     times: Due time of each operation, in ns from the start, never decreasing: a uint64 array, shape (n,).
///     kinds: Kind of each operation: 0 lookup, 1 store from the start of a prompt, 2 store after parents[i], 3 remove,
///         4 clear: uint8, (n,).
///     workers: Worker of each operation, from 0 to worker_count - 1: uint32, (n,).
///     starts: Index of each operation's first block: in contents (lookup), in names and contents alike (stores), in
///         removed (remove); 0 for a clear: uint64, (n,).
///     lengths: Number of blocks of each operation; at least 1 for stores and removals, 0 for a clear: uint32, (n,).
///     parents: The block hash that a store continues; 0 unless the kind is 2: uint64, (n,).
///     contents: Content hashes: uint64, (m,).
///     names: Block hashes: uint64, (m,).
///     removed: Block hashes of the evicted blocks: uint64, (k,).
///     worker_count: Number of workers.
///     block_size: Tokens in a block, at least 1.
///     meta: A JSON object that describes the plan's source.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: A column is invalid; the message names it and the operation.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct Plan {
    pub(super) core: Arc<Core>,
}

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (*, times, kinds, workers, starts, lengths, parents, contents, names, removed, worker_count,
                        block_size, meta=None))]
    #[pyo3(text_signature = "(*, times, kinds, workers, starts, lengths, parents, contents, names, removed, \
                             worker_count, block_size, meta='{}')")]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn new(
        py: Python<'_>,
        times: &Bound<'_, PyAny>,
        kinds: &Bound<'_, PyAny>,
        workers: &Bound<'_, PyAny>,
        starts: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
        contents: &Bound<'_, PyAny>,
        names: &Bound<'_, PyAny>,
        removed: &Bound<'_, PyAny>,
        worker_count: &Bound<'_, PyAny>,
        block_size: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let columns = Columns {
            times: u64s(times, "times")?,
            kinds: u8s(kinds, "kinds")?,
            workers: u32s(workers, "workers")?,
            starts: u64s(starts, "starts")?,
            lengths: u32s(lengths, "lengths")?,
            parents: u64s(parents, "parents")?,
            contents: u64s(contents, "contents")?,
            names: u64s(names, "names")?,
            removed: u64s(removed, "removed")?,
            worker_count: number(worker_count, "worker_count")?,
            block_size: number(block_size, "block_size")?,
            meta: meta.map_or(Ok("{}"), |meta| string(meta, "meta"))?.to_owned(),
        };
        let core = py.detach(|| Core::new(columns)).map_err(|error| raised(&error))?;
        Ok(Self { core: Arc::new(core) })
    }

    /// Writes the plan to a file, atomically: the file appears only when it is complete.
    ///
    /// Args:
    ///     path: Path of the file; an existing file is replaced.
    ///
    /// Raises:
    ///     OSError: The file cannot be written.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.core.save(&path)).map_err(|error| raised(&error))
    }

    /// Reads a plan from a file and checks it.
    ///
    /// Args:
    ///     path: Path of a file that save() wrote.
    ///
    /// Returns:
    ///     The plan.
    ///
    /// Raises:
    ///     OSError: The file cannot be read.
    ///     InvalidArgumentError: The file is not a plan, has another version, or is truncated or altered.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let core = py.detach(|| Core::load(&path)).map_err(|error| raised(&error))?;
        Ok(Self { core: Arc::new(core) })
    }

    /// str: Digest of the plan, 32 hexadecimal digits. Two plans have the same digest only if all their columns are
    /// equal.
    #[getter]
    fn digest(&self, py: Python<'_>) -> String {
        py.detach(|| self.core.digest())
    }

    /// str: JSON object that describes the plan's source.
    #[getter]
    fn meta(&self) -> &str {
        &self.core.columns().meta
    }

    /// The size of the plan.
    ///
    /// Returns:
    ///     Counts by name: ops, lookups, stores, removes, clears, lookup_blocks, stored_blocks, removed_blocks,
    ///     workers, block_size, span_ns.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = self.core.facts();
        let dict = PyDict::new(py);
        let counts = [
            ("ops", facts.ops),
            ("lookups", facts.lookups),
            ("stores", facts.stores),
            ("removes", facts.removes),
            ("clears", facts.clears),
            ("lookup_blocks", facts.lookup_blocks),
            ("stored_blocks", facts.stored_blocks),
            ("removed_blocks", facts.removed_blocks),
            ("workers", facts.workers),
            ("block_size", facts.block_size),
            ("span_ns", facts.span_ns),
        ];
        for (name, count) in counts {
            dict.set_item(name, count)?;
        }
        Ok(dict)
    }

    fn __len__(&self) -> usize {
        self.core.len()
    }

    fn __repr__(&self) -> String {
        let facts = self.core.facts();
        let [lookups, events, workers] = [facts.lookups, facts.events(), facts.workers].map(grouped);
        format!("Plan(lookups={lookups}, events={events}, workers={workers})")
    }
}

fn number(value: &Bound<'_, PyAny>, what: &str) -> PyResult<u32> {
    let value = int(value, || what.to_owned())?;
    let wrong = |_| errors::argument("out_of_range", &format!("{what} must be from 0 to {}, got {value}", u32::MAX));
    value.extract().map_err(wrong)
}

/// Defines functions that copy a NumPy array of one exact element type.
macro_rules! columns {
    ($($name:ident: $offer:ident -> $item:ty, $dtype:literal;)*) => {$(
        fn $name(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<$item>> {
            match offer(value, what)? {
                Offer::$offer(array) => Ok(array.to_vec()),
                Offer::Irregular => Err(errors::argument(
                    "irregular_array",
                    &format!("{what} must be contiguous, aligned and of native byte order; numpy.ascontiguousarray makes it so"),
                )),
                _ => Err(errors::wrong_type(&format!(
                    concat!("{} must be a ", $dtype, " array, got {}"), what, describe(value)
                ))),
            }
        }
    )*};
}

columns! {
    u64s: U64 -> u64, "uint64";
    u32s: U32 -> u32, "uint32";
    u8s: U8 -> u8, "uint8";
}
