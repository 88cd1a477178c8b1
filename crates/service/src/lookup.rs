//! What workers hold of a prompt, for a router in the same process: no copy of a name, nothing for ranks that hold nothing.

use crate::http::{Filter, served_rows};
use crate::state::Keyspace;

/// What one rank of a worker holds: leading blocks, each tier counting those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The number that the caller has for it.
    pub number: u32,
    /// On the device.
    pub device: u32,
    /// On it or in the host's memory.
    pub host: u32,
    /// Anywhere.
    pub any: u32,
}

impl Keyspace {
    /// Puts into `held` what each trusted rank holds of a prompt with these content hashes. `number`: the caller's number
    /// for a worker's rank; those without one are left out.
    pub fn look_up(&self, content: &[u64], number: impl Fn(&str, u32) -> Option<u32>, held: &mut Vec<Held>) {
        self.steady(|untrusted| {
            held.clear();
            let index = self.index();
            let found = index.find(content);
            // After the index was asked, so that whoever is hybrid in what was found is known to be.
            let hybrids = self.hybrids().load();
            let filter = Filter { among: None, without: Some(untrusted), strict: None };
            let rows = served_rows(&found, &hybrids, content, &filter, None);
            held.extend(rows.iter().filter_map(|row| {
                let number = number(row.worker, row.rank)?;
                Some(Held { number, device: row.depths.gpu, host: row.depths.cpu, any: row.depths.any })
            }));
        });
    }

    /// Whether there is a stream for a worker's rank, and what it says can be trusted now.
    #[must_use]
    pub fn is_trusted(&self, worker: &str, rank: u32) -> bool {
        self.stream(worker, rank).is_some() && self.steady(|untrusted| !untrusted.contains(worker, rank))
    }
}
