//! Changes of a context of the prefix table: events of engines, and prompts sent by the router.

use super::context::Context;
use crate::prefix_table::hash;
use crate::prefix_table::sets::{ADDED, EMPTY, NAMED, OTHER, Watch};

/// Settings that a change of a context needs: seed and block size of the prefix hashes, and the maximum number of
/// prefixes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) seed: u64,
    pub(crate) block_size: usize,
    pub(crate) max_prefixes: usize,
}

impl Rules {
    /// Number of the prefix table's blocks in one block of an engine, whose size is a multiple of theirs. `bytes`:
    /// tokens of the engine's block.
    fn blocks(&self, bytes: &[u8]) -> usize {
        if bytes.len() == self.block_size { 1 } else { bytes.len() / self.block_size }
    }
}

/// Outcome of applying a store event.
pub(crate) enum StoreOutcome {
    /// Number of the event's blocks that the pod holds now, and number of prefixes evicted to make space for them.
    Blocks { blocks: usize, evicted: usize },
    /// Refusal without any change, because the pod does not hold the event's parent block.
    UnknownParent,
}

impl Context {
    /// Records that a pod announced consecutive blocks, the first of them after the block `parent`.
    pub(crate) fn store(
        &mut self,
        pod: &str,
        parent: Option<u64>,
        names: &[u64],
        tokens: &[&[u8]],
        rules: Rules,
        now: u32,
    ) -> StoreOutcome {
        let pod = self.pods.hold(pod);
        let stored = self.store_held(pod, parent, names, tokens, rules, now);
        self.pods.left(pod);
        stored
    }

    fn store_held(
        &mut self,
        pod: u32,
        parent: Option<u64>,
        names: &[u64],
        tokens: &[&[u8]],
        rules: Rules,
        now: u32,
    ) -> StoreOutcome {
        let (mut before, mut depth) = (rules.seed, 0);
        if let Some(parent) = parent {
            let Some(at) = self.end_of(pod, parent) else { return StoreOutcome::UnknownParent };
            let entry = &self.entries.all[at as usize];
            entry.see(now);
            (before, depth) = (entry.prefix, entry.depth() + 1);
        }
        // Prefixes of one event beyond the limit would be evicted at once, the deepest first.
        let mut room = rules.max_prefixes;
        let mut prefixes = Vec::with_capacity(names.len());
        let blocks = names.iter().zip(tokens).take_while(|(_, bytes)| {
            let blocks = rules.blocks(bytes);
            let fits = blocks <= room;
            if fits {
                room -= blocks;
                hash::extend(rules.seed, before, bytes, rules.block_size, &mut prefixes);
                before = prefixes.last().copied().unwrap_or(before);
            }
            fits
        });
        let blocks = blocks.count();
        self.entries.warm(&names[..blocks], &prefixes);
        let mut rest = &*prefixes;
        for (&name, bytes) in names.iter().zip(tokens).take(blocks) {
            let (some, after) = rest.split_at(rules.blocks(bytes));
            let is_new = match some {
                [prefix] => self.announce_new(pod, name, *prefix, depth, now),
                _ => false,
            };
            if !is_new {
                self.announce(pod, name, some, depth, now);
            }
            depth += some.len() as u32;
            rest = after;
        }
        StoreOutcome::Blocks { blocks, evicted: self.enforce(rules.max_prefixes) }
    }

    /// Records that a pod announced a block hash for a prefix, if neither is in the table yet, which is the usual case:
    /// one lookup in each hash table, and one write. Returns false in any other case, without a change.
    #[inline]
    fn announce_new(&mut self, pod: u32, name: u64, prefix: u64, depth: u32, now: u32) -> bool {
        if self.entries.other_names() > 0 {
            return false;
        }
        let Some(new) = self.entries.new_pair(prefix, name) else { return false };
        let pods = self.sets.change(EMPTY, pod, NAMED, &mut self.pods);
        self.entries.add_named(new, depth, now, pods);
        true
    }

