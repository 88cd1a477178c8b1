//! The workers still matching as a lookup descends.

use smallvec::SmallVec;

use super::worker_set::WorkerSet;
use crate::collections::each_bit;
use crate::interface::{Scores, WorkerId};

/// The workers that hold all blocks down to the current node of a lookup. Dropping workers are recorded with their
/// depth at once, so the whole costs one comparison of sets per block and one entry per worker.
pub(crate) enum ActiveWorkers {
    /// The workers as bits, if all holders of the first block are below 64.
    Low(u64),
    /// All holders of the node, which is the case until a worker with a hole above is met.
    Holders,
    /// Some holders of the node: the others have a hole above it.
    Some(SmallVec<[WorkerId; 32]>),
}

impl ActiveWorkers {
    /// The state of a lookup at the first block, held by `set`.
    pub(crate) fn new(set: &WorkerSet) -> Self {
        match set {
            WorkerSet::Word(word) => Self::Low(*word),
            _ => Self::Holders,
        }
    }

    /// Moves from a node held by `above`, `depth` blocks deep, to a child held by `set`. Returns false if no worker is
    /// left.
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

    /// Ends the lookup at a node held by `set`, `depth` blocks deep.
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

    /// Descends through random sets of every form, also with holes, and drops the workers missing from each.
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
