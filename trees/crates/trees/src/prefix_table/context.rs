//! A context of the prefix table (a model with an adapter): its prefixes, the pods that hold them, and the block hashes
//! (names) by which the pods' engines announced them.
//!
//! The state is a relation of pod, engine name and prefix, a number of copies for each pod and name, and the prefixes
//! that the router added by itself. A pod holds a prefix while the prefix is announced under one of the pod's block
//! hashes, or added by the router. An announcement of one pod changes the relation of that pod alone
//! (`context_change.rs`).

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::prefix_table::entries::{Entries, NONE};
use crate::prefix_table::sets::{EMPTY, NAMED, Pods, Sets};

#[derive(Debug)]
pub(crate) struct Context {
    pub(super) entries: Entries,
    pub(super) sets: Sets,
    pub(super) pods: Pods,
    /// Number of copies beyond the first of each block that a pod holds, by pod and block hash: further announcements of
    /// the block hash minus removals; missing if there are none.
    pub(super) copies: HashMap<(u32, u64), u32>,
}

pub(super) type FewNumbers = SmallVec<[u32; 8]>;

impl Context {
    pub(crate) fn new() -> Self {
        Self {
            entries: Entries::new(RandomState::new().hash_one(0)),
            sets: Sets::default(),
            pods: Pods::default(),
            copies: HashMap::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn other_names(&self) -> usize {
        self.entries.other_names()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes() + self.sets.bytes() + self.pods.bytes() + self.copies.allocation_size()
    }

    /// Entries (prefixes with their holders) that a pod announced under the block hash `name`. There are several if the
    /// engine's blocks are larger than the table's.
    pub(super) fn meant(&self, pod: u32, name: u64) -> FewNumbers {
        let all = &self.entries.all;
        let named = self.entries.named(name);
        let mut meant: FewNumbers =
            named.filter(|&at| self.sets.ways(all[at as usize].pods, pod) & NAMED != 0).collect();
        if self.entries.other_names() > 0 {
            let others = self.entries.others_of(name).map(|other| &self.entries.others[other as usize]);
            meant.extend(others.filter(|other| self.sets.ways(other.pods, pod) != 0).map(|other| other.entry));
        }
        meant
    }

    /// Last of the entries (prefixes) that a pod announced under the block hash `name`.
    pub(super) fn end_of(&self, pod: u32, name: u64) -> Option<u32> {
        let ends = |&at: &u32| {
            let entry = &self.entries.all[at as usize];
            entry.name() == Some((name, true)) && self.sets.ways(entry.pods, pod) & NAMED != 0
        };
        let other = || {
            let others = self.entries.others_of(name).map(|other| &self.entries.others[other as usize]);
            others.into_iter().find(|other| other.last && self.sets.ways(other.pods, pod) != 0).map(|other| other.entry)
        };
        self.entries.named(name).find(ends).or_else(other)
    }

    /// Removes a pod from the extra block hashes of an entry: from one, or from all if `name` is `None`. Returns true
    /// if the pod still uses another extra block hash of the entry.
    pub(super) fn forget_other(&mut self, at: u32, pod: u32, name: Option<u64>) -> bool {
        let mut other = self.entries.all[at as usize].others;
        let mut uses = false;
        while other != NONE {
            let found = &self.entries.others[other as usize];
            let (engine, set, next) = (found.engine, found.pods, found.next);
            if self.sets.ways(set, pod) != 0 {
                if name.is_none_or(|name| name == engine) {
                    let left = self.sets.change(set, pod, 0, &mut self.pods);
                    self.entries.others[other as usize].pods = left;
                    if left == EMPTY {
                        self.entries.remove_other(other);
                    }
                } else {
                    uses = true;
                }
            }
            other = next;
        }
        uses
    }

    pub(super) fn add_way(&mut self, at: u32, pod: u32, way: u32) {
        let set = self.entries.all[at as usize].pods;
        let ways = self.sets.ways(set, pod) | way;
        self.entries.all[at as usize].pods = self.sets.change(set, pod, ways, &mut self.pods);
    }

    /// Sets the ways in which a pod holds an entry (a prefix): bits for its announcement by the main or an extra block
    /// hash, and for the router's addition. An entry without holders is removed.
    pub(super) fn set_ways(&mut self, at: u32, pod: u32, ways: u32) {
        let set = self.sets.change(self.entries.all[at as usize].pods, pod, ways, &mut self.pods);
        self.entries.all[at as usize].pods = set;
        if self.entries.all[at as usize].name().is_some() && !self.sets.any(set, NAMED) {
            self.entries.clear_name(at);
        }
        if set == EMPTY {
            self.entries.remove(at);
        }
    }

    pub(super) fn give_back(&mut self) {
        if self.len() == 0 {
            *self = Self::new();
            return;
        }
        self.entries.compact();
        if self.copies.is_empty() {
            self.copies = HashMap::new();
        }
    }

    /// Number of different sets of pods that hold a prefix in this context, and number of pods.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.sets.len(), self.pods.len())
    }
}

impl Context {
    /// Number of leading prefixes that each pod holds, for pods that hold at least one. `ready`: names of the pods to
    /// consider; `None` for all.
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

impl Context {
    /// Prefixes last stored, added or matched before the time `since`, to be passed to [`Self::evict`].
    pub(crate) fn older(&self, since: u32) -> Vec<u64> {
        let old = self.entries.all.iter().filter(|entry| entry.pods != EMPTY && entry.seen() < since);
        old.map(|entry| entry.prefix).collect()
    }

