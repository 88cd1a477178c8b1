//! The pods that hold an entry, and their ways: by the entry's own name, by another one, or because the router sent it
//! there.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::prefix_table::entries::{Entries, NONE};
use crate::prefix_table::pods::Pods;
use crate::prefix_table::sets::{EMPTY, NAMED, Sets};

#[derive(Debug)]
pub(crate) struct Context {
    pub(super) entries: Entries,
    pub(super) sets: Sets,
    pub(super) pods: Pods,
    /// Number of times that a pod announced a name beyond the first, where it did.
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

    /// The entries that a pod's name means.
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

    /// The entry at the end of what a pod's name means.
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

    /// Takes a pod from one of the other names of an entry, or from all. Returns whether it still uses any.
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

    /// Makes a pod hold an entry in these ways and no other; an entry that nobody holds goes.
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

    /// Number of different sets of pods, and of pods.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.sets.len(), self.pods.len())
    }
}
