//! The matches of a query, and how far their engines can serve it.
//!
//! The index knows one cache group of an engine. Where there are others, as in hybrid models, a depth is what all of
//! them can serve. Every answer's rows come from here.

use kvatlas_index::Match;
use kvatlas_index::hash::prefix_hashes;
use kvatlas_wire::Hybrid;

use super::found::{self, Depths, Filter, Row};
use crate::state::HybridRanks;

/// The ranks that match and count, each once. `cap`: the most blocks of the prompt that an engine can reuse, if known.
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

/// The ranks of models without full attention, which the index does not know.
fn alone<'m>(hybrids: &'m HybridRanks, prefixes: &[u64], cap: Option<u32>) -> impl Iterator<Item = Row<'m>> {
    hybrids.iter().filter_map(move |(worker, rank, hybrid)| {
        let depths: Depths = hybrid.depths_alone(prefixes)?.into();
        (depths.any > 0).then(|| {
            let usable = cap.map(|cap| usable(hybrid, prefixes, depths.gpu, cap));
            Row { worker, rank, depths, usable }
        })
    })
}

/// The leading blocks that can be reused of `depth`. Where the cap cuts a depth, a window that ends there is needed,
/// which may be missing.
fn usable(hybrid: &Hybrid, prefixes: &[u64], depth: u32, cap: u32) -> u32 {
    if depth <= cap { depth } else { hybrid.reach(prefixes, cap) }
}

impl From<[u32; 4]> for Depths {
    fn from([gpu, cpu, disk, any]: [u32; 4]) -> Self {
        Self { gpu, cpu, disk, any }
    }
}
