//! Lookups of what workers hold of a prompt, for a router in the same process: no copy of a name, nothing for ranks
//! that hold nothing.

mod found;
mod served;

pub use self::found::{Depths, Filter, Row, WorkerRow, by_worker};
pub use self::served::rows;

use crate::state::Keyspace;

/// The holdings of one rank of a worker: leading blocks, each tier counting those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankDepths {
    /// The number that the caller has for it.
    pub number: u32,
    /// Leading blocks on the device.
    pub device: u32,
    /// Leading blocks on the device or in the host's memory.
    pub host: u32,
    /// Leading blocks anywhere.
    pub any: u32,
}

impl Keyspace {
    /// Puts into `held` what each trusted rank holds of a prompt with these content hashes. `number`: the caller's number
    /// for a worker's rank; those without one are left out.
    pub fn look_up(&self, content: &[u64], number: impl Fn(&str, u32) -> Option<u32>, held: &mut Vec<RankDepths>) {
        self.steady(|untrusted| {
            held.clear();
            let index = self.index();
            let found = index.find(content);
            // After the index was asked, so that whoever is hybrid in what was found is known to be.
            let hybrids = self.hybrids().load();
            let filter = Filter { among: None, without: Some(untrusted), strict: None };
            let rows = rows(&found, &hybrids, content, &filter, None);
            held.extend(rows.iter().filter_map(|row| {
                let number = number(row.worker, row.rank)?;
                Some(RankDepths { number, device: row.depths.gpu, host: row.depths.cpu, any: row.depths.any })
            }));
        });
    }

    /// True if there is a stream for a worker's rank, and what it says can be trusted now.
    #[must_use]
    pub fn is_trusted(&self, worker: &str, rank: u32) -> bool {
        self.stream(worker, rank).is_some() && self.steady(|untrusted| !untrusted.contains(worker, rank))
    }
}