    /// Records that a pod has announced the given prefixes under a block hash.
    fn announce(&mut self, pod: u32, name: u64, prefixes: &[u64], depth: u32, now: u32) {
        let current = self.meant(pod, name);
        if !current.is_empty() {
            let same = |&at: &u32| prefixes.contains(&self.entries.all[at as usize].prefix);
            if current.len() == prefixes.len() && current.iter().all(same) {
                current.iter().for_each(|&at| self.entries.all[at as usize].see(now));
                *self.copies.entry((pod, name)).or_insert(0) += 1;
                return;
            }
            self.copies.remove(&(pod, name));
            self.forget(pod, name, true);
        }
        for (at, &prefix) in prefixes.iter().enumerate() {
            let last = at + 1 == prefixes.len();
            let entry = self.entries.find_or_add(prefix, depth + at as u32, now);
            self.relate(pod, name, entry, last);
        }
    }

    fn relate(&mut self, pod: u32, name: u64, at: u32, last: bool) {
        match self.entries.all[at as usize].name() {
            Some(found) if found == (name, last) => self.add_way(at, pod, NAMED),
            None => {
                self.entries.set_name(at, name, last);
                self.add_way(at, pod, NAMED);
            }
            Some(_) => {
                let is_it = |&other: &u32| {
                    let other = &self.entries.others[other as usize];
                    other.entry == at && other.last == last
                };
                let found = self.entries.others_of(name).find(is_it);
                let other = found.unwrap_or_else(|| self.entries.add_other(at, name, last));
                let set = self.entries.others[other as usize].pods;
                self.entries.others[other as usize].pods = self.sets.change(set, pod, OTHER, &mut self.pods);
                self.add_way(at, pod, OTHER);
            }
        }
    }

    /// Records that a pod's engine evicted one copy of each of the blocks `names`. Returns the number of these block
    /// hashes that the pod did not hold.
    pub(crate) fn remove(&mut self, pod: &str, names: &[u64]) -> usize {
        let Some(pod) = self.pods.find(pod) else { return names.len() };
        // The pod's number must not be reused before the end.
        self.pods.joined(pod);
        let mut unknown = 0;
        for &name in names {
            if let Some(copies) = self.copies.get_mut(&(pod, name)) {
                *copies -= 1;
                if *copies == 0 {
                    self.copies.remove(&(pod, name));
                }
            } else if !self.forget(pod, name, false) {
                unknown += 1;
            }
        }
        self.pods.left(pod);
        self.give_back();
        unknown
    }

    /// Removes the prefixes that a pod announced under a block hash. Unless `replaced` (the block hash now stands for
    /// other prefixes), the router's additions of these prefixes for the pod are removed as well, since the engine's
    /// event is more reliable. Returns true if any prefix was removed.
    fn forget(&mut self, pod: u32, name: u64, replaced: bool) -> bool {
        let meant = self.meant(pod, name);
        for &at in &meant {
            let entry = &self.entries.all[at as usize];
            let here = entry.name().is_some_and(|(here, _)| here == name);
            let mut ways = self.sets.ways(entry.pods, pod);
            if here && ways & NAMED != 0 {
                ways &= !NAMED;
            }
            if ways & OTHER != 0 && !self.forget_other(at, pod, Some(name)) {
                ways &= !OTHER;
            }
            if !replaced && ways == ADDED {
                ways = 0;
            }
            self.set_ways(at, pod, ways);
        }
        !meant.is_empty()
    }

    /// Records that the router sent a prompt with the given prefixes to a pod, which is expected to hold them. Returns
    /// the number of prefixes evicted to make space for them.
    pub(crate) fn add(&mut self, pod: &str, prefixes: &[u64], max_prefixes: usize, now: u32) -> usize {
        let pod = self.pods.hold(pod);
        for (depth, &prefix) in prefixes.iter().take(max_prefixes).enumerate() {
            let at = self.entries.find_or_add(prefix, depth as u32, now);
            self.add_way(at, pod, ADDED);
        }
        self.pods.left(pod);
        self.enforce(max_prefixes)
    }

    /// Removes a pod with all its block hashes and copies. O(prefixes).
    pub(crate) fn remove_pod(&mut self, pod: &str) -> usize {
        let Some(pod) = self.pods.find(pod) else { return 0 };
        self.pods.joined(pod);
        let mut removed = 0;
        for at in 0..self.entries.all.len() as u32 {
            let ways = self.sets.ways(self.entries.all[at as usize].pods, pod);
            if ways == 0 {
                continue;
            }
            if ways & OTHER != 0 {
                self.forget_other(at, pod, None);
            }
            self.set_ways(at, pod, 0);
            removed += 1;
        }
        self.copies.retain(|&(whose, _), _| whose != pod);
        self.pods.left(pod);
        self.give_back();
        removed
    }
}
