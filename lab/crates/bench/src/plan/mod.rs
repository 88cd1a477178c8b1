//! A plan of a load test: the operations on an index, each with its time. Stored in columns, because a plan has
//! millions of operations.

mod checked;
mod file;

use kvatlas_designs::{Change, WorkerId};
use kvatlas_index::BlockHash;

pub use checked::{Facts, Plan};

/// One operation of a plan: a lookup, a store, a removal or a clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'p> {
    /// A request's prompt is looked up.
    Lookup {
        /// Worker on which the request runs.
        worker: WorkerId,
        /// Content hashes of the prompt's blocks.
        contents: &'p [u64],
    },
    /// A worker has cached consecutive blocks.
    Store {
        /// Worker that cached the blocks.
        worker: WorkerId,
        /// Block hash of the block before the first, or `None` at the start of a prompt.
        parent: Option<u64>,
        /// Block hashes of the blocks, in chain order.
        names: &'p [u64],
        /// Content hashes of the blocks, one for each block hash.
        contents: &'p [u64],
    },
    /// A worker has evicted blocks.
    Remove {
        /// Worker that evicted the blocks.
        worker: WorkerId,
        /// Block hashes of the evicted blocks.
        names: &'p [u64],
    },
    /// A worker has lost all its blocks.
    Clear {
        /// Worker that lost its blocks.
        worker: WorkerId,
    },
}

impl Op<'_> {
    /// Worker of the operation.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        match *self {
            Self::Lookup { worker, .. }
            | Self::Store { worker, .. }
            | Self::Remove { worker, .. }
            | Self::Clear { worker } => worker,
        }
    }

    /// Copy of this operation in the form of a change to be applied to an index; `None` for a lookup.
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

/// Kind of an operation of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Lookup of a request's prompt.
    Lookup = 0,
    /// Store of consecutive blocks from the start of a prompt.
    StoreRoot = 1,
    /// Store of consecutive blocks after a parent block.
    StoreAfter = 2,
    /// Eviction of blocks.
    Remove = 3,
    /// Loss of all blocks of a worker.
    Clear = 4,
}

impl Kind {
    fn new(number: u8) -> Option<Self> {
        [Self::Lookup, Self::StoreRoot, Self::StoreAfter, Self::Remove, Self::Clear].get(usize::from(number)).copied()
    }
}

