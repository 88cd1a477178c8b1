//! Sets of workers that hold a node, and the workers that still match as a lookup descends.
//!
//! Most nodes are held by one worker, the beginnings of prompts by many. A set is therefore one word while all its
//! members are below 64, up to three inline numbers otherwise, then a sorted list, and bits where those need less
//! memory: a child with the same holders as its parent, by far the most common case, is recognised by one comparison.
//! Equal sets have equal forms, unlike in [`MemberSet`](crate::positional), which counts common members.

use smallvec::SmallVec;

use crate::collections::{each_bit, has_bit, to_words};
use crate::interface::{Scores, WorkerId};

/// A set of workers by number. Equal sets have equal forms.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkerSet {
    /// Workers of the set as bits of one word, if all their numbers are below 64. An empty set has this form.
    Word(u64),
    /// Up to three workers, sorted; the remaining elements of `ids` are zeros.
    Few { len: u32, ids: [WorkerId; 3] },
    /// More than three workers as a sorted list.
    List(Vec<WorkerId>),
    /// Workers of the set as bits, up to the largest number: the last word is not zero.
    Bits(Box<[u64]>),
}

impl Default for WorkerSet {
    fn default() -> Self {
        Self::Word(0)
    }
}

fn place(worker: WorkerId) -> (usize, u64) {
    (worker as usize / 64, 1 << (worker % 64))
}

impl WorkerSet {
    pub(crate) fn only(worker: WorkerId) -> Self {
        if worker < 64 { Self::Word(1 << worker) } else { Self::Few { len: 1, ids: [worker, 0, 0] } }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::Word(0)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Word(word) => word.count_ones() as usize,
            Self::Few { len, .. } => *len as usize,
            Self::List(ids) => ids.len(),
            Self::Bits(words) => words.iter().map(|word| word.count_ones() as usize).sum(),
        }
    }

    pub(super) fn contains(&self, worker: WorkerId) -> bool {
        match self {
            Self::Word(word) => worker < 64 && word >> worker & 1 == 1,
            Self::Few { len, ids } => ids[..*len as usize].contains(&worker),
            Self::List(ids) => ids.binary_search(&worker).is_ok(),
            Self::Bits(words) => has_bit(words, worker),
        }
    }

    pub(super) fn for_each(&self, mut each: impl FnMut(WorkerId)) {
        match self {
            Self::Word(word) => each_bit(0, *word, each),
            Self::Few { len, ids } => ids[..*len as usize].iter().copied().for_each(each),
            Self::List(ids) => ids.iter().copied().for_each(each),
            Self::Bits(words) => {
                for (at, &word) in words.iter().enumerate() {
                    each_bit(at as u32, word, &mut each);
                }
            }
        }
    }

    /// Workers of the set with numbers below 64, as bits of one word.
    pub(super) fn low(&self) -> u64 {
        match self {
            Self::Word(word) => *word,
            Self::Bits(words) => words[0],
            Self::Few { .. } | Self::List(_) => self.low_by_member(),
        }
    }

    fn low_by_member(&self) -> u64 {
        let mut low = 0;
        self.for_each(|worker| low |= if worker < 64 { 1 << worker } else { 0 });
        low
    }

    fn to_vec(&self) -> Vec<WorkerId> {
        let mut ids = Vec::with_capacity(self.len() + 1);
        self.for_each(|worker| ids.push(worker));
        ids
    }

    /// Creates a set from a sorted list of workers, in the form for their numbers and count.
    pub(super) fn from_sorted(members: Vec<WorkerId>) -> Self {
        let Some(&greatest) = members.last() else { return Self::default() };
        if greatest < 64 {
            return Self::Word(members.iter().fold(0, |word, worker| word | 1 << worker));
        }
        if members.len() <= 3 {
            let mut ids = [0; 3];
            ids[..members.len()].copy_from_slice(&members);
            return Self::Few { len: members.len() as u32, ids };
        }
        let words = place(greatest).0 + 1;
        // Bits where they take less than four bytes per member.
        if 2 * words > members.len() { Self::List(members) } else { Self::Bits(to_words(&members).into()) }
    }

    /// Adds a worker to the set. Returns true if the set did not contain it.
    pub(crate) fn insert(&mut self, worker: WorkerId) -> bool {
        let (at, bit) = place(worker);
        match self {
            Self::Word(word) if at == 0 => {
                let new = *word & bit == 0;
                *word |= bit;
                return new;
            }
            Self::Word(0) => {
                *self = Self::only(worker);
                return true;
            }
            Self::List(ids) => {
                let Err(at) = ids.binary_search(&worker) else { return false };
                ids.insert(at, worker);
                if 2 * (place(ids[ids.len() - 1]).0 + 1) <= ids.len() {
                    *self = Self::from_sorted(std::mem::take(ids));
                }
                return true;
            }
            Self::Bits(words) if at < words.len() => {
                let new = words[at] & bit == 0;
                words[at] |= bit;
                return new;
            }
            _ => {}
        }
        if self.contains(worker) {
            return false;
        }
        let mut ids = self.to_vec();
        ids.insert(ids.partition_point(|&member| member < worker), worker);
        *self = Self::from_sorted(ids);
        true
    }

    /// Removes a worker from the set. Returns true if the set contained it.
    pub(crate) fn remove(&mut self, worker: WorkerId) -> bool {
        let (at, bit) = place(worker);
        match self {
            Self::Word(word) => {
                let held = at == 0 && *word & bit != 0;
                *word &= if held { !bit } else { !0 };
                return held;
            }
            Self::Few { .. } => {}
            Self::List(ids) => {
                let Ok(at) = ids.binary_search(&worker) else { return false };
                ids.remove(at);
                if ids.len() <= 3 || ids[ids.len() - 1] < 64 {
                    *self = Self::from_sorted(std::mem::take(ids));
                } else if ids.capacity() > 2 * ids.len() + 8 {
                    ids.shrink_to_fit();
                }
                return true;
            }
            Self::Bits(words) => {
                if words.get(at).is_none_or(|word| word & bit == 0) {
                    return false;
                }
                words[at] &= !bit;
                let left: usize = words.iter().map(|word| word.count_ones() as usize).sum();
                // Back to a list only when that takes half the memory, to avoid frequent conversions.
                if words[words.len() - 1] == 0 || left < words.len() {
                    *self = Self::from_sorted(self.to_vec());
                }
                return true;
            }
        }
        if !self.contains(worker) {
            return false;
        }
        let mut ids = self.to_vec();
        ids.retain(|&member| member != worker);
        *self = Self::from_sorted(ids);
        true
    }
}

