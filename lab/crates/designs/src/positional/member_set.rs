//! A set of small numbers (workers, or groups of workers), compact at any size and fast to compare.
//!
//! Few members are stored as a sorted list, the first four of it inline; many as a bitset, once that has no more words
//! than members. A list's size does not depend on its largest number, so sparse numbers are safe.

use smallvec::SmallVec;

use crate::collections::{each_bit, has_bit, to_words};

/// A set of workers or groups by number. Equal sets may be stored in different forms.
#[derive(Clone, Debug)]
pub(crate) enum MemberSet {
    /// Members of the set (numbers of workers or groups) as a sorted list.
    List(SmallVec<[u32; 4]>),
    /// Members of the set (numbers of workers or groups) as bits: bit `i % 64` of word `i / 64` is member `i`; the last
    /// word is not zero. `count`: number of members.
    Bits { words: Vec<u64>, count: u32 },
}

/// Number of members of a set (workers or groups) below which a sorted list is faster than bits, for any numbers.
const FEW: usize = 8;

impl Default for MemberSet {
    fn default() -> Self {
        Self::List(SmallVec::new())
    }
}

impl MemberSet {
    /// Creates the set of one member, a worker's or group's number.
    pub(crate) fn of(member: u32) -> Self {
        Self::List(SmallVec::from_slice(&[member]))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Bits { count, .. } => *count as usize,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn contains(&self, member: u32) -> bool {
        match self {
            Self::List(list) => list.binary_search(&member).is_ok(),
            Self::Bits { words, .. } => has_bit(words, member),
        }
    }

    /// Calls `each` with every member of the set (number of a worker or group), in order.
    pub(crate) fn for_each(&self, mut each: impl FnMut(u32)) {
        match self {
            Self::List(list) => list.iter().copied().for_each(each),
            Self::Bits { words, .. } => {
                for (at, &word) in (0..).zip(words) {
                    each_bit(at, word, &mut each);
                }
            }
        }
    }

    /// Adds a member (number of a worker or group) to the set. Returns true if the set did not contain it.
    pub(crate) fn insert(&mut self, member: u32) -> bool {
        match self {
            Self::List(list) => {
                let Err(at) = list.binary_search(&member) else { return false };
                list.insert(at, member);
                let words = list.last().map_or(0, |&last| last as usize / 64 + 1);
                if list.len() >= FEW && words <= list.len() {
                    *self = Self::Bits { words: to_words(list), count: list.len() as u32 };
                }
                true
            }
            Self::Bits { words, count } => {
                let (at, mask) = (member as usize / 64, 1 << (member % 64));
                // One far number must not cost a bit for every number before it.
                if at >= words.len() && at + 1 > 2 * (*count as usize + 1) {
                    let mut list = self.to_list();
                    list.push(member);
                    *self = Self::List(list);
                    return true;
                }
                if at >= words.len() {
                    words.resize(at + 1, 0);
                }
                let fresh = words[at] & mask == 0;
                words[at] |= mask;
                *count += u32::from(fresh);
                fresh
            }
        }
    }

    /// Removes a member (number of a worker or group) from the set. Returns true if the set contained it.
    pub(crate) fn remove(&mut self, member: u32) -> bool {
        match self {
            Self::List(list) => {
                let Ok(at) = list.binary_search(&member) else { return false };
                list.remove(at);
                if list.spilled() && list.len() <= list.inline_size() {
                    list.shrink_to_fit();
                }
                true
            }
            Self::Bits { words, count } => {
                if !has_bit(words, member) {
                    return false;
                }
                words[member as usize / 64] &= !(1 << (member % 64));
                *count -= 1;
                self.settle();
                true
            }
        }
    }

    /// True if every member of this set is also in `other`.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        if self.len() > other.len() {
            return false;
        }
        match (self, other) {
            (Self::List(mine), Self::List(others)) => {
                mine == others || (mine.len() < others.len() && list_within(mine, others))
            }
            (Self::List(mine), Self::Bits { words, .. }) => mine.iter().all(|&member| has_bit(words, member)),
            (Self::Bits { words: mine, .. }, Self::Bits { words: others, .. }) => {
                // No early exit: a few words at once are faster than a branch for each.
                mine.len() <= others.len() && mine.iter().zip(others).fold(0, |rest, (m, o)| rest | (m & !o)) == 0
            }
            (Self::Bits { words, count }, Self::List(others)) => {
                others.iter().filter(|&&member| has_bit(words, member)).count() == *count as usize
            }
        }
    }

    /// Number of members (workers or groups) of this set that are also in `other`.
    pub(crate) fn common(&self, other: &Self) -> usize {
        match (self, other) {
            (Self::List(mine), Self::List(others)) => {
                let (short, long) = if mine.len() <= others.len() { (mine, others) } else { (others, mine) };
                let mut rest = &long[..];
                let is_in = |member: &&u32| {
                    let (at, found) = match rest.binary_search(member) {
                        Ok(at) => (at, true),
                        Err(at) => (at, false),
                    };
                    rest = &rest[at..];
                    found
                };
                short.iter().filter(is_in).count()
            }
            (Self::List(list), Self::Bits { words, .. }) | (Self::Bits { words, .. }, Self::List(list)) => {
                list.iter().filter(|&&member| has_bit(words, member)).count()
            }
            (Self::Bits { words: mine, .. }, Self::Bits { words: others, .. }) => {
                mine.iter().zip(others).map(|(m, o)| (m & o).count_ones() as usize).sum()
            }
        }
    }

    /// Keeps only the members of this set that are also in `other`, and calls `dropped` with every removed member, in
    /// order.
    pub(crate) fn keep_within(&mut self, other: &Self, mut dropped: impl FnMut(u32)) {
        match (&mut *self, other) {
            (Self::Bits { words: mine, count }, Self::Bits { words: others, .. }) => {
                for (at, word) in (0..).zip(mine) {
                    let gone = *word & !others.get(at as usize).unwrap_or(&0);
                    if gone != 0 {
                        *word ^= gone;
                        *count -= gone.count_ones();
                        each_bit(at, gone, &mut dropped);
                    }
                }
                self.settle();
            }
            (Self::List(mine), Self::List(others)) if others.len() <= 8 * mine.len() => {
                let mut others = others.iter().copied().peekable();
                mine.retain(|member| {
                    while others.next_if(|&other| other < *member).is_some() {}
                    let kept = others.peek() == Some(member);
                    if !kept {
                        dropped(*member);
                    }
                    kept
                });
            }
            (Self::List(mine), others) => mine.retain(|member| {
                let kept = others.contains(*member);
                if !kept {
                    dropped(*member);
                }
                kept
            }),
            (Self::Bits { words, .. }, Self::List(others)) => {
                let kept: SmallVec<_> = others.iter().copied().filter(|&member| has_bit(words, member)).collect();
                let mut next = kept.iter().copied().peekable();
                self.for_each(|member| {
                    if next.next_if_eq(&member).is_none() {
                        dropped(member);
                    }
                });
                *self = Self::List(kept);
            }
        }
    }

    /// Removes empty words at the end of a set stored as bits, and converts the set to a list if that needs less
    /// memory.
    fn settle(&mut self) {
        let Self::Bits { words, count } = self else { return };
        while words.last() == Some(&0) {
            words.pop();
        }
        let count = *count as usize;
        if count < FEW / 2 || words.len() > 2 * count {
            *self = Self::List(self.to_list());
        } else if words.capacity() > 4 * words.len() {
            words.shrink_to(2 * words.len());
        }
    }

    fn to_list(&self) -> SmallVec<[u32; 4]> {
        let mut list = SmallVec::with_capacity(self.len() + 1);
        self.for_each(|member| list.push(member));
        list
    }
}