    /// Evicts those of the given prefixes that still exist and were not used after the time `since`. Returns the number
    /// of prefixes evicted.
    pub(crate) fn evict(&mut self, prefixes: &[u64], since: u32) -> usize {
        let mut evicted = 0;
        for &prefix in prefixes {
            if let Some(at) = self.entries.place(prefix)
                && self.entries.all[at as usize].seen() < since
            {
                self.evict_one(at);
                evicted += 1;
            }
        }
        self.give_back();
        evicted
    }

    /// Evicts entries (prefixes) beyond the limit: the longest unused first, of equally old ones the deepest.
    ///
    /// Choosing them is a pass over all entries, so an eighth of the limit is evicted at once: O(1) per added entry.
    pub(super) fn enforce(&mut self, most: usize) -> usize {
        if self.len() <= most {
            return 0;
        }
        let goes = self.len() - (most - most / 8);
        let all = self.entries.all.iter().enumerate().filter(|(_, entry)| entry.pods != EMPTY);
        let rank = |seen: u32, depth: u32| u64::from(seen) << 32 | u64::from(u32::MAX - depth);
        let mut oldest: Vec<_> = all.map(|(at, entry)| (rank(entry.seen(), entry.depth()), at as u32)).collect();
        if goes < oldest.len() {
            oldest.select_nth_unstable(goes);
            oldest.truncate(goes);
        }
        oldest.iter().for_each(|&(_, at)| self.evict_one(at));
        self.give_back();
        oldest.len()
    }

    fn evict_one(&mut self, at: u32) {
        let entry = &self.entries.all[at as usize];
        let (set, mut other, name) = (entry.pods, entry.others, entry.name());
        if let Some((name, _)) = name {
            if !self.copies.is_empty() {
                for member in self.sets.members(set).iter().filter(|member| member.ways() & NAMED != 0) {
                    self.copies.remove(&(member.pod(), name));
                }
            }
            self.entries.clear_name(at);
        }
        while other != NONE {
            let found = &self.entries.others[other as usize];
            let (pods, next) = (found.pods, found.next);
            if !self.copies.is_empty() {
                for member in self.sets.members(pods) {
                    self.copies.remove(&(member.pod(), found.engine));
                }
            }
            self.entries.others[other as usize].pods = EMPTY;
            self.entries.remove_other(other);
            self.sets.release(pods, &mut self.pods);
            other = next;
        }
        self.entries.all[at as usize].pods = EMPTY;
        self.entries.remove(at);
        self.sets.release(set, &mut self.pods);
    }
}

#[cfg(test)]
mod tests {
    use super::Context;
    use crate::prefix_table::entries::NONE;
    use crate::prefix_table::sets::{EMPTY, NAMED, OTHER};

    impl Context {
        /// Checks all counts that the context keeps against counts computed anew, for tests; panics if one differs.
        pub(crate) fn recount(&self) {
            let live = |set: u32| set != EMPTY;
            let mut references = vec![0; self.sets.references().len()];
            let mut holders = std::collections::BTreeSet::new();
            let (mut entries, mut others) = (0, 0);
            for (at, entry) in self.entries.all.iter().enumerate().filter(|(_, entry)| live(entry.pods)) {
                entries += 1;
                references[entry.pods as usize] += 1;
                assert!(std::ptr::eq(self.entries.find(entry.prefix).unwrap(), entry));
                assert_eq!(entry.name().is_some(), self.sets.any(entry.pods, NAMED));
                if let Some((name, _)) = entry.name() {
                    assert!(self.entries.named(name).any(|found| found as usize == at));
                }
                let mut by_other = std::collections::BTreeSet::new();
                let mut other = entry.others;
                while other != NONE {
                    let found = &self.entries.others[other as usize];
                    others += 1;
                    references[found.pods as usize] += 1;
                    assert!(live(found.pods) && found.entry as usize == at);
                    assert!(self.entries.others_of(found.engine).any(|at| at == other));
                    by_other.extend(self.sets.members(found.pods).iter().map(|member| member.pod()));
                    other = found.next;
                }
                for member in self.sets.members(entry.pods) {
                    assert!(member.ways() != 0);
                    assert_eq!(member.ways() & OTHER != 0, by_other.remove(&member.pod()));
                    holders.insert(member.pod());
                }
                assert!(by_other.is_empty());
            }
            assert_eq!((entries, others), (self.len(), self.other_names()));
            assert_eq!(references[1..], self.sets.references()[1..]);
            assert_eq!(references[1..].iter().filter(|&&count| count > 0).count(), self.sets.len());
            assert_eq!(holders.len(), self.pods.len());
            assert!(self.copies.iter().all(|(&(pod, name), &copies)| copies > 0 && !self.meant(pod, name).is_empty()));
        }
    }
}
