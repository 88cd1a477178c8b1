//! A plan: what happens to an index, and when. Columns, because a plan has millions of operations.

use std::ops::Range;
use std::sync::OnceLock;

use kvatlas_designs::{Change, WorkerId};
use kvatlas_index::BlockHash;
use serde::Serialize;

use crate::error::Error;
use crate::file;

/// What one operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Which worker holds how much of a prompt?
    Lookup = 0,
    /// Consecutive blocks from the start of a prompt were cached.
    StoreRoot = 1,
    /// Consecutive blocks that continue a parent were cached.
    StoreAfter = 2,
    /// Blocks were evicted.
    Remove = 3,
    /// A worker lost everything.
    Clear = 4,
}

impl Kind {
    fn new(number: u8) -> Option<Self> {
        [Self::Lookup, Self::StoreRoot, Self::StoreAfter, Self::Remove, Self::Clear].get(usize::from(number)).copied()
    }
}

/// The columns of a plan, unchecked. `times` to `parents` have one item for each operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// ns from the plan's start, never falling.
    pub times: Vec<u64>,
    /// See [`Kind`].
    pub kinds: Vec<u8>,
    /// Whose event it is, or which worker the request of a lookup runs on.
    pub workers: Vec<u32>,
    /// Where the blocks of an operation begin: in `contents` (lookup), in `names` and `contents` alike (stores), in
    /// `removed` (remove). 0 for a clear.
    pub starts: Vec<u64>,
    /// How many blocks. 0 for a clear.
    pub lengths: Vec<u32>,
    /// The block that a store continues; 0 for everything else.
    pub parents: Vec<u64>,
    /// Content hashes.
    pub contents: Vec<u64>,
    /// Block hashes, as long as `contents`.
    pub names: Vec<u64>,
    /// Block hashes that are evicted.
    pub removed: Vec<u64>,
    /// Workers are numbered from 0 to one less.
    pub worker_count: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// A JSON object that says what the plan was made from.
    pub meta: String,
}

/// How much there is of everything in a plan, or in a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Operations.
    pub ops: u64,
    /// Lookups among them.
    pub lookups: u64,
    /// Stores among them.
    pub stores: u64,
    /// Removals among them.
    pub removes: u64,
    /// Clears among them.
    pub clears: u64,
    /// Blocks of all lookups.
    pub lookup_blocks: u64,
    /// Blocks of all stores.
    pub stored_blocks: u64,
    /// Blocks of all removals.
    pub removed_blocks: u64,
    /// Workers.
    pub workers: u64,
    /// Tokens in a block.
    pub block_size: u64,
    /// ns from the first operation to the last.
    pub span_ns: u64,
}

impl Facts {
    /// Operations that change something.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.stores + self.removes + self.clears
    }

    /// Blocks asked for, stored and removed.
    #[must_use]
    pub fn block_ops(&self) -> u64 {
        self.lookup_blocks + self.stored_blocks + self.removed_blocks
    }
}

/// One operation of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'p> {
    /// See [`Kind::Lookup`].
    Lookup {
        /// Which worker the request runs on.
        worker: WorkerId,
        /// The content hash of each block of the prompt.
        contents: &'p [u64],
    },
    /// See [`Kind::StoreRoot`] and [`Kind::StoreAfter`].
    Store {
        /// Who.
        worker: WorkerId,
        /// The block before the first, or `None` at the start of a prompt.
        parent: Option<u64>,
        /// Block hashes.
        names: &'p [u64],
        /// Content hashes, as many.
        contents: &'p [u64],
    },
    /// See [`Kind::Remove`].
    Remove {
        /// Who.
        worker: WorkerId,
        /// Block hashes.
        names: &'p [u64],
    },
    /// See [`Kind::Clear`].
    Clear {
        /// Who.
        worker: WorkerId,
    },
}

