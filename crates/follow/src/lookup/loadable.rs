//! Parts of a prompt that engines can use without computing them, beyond what their devices hold.

use kvatlas_index::{BlockIndex, Loadable};

use super::Filter;
use crate::state::{HybridRanks, tell_time};

/// Finds the parts of a prompt that each rank can load which passes the filter. Of hybrid models they are not
/// known: what their other cache groups have offloaded is not followed.
#[must_use]
pub fn loadable(index: &BlockIndex, hybrids: &HybridRanks, content: &[u64], filter: &Filter<'_>) -> Vec<Loadable> {
    if !index.has_loadable() {
        return Vec::new();
    }
    tell_time(index);
    let mut found = index.find_loadable(content);
    found.retain(|it| filter.passes(&it.worker, it.rank) && hybrids.get(&it.worker, it.rank).is_none());
    found
}
