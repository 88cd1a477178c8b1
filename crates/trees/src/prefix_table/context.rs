//! One context: which pods hold which prefixes, and by which of their engines' names they say so.
//!
//! What is known is a relation of pod, engine name and prefix, a number of copies for each pod and name, and the
//! prefixes that the router added by itself. A pod holds a prefix while it has any of these for it. Whatever one pod
//! says changes what is known of that pod alone.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::entries::{Entries, NONE};
use super::hash;
use super::pods::Pods;
use super::sets::{ADDED, EMPTY, NAMED, OTHER, Sets, Watch};

#[derive(Debug)]
pub(super) struct Context {
    entries: Entries,
    sets: Sets,
    pods: Pods,
    /// How often a pod announced a name beyond the first time, where it did.
    copies: HashMap<(u32, u64), u32>,
}

/// How prefixes are named and how many there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) seed: u64,
    pub(super) block_size: usize,
    pub(super) max_prefixes: usize,
}

/// What a stored event came to.
pub(super) enum Stored {
    /// So many engine blocks are known; so many prefixes had to make room.
    Blocks { blocks: usize, evicted: usize },
    /// The pod does not hold the parent.
    UnknownParent,
}

type Few = SmallVec<[u32; 8]>;

impl Context {
    pub(super) fn new() -> Self {
        Self {
            entries: Entries::new(RandomState::new().hash_one(0)),
            sets: Sets::default(),
            pods: Pods::default(),
            copies: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn other_names(&self) -> usize {
        self.entries.other_names()
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.bytes() + self.sets.bytes() + self.pods.bytes() + self.copies.allocation_size()
    }

    /// A pod announces blocks, each after the one before it, the first after `parent`.
    pub(super) fn store(
        &mut self,
        pod: &str,
        parent: Option<u64>,
        names: &[u64],
        tokens: &[&[u8]],
        rules: Rules,
        now: u32,
    ) -> Stored {
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
    ) -> Stored {
        let (mut before, mut depth) = (rules.seed, 0);
        if let Some(parent) = parent {
            let Some(at) = self.end_of(pod, parent) else { return Stored::UnknownParent };
            let entry = &self.entries.all[at as usize];
            entry.see(now);
            (before, depth) = (entry.prefix, entry.depth() + 1);
        }
        // More of one event than there is room for would only be evicted again, the deepest first.
        let mut room = rules.max_prefixes;
        let mut prefixes = Vec::with_capacity(names.len());
        let blocks = names.iter().zip(tokens).take_while(|(_, bytes)| {
            let fits = bytes.len() / rules.block_size <= room;
            if fits {
                room -= bytes.len() / rules.block_size;
                hash::extend(rules.seed, before, bytes, rules.block_size, &mut prefixes);
                before = prefixes.last().copied().unwrap_or(before);
            }
            fits
        });
        let blocks = blocks.count();
        self.entries.warm(&names[..blocks], &prefixes);
        let mut rest = &*prefixes;
        for (&name, bytes) in names.iter().zip(tokens).take(blocks) {
            let (some, after) = rest.split_at(bytes.len() / rules.block_size);
            self.announce(pod, name, some, depth, now);
            depth += some.len() as u32;
            rest = after;
        }
        Stored::Blocks { blocks, evicted: self.enforce(rules.max_prefixes) }
    }

    /// A pod's name means these prefixes from now on.
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

    /// The entries that a pod's name means.
    fn meant(&self, pod: u32, name: u64) -> Few {
        let all = &self.entries.all;
        let named = self.entries.named(name);
        let mut meant: Few = named.filter(|&at| self.sets.ways(all[at as usize].pods, pod) & NAMED != 0).collect();
        if self.entries.other_names() > 0 {
            let others = self.entries.others_of(name).map(|other| &self.entries.others[other as usize]);
            meant.extend(others.filter(|other| self.sets.ways(other.pods, pod) != 0).map(|other| other.entry));
        }
        meant
    }

    /// The entry where what a pod's name means ends.
    fn end_of(&self, pod: u32, name: u64) -> Option<u32> {
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

    /// A pod's engine evicted blocks: one copy of each. Returns how many of the names it did not hold.
    pub(super) fn remove(&mut self, pod: &str, names: &[u64]) -> usize {
        let Some(pod) = self.pods.find(pod) else { return names.len() };
        // The number must not be given to another before the end.
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

    /// Takes a pod's name away from everything it means, and unless `replaced` with it what the router added there:
    /// the engine knows better. Returns whether it meant anything.
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

    /// Takes a pod from one of the other names of an entry, or from all. Returns whether it still uses any.
    fn forget_other(&mut self, at: u32, pod: u32, name: Option<u64>) -> bool {
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

    fn add_way(&mut self, at: u32, pod: u32, way: u32) {
        let set = self.entries.all[at as usize].pods;
        let ways = self.sets.ways(set, pod) | way;
        self.entries.all[at as usize].pods = self.sets.change(set, pod, ways, &mut self.pods);
    }

    /// A pod holds in these ways and no other; an entry that nobody holds goes.
    fn set_ways(&mut self, at: u32, pod: u32, ways: u32) {
        let set = self.sets.change(self.entries.all[at as usize].pods, pod, ways, &mut self.pods);
        self.entries.all[at as usize].pods = set;
        if self.entries.all[at as usize].name().is_some() && !self.sets.any(set, NAMED) {
            self.entries.clear_name(at);
        }
        if set == EMPTY {
            self.entries.remove(at);
        }
    }

    /// The router sent these prefixes to a pod, and expects that it holds them.
    pub(super) fn add(&mut self, pod: &str, prefixes: &[u64], max_prefixes: usize, now: u32) -> usize {
        let pod = self.pods.hold(pod);
        for (depth, &prefix) in prefixes.iter().take(max_prefixes).enumerate() {
            let at = self.entries.find_or_add(prefix, depth as u32, now);
            self.add_way(at, pod, ADDED);
        }
        self.pods.left(pod);
        self.enforce(max_prefixes)
    }

    /// Takes a pod from everything: names, copies and all. O(prefixes).
    pub(super) fn remove_pod(&mut self, pod: &str) -> usize {
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

    /// How many leading prefixes each pod holds, of those that are asked about (all if `None`) and hold any.
    pub(super) fn find(&self, prefixes: &[u64], ready: Option<&[&str]>, now: u32) -> Vec<(Arc<str>, usize)> {
        let mut alive: Few = SmallVec::new();
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

    /// The prefixes that nobody has stored, added or matched since; to be looked at again by [`Self::evict`].
    pub(super) fn older(&self, since: u32) -> Vec<u64> {
        let old = self.entries.all.iter().filter(|entry| entry.pods != EMPTY && entry.seen() < since);
        old.map(|entry| entry.prefix).collect()
    }

    /// Evicts those of the prefixes that are still there and still that old.
    pub(super) fn evict(&mut self, prefixes: &[u64], since: u32) -> usize {
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

    /// Makes room if there are more entries than may be: the longest unseen go, of those seen together the deepest.
    ///
    /// Choosing them looks at all entries, so an eighth of what may be goes at once; that is O(1) for each added.
    fn enforce(&mut self, most: usize) -> usize {
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

    fn give_back(&mut self) {
        if self.len() == 0 {
            *self = Self::new();
            return;
        }
        self.entries.compact();
        if self.copies.is_empty() {
            self.copies = HashMap::new();
        }
    }

    /// Different sets of pods, and pods.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.sets.len(), self.pods.len())
    }

    /// Everything that can be counted again is.
    #[cfg(test)]
    pub(super) fn recount(&self) {
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
