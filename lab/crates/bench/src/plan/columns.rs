//! The columns of a plan, and their checks.

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A request's prompt is looked up.
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
    pub(super) fn new(number: u8) -> Option<Self> {
        [Self::Lookup, Self::StoreRoot, Self::StoreAfter, Self::Remove, Self::Clear].get(usize::from(number)).copied()
    }
}

/// The columns of a plan, unchecked. `times` to `parents` have one item for each operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// The times of the operations, in ns from the plan's start, in non-decreasing order.
    pub times: Vec<u64>,
    /// The kinds of the operations: see [`Kind`].
    pub kinds: Vec<u8>,
    /// The workers of the operations: the event's, or the one on which a lookup's request runs.
    pub workers: Vec<u32>,
    /// The offset of an operation's blocks: in `contents` (lookup), in `names` and `contents` alike (stores), in
    /// `removed` (remove). 0 for a clear.
    pub starts: Vec<u64>,
    /// The number of blocks of an operation, 0 for a clear.
    pub lengths: Vec<u32>,
    /// The block that a store continues; 0 for everything else.
    pub parents: Vec<u64>,
    /// Content hashes of the blocks of lookups and stores.
    pub contents: Vec<u64>,
    /// Block hashes of the stores' blocks, as long as `contents`.
    pub names: Vec<u64>,
    /// Block hashes of evicted blocks.
    pub removed: Vec<u64>,
    /// Number of workers, numbered from 0.
    pub worker_count: u32,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// A JSON object that describes the plan's source.
    pub meta: String,
}

pub(super) fn check(c: &Columns) -> Result<(), String> {
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
