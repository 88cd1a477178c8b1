//! Lookups of the leading blocks of a prompt that workers hold, for queries and for a router in the same process: names are not
//! copied, and ranks that hold no block have no row.
//!
//! The index knows one cache group of an engine. Where there are others, as in hybrid models, a depth is the blocks that all
//! groups can serve. The rows of every answer come from here.

mod found;
mod loadable;

use kvatlas_index::Match;
use kvatlas_index::hash::prefix_hashes;
use kvatlas_wire::Hybrid;

pub use self::found::{Depths, Filter, Row, WorkerRow, by_worker};
pub use self::loadable::loadable;
use crate::state::{HybridRanks, Keyspace};

/// Leading blocks of a prompt that one rank of a worker holds; each tier counts those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankDepths {
    /// The caller's number for the rank.
    pub number: u32,
    /// Leading blocks on the device.
    pub device: u32,
    /// Leading blocks on the device or in the host's memory.
    pub host: u32,
    /// Leading blocks anywhere.
    pub any: u32,
    /// Leading blocks that another engine can pull from its host memory.
    pub pullable: u32,
}

impl Keyspace {
    /// Puts the depths of each trusted rank for a prompt with these content hashes into `held`. `number`: the caller's number
    /// for a worker's rank; ranks without one are left out.
    pub fn look_up(&self, content: &[u64], number: impl Fn(&str, u32) -> Option<u32>, held: &mut Vec<RankDepths>) {
        self.steady(|untrusted| {
            held.clear();
            let index = self.index();
            let found = index.find(content);
            // Read after the index, so that each hybrid rank in the match is known to be one.
            let hybrids = self.hybrids().load();
            let filter = Filter { among: None, without: Some(untrusted), strict: None };
            let rows = rows(&found, &hybrids, content, &filter, None);
            held.extend(rows.iter().filter_map(|row| {
                let number = number(row.worker, row.rank)?;
                let Depths { gpu: device, cpu: host, any, .. } = row.depths;
                Some(RankDepths { number, device, host, any, pullable: 0 })
            }));
            for found in loadable(&index, &hybrids, content, &filter) {
                let Some(number) = number(&found.worker, found.rank) else { continue };
                let (host, any, pullable) = (found.own_depth(), found.depth(), found.host);
                // Engines load whole chunks, which the rows do not know of.
                match held.iter_mut().find(|held| held.number == number) {
                    Some(row) => {
                        (row.host, row.any, row.pullable) = (host.max(row.device), any.max(row.device), pullable)
                    }
                    None if any > 0 || pullable > 0 => {
                        held.push(RankDepths { number, device: found.device, host, any, pullable });
                    }
                    None => {}
                }
            }
        });
    }

    /// True if a worker's rank has a stream, and it is trusted now.
    #[must_use]
    pub fn is_trusted(&self, worker: &str, rank: u32) -> bool {
        self.stream(worker, rank).is_some() && self.steady(|untrusted| !untrusted.contains(worker, rank))
    }
}

/// Rows of the ranks that match and pass the filter. `cap`: most blocks of the prompt that an engine can reuse, if known.
#[must_use]
pub fn rows<'m>(
    found: &'m Match<'_>,
    hybrids: &'m HybridRanks,
    content: &[u64],
    filter: &Filter<'_>,
    cap: Option<u32>,
) -> Vec<Row<'m>> {
    let mut rows = found::rows(found, filter);
    if let Some(cap) = cap {
        rows.iter_mut().for_each(|row| row.usable = Some(row.depths.gpu.min(cap)));
    }
    if !hybrids.is_empty() && !content.is_empty() {
        let prefixes = prefix_hashes(content);
        rows.retain_mut(|row| {
            let Some(hybrid) = hybrids.get(row.worker, row.rank) else { return true };
            let Depths { gpu, cpu, disk, any } = row.depths;
            row.depths = hybrid.depths(&prefixes, [gpu, cpu, disk, any]).into();
            row.usable = cap.map(|cap| usable(hybrid, &prefixes, row.depths.gpu, cap));
            row.depths.any > 0
        });
        rows.extend(alone(hybrids, &prefixes, cap).filter(|row| filter.counts(row)));
    }
    rows
}

/// Rows of ranks whose models have no full attention; the index does not know them.
fn alone<'m>(hybrids: &'m HybridRanks, prefixes: &[u64], cap: Option<u32>) -> impl Iterator<Item = Row<'m>> {
    hybrids.iter().filter_map(move |(worker, rank, hybrid)| {
        let depths: Depths = hybrid.depths_alone(prefixes)?.into();
        (depths.any > 0).then(|| {
            let usable = cap.map(|cap| usable(hybrid, prefixes, depths.gpu, cap));
            Row { worker, rank, depths, usable }
        })
    })
}

/// Leading blocks of `depth` that can be reused. Where the cap cuts a depth, a window that ends there is needed, and may be
/// missing.
fn usable(hybrid: &Hybrid, prefixes: &[u64], depth: u32, cap: u32) -> u32 {
    if depth <= cap { depth } else { hybrid.reach(prefixes, cap) }
}

impl From<[u32; 4]> for Depths {
    fn from([gpu, cpu, disk, any]: [u32; 4]) -> Self {
        Self { gpu, cpu, disk, any }
    }
}