/// Columns of a plan, unchecked. The columns from `times` to `parents` have one item for each operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Times of the operations, in ns from the plan's start, never decreasing.
    pub times: Vec<u64>,
    /// Kinds of the operations, each as a number of the enum [`Kind`].
    pub kinds: Vec<u8>,
    /// Workers of the operations: the worker of an event, or the worker on which a lookup's request runs.
    pub workers: Vec<u32>,
    /// Index of each operation's first block: in `contents` (lookup), in `names` and `contents` alike (stores), in
    /// `removed` (remove). 0 for a clear.
    pub starts: Vec<u64>,
    /// Number of blocks of each operation, 0 for a clear.
    pub lengths: Vec<u32>,
    /// Block hash of the block that a store continues; 0 for all other operations.
    pub parents: Vec<u64>,
    /// Content hashes of the blocks of lookups and stores.
    pub contents: Vec<u64>,
    /// Block hashes of the stored blocks, as long as `contents`.
    pub names: Vec<u64>,
    /// Block hashes of the blocks that removals evict.
    pub removed: Vec<u64>,
    /// Number of workers, numbered from 0.
    pub worker_count: u32,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// JSON object that describes the plan's source.
    pub meta: String,
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
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::error::Error;
    use crate::testing::{Mix, plan};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("kvatlas-plan-{}-{name}", std::process::id())))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_plan_comes_back_as_it_was() {
        let first = Scratch::new("first");
        let second = Scratch::new("second");
        let made = plan(1, Mix::default());
        made.save(&first.0).unwrap();
        let loaded = Plan::load(&first.0).unwrap();
        assert_eq!((loaded.columns(), loaded.facts()), (made.columns(), made.facts()));
        assert_eq!(loaded.digest(), made.digest());
        loaded.save(&second.0).unwrap();
        assert_eq!(std::fs::read(&first.0).unwrap(), std::fs::read(&second.0).unwrap());
        assert_eq!(plan(1, Mix::default()).digest(), made.digest());
        assert_ne!(plan(2, Mix::default()).digest(), made.digest());
        let facts = made.facts();
        assert!(facts.clears > 0 && facts.removes > 0 && facts.stores > 0 && facts.lookups > 0);
        assert_eq!(facts.ops, facts.lookups + facts.events());
    }

    #[test]
    fn damaged_files_are_refused() {
        let file = Scratch::new("damaged");
        plan(1, Mix { requests: 20, ..Mix::default() }).save(&file.0).unwrap();
        let whole = std::fs::read(&file.0).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(&file.0, bytes).unwrap();
            match Plan::load(&file.0) {
                Err(Error::File { what, .. }) => what,
                other => panic!("{other:?}"),
            }
        };
        for at in (0..whole.len()).filter(|at| at < &80 || at % 61 == 0) {
            let mut altered = whole.clone();
            altered[at] ^= 0x10;
            refused(&altered);
        }
        for length in (0..whole.len()).step_by(41) {
            refused(&whole[..length]);
        }
        refused(&[&whole[..], b"more"].concat());
        let mut huge = whole.clone();
        huge[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(refused(&huge).contains("not a complete plan"));
        let mut newer = whole;
        newer[8] = 9;
        assert!(refused(&newer).contains("version 9"));
        assert!(
            refused(b"something else, and long enough to be looked at by its head and its checksum too")
                .contains("not a plan")
        );
        assert!(matches!(Plan::load(&file.0.with_extension("absent")), Err(Error::Io { .. })));
        assert!(matches!(plan(1, Mix::default()).save(&file.0.join("under a file")), Err(Error::Io { .. })));
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let good = || plan(1, Mix { requests: 20, ..Mix::default() }).columns().clone();
        let store = good().kinds.iter().position(|&kind| kind == 1).unwrap();
        let clear = Columns {
            worker_count: 1,
            block_size: 1,
            meta: "{}".to_owned(),
            times: vec![0],
            kinds: vec![4],
            workers: vec![0],
            starts: vec![0],
            lengths: vec![0],
            parents: vec![0],
            ..Columns::default()
        };
        assert!(Plan::new(clear.clone()).is_ok());
        let refused = |columns: Columns, words: &[&str]| match Plan::new(columns) {
            Err(Error::Plan(what)) => assert!(words.iter().all(|word| what.contains(word)), "{what}"),
            other => panic!("{other:?}"),
        };
        let edited = |edit: &dyn Fn(&mut Columns)| {
            let mut columns = good();
            edit(&mut columns);
            columns
        };
        refused(edited(&|c| c.kinds.truncate(3)), &["kinds", "got 3"]);
        refused(edited(&|c| c.parents.push(0)), &["parents"]);
        refused(edited(&|c| c.names.push(0)), &["names must be as long as contents"]);
        refused(edited(&|c| c.times[5] = u64::MAX), &["operation 6", "times must never fall"]);
        refused(edited(&|c| c.kinds[7] = 5), &["operation 7", "kinds", "got 5"]);
        refused(edited(&|c| c.workers[7] = 5), &["operation 7", "workers", "got 5"]);
        refused(edited(&|c| c.starts[store] = u64::MAX), &[&format!("operation {store}"), "starts and lengths"]);
        refused(edited(&|c| c.lengths[store] = 0), &["lengths must be at least 1"]);
        refused(edited(&|c| c.parents[store] = 9), &["parents must be 0"]);
        refused(edited(&|c| c.block_size = 0), &["block_size"]);
        refused(edited(&|c| c.meta = "[1]".to_owned()), &["meta"]);
        refused(edited(&|c| c.meta = "{".to_owned()), &["meta"]);
        refused(Columns { lengths: vec![1], ..clear }, &["no blocks"]);
    }
}