impl Op<'_> {
    /// Whose operation it is.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        match *self {
            Self::Lookup { worker, .. }
            | Self::Store { worker, .. }
            | Self::Remove { worker, .. }
            | Self::Clear { worker } => worker,
        }
    }

    /// The change that it is, owned; `None` for a lookup.
    #[must_use]
    pub fn change(&self) -> Option<Change> {
        let owned = |names: &[u64]| names.iter().copied().map(BlockHash).collect();
        Some(match *self {
            Self::Lookup { .. } => return None,
            Self::Store { worker, parent, names, contents } => Change::Store {
                worker,
                parent: parent.map(BlockHash),
                block_hashes: owned(names),
                content_hashes: contents.into(),
            },
            Self::Remove { worker, names } => Change::Remove { worker, block_hashes: owned(names) },
            Self::Clear { worker } => Change::Clear { worker },
        })
    }
}

/// A checked plan. Equal columns make equal plans, equal files and equal digests.
#[derive(Debug)]
pub struct Plan {
    pub(crate) columns: Columns,
    facts: Facts,
    digest: OnceLock<u128>,
}

impl Plan {
    /// Takes columns as a plan.
    ///
    /// # Errors
    /// [`Error::Plan`] names the column, the operation and what would be right.
    pub fn new(columns: Columns) -> Result<Self, Error> {
        check(&columns).map_err(Error::Plan)?;
        let facts = facts(&columns, 0..columns.times.len());
        Ok(Self { columns, facts, digest: OnceLock::new() })
    }

    /// The plan of the first operations alone: `share` of them, at least one of a plan that has any. O(plan).
    #[must_use]
    pub fn beginning(&self, share: f64) -> Self {
        let c = &self.columns;
        let ops = ((c.times.len() as f64 * share).ceil() as usize).clamp(1.min(c.times.len()), c.times.len());
        let columns = Columns {
            times: c.times[..ops].to_vec(),
            kinds: c.kinds[..ops].to_vec(),
            workers: c.workers[..ops].to_vec(),
            starts: c.starts[..ops].to_vec(),
            lengths: c.lengths[..ops].to_vec(),
            parents: c.parents[..ops].to_vec(),
            ..c.clone()
        };
        let facts = facts(&columns, 0..ops);
        Self { columns, facts, digest: OnceLock::new() }
    }

    /// Number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.times.len()
    }

    /// Whether there are no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.times.is_empty()
    }

    /// The columns.
    #[must_use]
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// How much there is of everything.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// How much there is in a part of the plan. O(operations in it).
    ///
    /// # Panics
    /// If the range is not within the plan.
    #[must_use]
    pub fn facts_of(&self, ops: Range<usize>) -> Facts {
        facts(&self.columns, ops)
    }

    /// 32 hexadecimal digits that two plans share only if all their columns are equal: XXH3-128 of the file's contents.
    #[must_use]
    pub fn digest(&self) -> String {
        format!("{:032x}", self.digest.get_or_init(|| file::checksum(&self.columns)))
    }

    /// When an operation is due, in ns from the plan's start.
    ///
    /// # Panics
    /// If there is no such operation.
    #[must_use]
    pub fn time(&self, op: usize) -> u64 {
        self.columns.times[op]
    }

    /// An operation.
    ///
    /// # Panics
    /// If there is no such operation.
    #[must_use]
    pub fn op(&self, op: usize) -> Op<'_> {
        let c = &self.columns;
        let worker = c.workers[op];
        let start = c.starts[op] as usize;
        let blocks = start..start + c.lengths[op] as usize;
        match Kind::new(c.kinds[op]).unwrap_or(Kind::Clear) {
            Kind::Lookup => Op::Lookup { worker, contents: &c.contents[blocks] },
            Kind::StoreRoot => {
                Op::Store { worker, parent: None, names: &c.names[blocks.clone()], contents: &c.contents[blocks] }
            }
            Kind::StoreAfter => Op::Store {
                worker,
                parent: Some(c.parents[op]),
                names: &c.names[blocks.clone()],
                contents: &c.contents[blocks],
            },
            Kind::Remove => Op::Remove { worker, names: &c.removed[blocks] },
            Kind::Clear => Op::Clear { worker },
        }
    }

    /// All operations, in order.
    pub fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        (0..self.len()).map(|op| self.op(op))
    }
}

