//! Lookups: the pods that have any of a prompt, and how much of it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::ways::{Context, FewNumbers};
use crate::prefix_table::sets::EMPTY;

impl Context {
    /// Number of leading prefixes that each pod holds, of the pods that are asked about (all if `None`) and hold any.
    pub(crate) fn find(&self, prefixes: &[u64], ready: Option<&[&str]>, now: u32) -> Vec<(Arc<str>, usize)> {
        let mut alive: FewNumbers = SmallVec::new();
        if let Some(ready) = ready {
            alive.extend(ready.iter().filter_map(|name| self.pods.find(name)));
            alive.sort_unstable();
            alive.dedup();
        }
        let mut found = Vec::new();
        let mut leave = |pod: u32, depth: usize| {
            if let (Some(name), true) = (self.pods.name(pod), depth > 0) {
                found.push((name.clone(), depth));
            }
        };
        let mut set = EMPTY;
        let mut depth = 0;
        for &prefix in prefixes {
            let Some(entry) = self.entries.find(prefix) else { break };
            if entry.pods != set {
                set = entry.pods;
                if depth == 0 && ready.is_none() {
                    alive.extend(self.sets.members(set).iter().map(|member| member.pod()));
                }
                alive.retain(|&mut pod| {
                    let stays = self.sets.ways(set, pod) != 0;
                    if !stays {
                        leave(pod, depth);
                    }
                    stays
                });
                if alive.is_empty() {
                    break;
                }
            }
            entry.see(now);
            depth += 1;
        }
        alive.iter().for_each(|&pod| leave(pod, depth));
        found
    }
}