/// Workers that hold all blocks of a query down to the current node of a lookup. A worker that drops out is recorded
/// with its depth at once, so a lookup costs one comparison of sets per block and one entry per worker.
pub(crate) enum ActiveWorkers {
    /// Workers as bits of one word, if all holders of the query's first block have numbers below 64.
    Low(u64),
    /// All holders of the lookup's current node: each of them also holds all nodes above it.
    Holders,
    /// Some holders of the lookup's current node; its other holders do not hold all nodes above it.
    Some(SmallVec<[WorkerId; 32]>),
}

impl ActiveWorkers {
    /// Creates the state of a lookup at the query's first block, which the workers `set` hold.
    pub(crate) fn new(set: &WorkerSet) -> Self {
        match set {
            WorkerSet::Word(word) => Self::Low(*word),
            _ => Self::Holders,
        }
    }

    /// Moves a lookup from a node at the depth `depth`, held by `above`, to a child held by `set`. Workers that drop
    /// out are appended to `scores`. Returns false if no worker is left.
    pub(crate) fn step(&mut self, above: &WorkerSet, set: &WorkerSet, depth: u32, scores: &mut Scores) -> bool {
        match self {
            Self::Low(left) => {
                let stay = set.low();
                if *left & !stay != 0 {
                    each_bit(0, *left & !stay, |worker| scores.push((worker, depth)));
                    *left &= stay;
                }
                *left != 0
            }
            Self::Holders => {
                if above == set {
                    return true;
                }
                let mut stay = 0;
                match (above, set) {
                    (WorkerSet::Bits(above), WorkerSet::Bits(set)) => {
                        for (at, &word) in above.iter().enumerate() {
                            let kept = word & set.get(at).unwrap_or(&0);
                            each_bit(at as u32, word & !kept, |worker| scores.push((worker, depth)));
                            stay += kept.count_ones() as usize;
                        }
                    }
                    _ => above.for_each(|worker| {
                        if set.contains(worker) {
                            stay += 1;
                        } else {
                            scores.push((worker, depth));
                        }
                    }),
                }
                if stay < set.len() {
                    let mut left = SmallVec::with_capacity(stay);
                    above.for_each(|worker| {
                        if set.contains(worker) {
                            left.push(worker);
                        }
                    });
                    *self = Self::Some(left);
                }
                stay != 0
            }
            Self::Some(left) => {
                left.retain(|worker| {
                    let stays = set.contains(*worker);
                    if !stays {
                        scores.push((*worker, depth));
                    }
                    stays
                });
                !left.is_empty()
            }
        }
    }

