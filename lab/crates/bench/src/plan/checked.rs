//! A plan of a load test whose columns have been checked.

use std::ops::Range;
use std::sync::OnceLock;

use serde::Serialize;

use super::file::checksum;
use super::{Columns, Kind, Op, check};
use crate::error::Error;

/// Counts of a plan's operations and blocks, or those of a part of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Number of operations in the plan or the part of it.
    pub ops: u64,
    /// Number of lookups among the operations.
    pub lookups: u64,
    /// Number of stores among the operations.
    pub stores: u64,
    /// Number of removals among the operations.
    pub removes: u64,
    /// Number of clears among the operations.
    pub clears: u64,
    /// Number of blocks of all lookups together.
    pub lookup_blocks: u64,
    /// Number of blocks of all stores together.
    pub stored_blocks: u64,
    /// Number of blocks of all removals together.
    pub removed_blocks: u64,
    /// Number of workers in the plan.
    pub workers: u64,
    /// Number of tokens in a block.
    pub block_size: u64,
    /// Time from the first operation to the last, in ns.
    pub span_ns: u64,
}

impl Facts {
    /// Number of events: stores, removals and clears.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.stores + self.removes + self.clears
    }

    /// Number of blocks that the operations look up, store and remove.
    #[must_use]
    pub fn block_ops(&self) -> u64 {
        self.lookup_blocks + self.stored_blocks + self.removed_blocks
    }
}

/// A checked plan of a load test: the operations on an index, each with its time. Plans with equal columns are equal,
/// and have equal files and digests.
#[derive(Debug)]
pub struct Plan {
    pub(crate) columns: Columns,
    facts: Facts,
    digest: OnceLock<u128>,
}

impl Plan {
    /// Checks columns and creates a plan from them.
    ///
    /// # Errors
    /// [`Error::Plan`] with the column, the operation and the valid values.
    pub fn new(columns: Columns) -> Result<Self, Error> {
        check(&columns).map_err(Error::Plan)?;
        let facts = facts(&columns, 0..columns.times.len());
        Ok(Self { columns, facts, digest: OnceLock::new() })
    }

    /// Plan of only the first operations of this plan: the given share (0 to 1), at least one if the plan has any.
    /// O(plan).
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

    /// Number of operations in the plan.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.times.len()
    }

    /// True if the plan has no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.times.is_empty()
    }

    /// The plan's columns: one list for each property of the operations.
    #[must_use]
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Counts of the operations and blocks of the whole plan.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Counts of a part of the plan. O(operations in the part).
    ///
    /// # Panics
    /// If the range is outside the plan.
    #[must_use]
    pub fn facts_of(&self, ops: Range<usize>) -> Facts {
        facts(&self.columns, ops)
    }

    /// Digest of the plan, 32 hexadecimal digits: the XXH3-128 of the plan's file, equal only for equal columns.
    #[must_use]
    pub fn digest(&self) -> String {
        format!("{:032x}", self.digest.get_or_init(|| checksum(&self.columns)))
    }

    /// Time of the operation with the index `op`, in ns from the plan's start.
    ///
    /// # Panics
    /// If the operation does not exist.
    #[must_use]
    pub fn time(&self, op: usize) -> u64 {
        self.columns.times[op]
    }

    /// The operation with the index `op`.
    ///
    /// # Panics
    /// If the operation does not exist.
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

    /// All operations of the plan, in order.
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