/// True if every member of the sorted list `short` is also in the sorted list `long`.
fn list_within(short: &[u32], long: &[u32]) -> bool {
    if long.len() > 8 * short.len() {
        return short.iter().all(|member| long.binary_search(member).is_ok());
    }
    let mut long = long.iter();
    short.iter().all(|member| long.find(|&other| other >= member) == Some(member))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use kvatlas_testing::Random;

    fn members(set: &MemberSet) -> Vec<u32> {
        let mut members = Vec::new();
        set.for_each(|member| members.push(member));
        members
    }

    #[test]
    fn behaves_as_a_set_of_the_standard_library() {
        for seed in 0..40 {
            let random = &mut Random(seed);
            let range = [6, 70, 300, 5_000, u64::from(u32::MAX)][seed as usize % 5];
            let mut pair = || {
                let (mut set, mut model) = (MemberSet::default(), BTreeSet::new());
                let steps = random.below(400);
                for _ in 0..steps {
                    let member = random.below(range) as u32;
                    if random.below(3) == 0 {
                        // Mostly an existing member.
                        let member = model.range(member..).next().copied().unwrap_or(member);
                        assert_eq!(set.remove(member), model.remove(&member), "seed {seed}");
                    } else {
                        assert_eq!(set.insert(member), model.insert(member), "seed {seed}");
                    }
                }
                (set, model)
            };
            for _ in 0..20 {
                let ((mut a, model_a), (b, model_b)) = (pair(), pair());
                assert!(members(&a).iter().eq(&model_a), "seed {seed}");
                assert_eq!(a.len(), model_a.len(), "seed {seed}");
                assert_eq!(a.is_within(&b), model_a.is_subset(&model_b), "seed {seed}");
                assert_eq!(a.common(&b), model_a.intersection(&model_b).count(), "seed {seed}");
                let mut dropped = Vec::new();
                a.keep_within(&b, |member| dropped.push(member));
                assert!(dropped.iter().eq(model_a.difference(&model_b)), "seed {seed}");
                assert!(members(&a).iter().eq(model_a.intersection(&model_b)), "seed {seed}");
                assert!(a.is_within(&b) && a.contains(members(&a).first().copied().unwrap_or(0)) != a.is_empty());
            }
        }
    }

    #[test]
    fn a_far_number_costs_no_bits() {
        let mut set = MemberSet::default();
        (0..100).for_each(|member| assert!(set.insert(member)));
        assert!(matches!(&set, MemberSet::Bits { words, .. } if words.len() == 2));
        assert!(set.insert(u32::MAX));
        assert!(matches!(set, MemberSet::List(_)));
        assert!(set.remove(u32::MAX) && set.insert(100));
        assert!(matches!(&set, MemberSet::Bits { words, .. } if words.len() == 2));
        (0..99).for_each(|member| assert!(set.remove(member)));
        assert_eq!(members(&set), [99, 100]);
        assert!(matches!(set, MemberSet::List(_)));
    }
}