    /// Ends a lookup at a node at the depth `depth`, held by `set`, and appends the remaining workers to `scores`.
    pub(crate) fn finish(self, set: &WorkerSet, depth: u32, scores: &mut Scores) {
        match self {
            Self::Low(left) => each_bit(0, left, |worker| scores.push((worker, depth))),
            Self::Holders => set.for_each(|worker| scores.push((worker, depth))),
            Self::Some(left) => scores.extend(left.iter().map(|&worker| (worker, depth))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::radix::testing::Random;

    #[test]
    fn equals_a_set_of_numbers() {
        for seed in 0..60 {
            let random = &mut Random(seed);
            let among = [3, 64, 66, 200, 1000, 100_000, u32::MAX as u64 + 1][seed as usize % 7];
            let (mut set, mut model) = (WorkerSet::default(), BTreeSet::new());
            for step in 0..3000 {
                // Growing and shrinking alternate, so that every form is converted to every other.
                let worker = match random.below(4) {
                    0 => random.below(among),
                    1 => *model.iter().nth(random.below(model.len() as u64 + 1) as usize).unwrap_or(&0),
                    _ => random.below(among.min(300)),
                };
                if (step / 400) % 2 == 0 {
                    assert_eq!(set.insert(worker as u32), model.insert(worker), "seed {seed} step {step}");
                } else {
                    assert_eq!(set.remove(worker as u32), model.remove(&worker), "seed {seed} step {step}");
                }
                assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()), "seed {seed} step {step}");
                let probe = random.below(among);
                assert_eq!(set.contains(probe as u32), model.contains(&probe));
                if step % 16 == 0 {
                    assert!(set.to_vec().iter().map(|&w| u64::from(w)).eq(model.iter().copied()), "seed {seed}");
                    let low = model.iter().filter(|w| **w < 64).fold(0, |word, w| word | 1 << w);
                    assert_eq!(set.low(), low);
                }
            }
        }
    }

    #[test]
    fn is_small() {
        assert_eq!(size_of::<WorkerSet>(), 24);
    }

    /// Descends through random sets of every form, some with missing members, and checks that exactly the workers
    /// missing from a set drop out there.
    #[test]
    fn running_keeps_exactly_those_in_all_sets() {
        for seed in 0..400 {
            let random = &mut Random(seed);
            let among = *random.pick(&[10, 70, 64, 300, 5000]);
            let many = *random.pick(&[2, 5, 40, 300]);
            let holes = random.chance(50);
            let mut members: BTreeSet<u32> = (0..many).map(|_| random.below(among) as u32).collect();
            let mut chain = Vec::new();
            for _ in 0..12 {
                chain.push(members.clone());
                members.retain(|_| random.chance(90));
                if holes && random.chance(40) {
                    members.extend((0..3).map(|_| random.below(among) as u32));
                }
                if members.is_empty() {
                    break;
                }
            }
            let sets: Vec<_> = chain.iter().map(|m| WorkerSet::from_sorted(m.iter().copied().collect())).collect();
            let mut scores = Vec::new();
            let mut running = ActiveWorkers::new(&sets[0]);
            let (mut at, mut left) = (0, true);
            while left && at + 1 < sets.len() {
                left = running.step(&sets[at], &sets[at + 1], at as u32 + 1, &mut scores);
                at += 1;
            }
            running.finish(&sets[at], at as u32 + 1, &mut scores);
            scores.sort_unstable();
            let depth = |worker| chain.iter().take_while(|set| set.contains(&worker)).count() as u32;
            let expected: Vec<_> = chain[0].iter().map(|&worker| (worker, depth(worker))).collect();
            assert_eq!(scores, expected, "seed {seed}");
        }
    }
}