fn facts(c: &Columns, ops: Range<usize>) -> Facts {
    let mut facts = Facts {
        ops: ops.len() as u64,
        workers: c.worker_count.into(),
        block_size: c.block_size.into(),
        span_ns: if ops.is_empty() { 0 } else { c.times[ops.end - 1] - c.times[ops.start] },
        ..Facts::default()
    };
    for op in ops {
        let blocks = u64::from(c.lengths[op]);
        let (count, sum) = match Kind::new(c.kinds[op]) {
            Some(Kind::Lookup) => (&mut facts.lookups, &mut facts.lookup_blocks),
            Some(Kind::StoreRoot | Kind::StoreAfter) => (&mut facts.stores, &mut facts.stored_blocks),
            Some(Kind::Remove) => (&mut facts.removes, &mut facts.removed_blocks),
            Some(Kind::Clear) | None => {
                facts.clears += 1;
                continue;
            }
        };
        *count += 1;
        *sum += blocks;
    }
    facts
}

fn check(c: &Columns) -> Result<(), String> {
    let ops = c.times.len();
    let columns = [
        ("kinds", c.kinds.len()),
        ("workers", c.workers.len()),
        ("starts", c.starts.len()),
        ("lengths", c.lengths.len()),
        ("parents", c.parents.len()),
    ];
    if let Some((name, length)) = columns.iter().find(|(_, length)| *length != ops) {
        return Err(format!("{name} must have one item for each of the {ops} operations of times, got {length}"));
    }
    if c.names.len() != c.contents.len() {
        let (names, contents) = (c.names.len(), c.contents.len());
        return Err(format!("names must be as long as contents: {names} names, {contents} contents"));
    }
    if c.block_size == 0 {
        return Err("block_size must be at least 1".to_owned());
    }
    match serde_json::from_str::<serde_json::Value>(&c.meta) {
        Ok(serde_json::Value::Object(_)) => {}
        Ok(_) => return Err("meta must be a JSON object".to_owned()),
        Err(error) => return Err(format!("meta must be a JSON object: {error}")),
    }
    for op in 0..ops {
        check_op(c, op).map_err(|what| format!("operation {op}: {what}"))?;
    }
    Ok(())
}

fn check_op(c: &Columns, op: usize) -> Result<(), String> {
    if op > 0 && c.times[op] < c.times[op - 1] {
        return Err(format!("times must never fall, but {} comes after {}", c.times[op], c.times[op - 1]));
    }
    let Some(kind) = Kind::new(c.kinds[op]) else {
        return Err(format!(
            "kinds must be 0 (lookup), 1 (store at the root), 2 (store after a parent), 3 (remove) or 4 (clear), got {}",
            c.kinds[op]
        ));
    };
    if c.workers[op] >= c.worker_count {
        return Err(format!("workers must be less than worker_count, {}, got {}", c.worker_count, c.workers[op]));
    }
    let (start, length) = (c.starts[op], u64::from(c.lengths[op]));
    let (pool, size) = match kind {
        Kind::Lookup => ("contents", c.contents.len()),
        Kind::StoreRoot | Kind::StoreAfter => ("names and contents", c.contents.len()),
        Kind::Remove => ("removed", c.removed.len()),
        Kind::Clear => ("no blocks", 0),
    };
    if start.checked_add(length).is_none_or(|end| end > size as u64) {
        return Err(format!("starts and lengths must stay within {pool}: {length} blocks from {start}, of {size}"));
    }
    if length == 0 && matches!(kind, Kind::StoreRoot | Kind::StoreAfter | Kind::Remove) {
        return Err("lengths must be at least 1 for a store or a removal".to_owned());
    }
    if kind != Kind::StoreAfter && c.parents[op] != 0 {
        return Err(format!("parents must be 0 unless the kind is 2, got {}", c.parents[op]));
    }
    Ok(())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
