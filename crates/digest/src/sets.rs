//! Sets of sites, each as a 32-bit number: the number of its only site, or of a set that is kept once.

use std::sync::Arc;

use hashbrown::HashMap;

/// Most sites. A number below it is the set of that one site.
pub const MAX_SITES: usize = 1 << 16;
const FIRST: u32 = MAX_SITES as u32;

/// A set of sites, as bits.
pub(crate) type Bits = [u64];

struct SharedSet {
    bits: Arc<Bits>,
    /// Number of marks with this set.
    marks: u32,
}

/// Sets of more than one site that marks have.
#[derive(Default)]
pub(crate) struct Sets {
    kept: Vec<Option<SharedSet>>,
    free: Vec<u32>,
    numbers: HashMap<Arc<Bits>, u32>,
    /// Number of words of all shared sets.
    words: usize,
}

impl Sets {
    /// Sites of a set.
    pub(crate) fn each(&self, set: u32, mut f: impl FnMut(usize)) {
        match self.bits(set) {
            None => f(set as usize),
            Some(bits) => ones(bits).for_each(f),
        }
    }

    pub(crate) fn has(&self, set: u32, site: usize) -> bool {
        match self.bits(set) {
            None => set as usize == site,
            Some(bits) => bits.get(site / 64).is_some_and(|word| word >> (site % 64) & 1 == 1),
        }
    }

    fn bits(&self, set: u32) -> Option<&Bits> {
        let kept = self.kept.get(set.checked_sub(FIRST)? as usize)?.as_ref()?;
        Some(&kept.bits)
    }

    /// Adds a site to the set of a mark: `set` loses the mark to the returned set.
    pub(crate) fn with(&mut self, set: Option<u32>, site: usize) -> u32 {
        let Some(set) = set else { return site as u32 };
        if self.has(set, site) {
            return set;
        }
        let mut bits = self.copy(set, site / 64 + 1);
        bits[site / 64] |= 1 << (site % 64);
        self.release(set);
        self.number(bits)
    }

    /// Removes a site from the set of a mark: `set` loses the mark to the returned set; none if that is empty.
    pub(crate) fn without(&mut self, set: u32, site: usize) -> Option<u32> {
        if !self.has(set, site) {
            return Some(set);
        }
        if set < FIRST {
            return None;
        }
        let mut bits = self.copy(set, 0);
        bits[site / 64] &= !(1 << (site % 64));
        self.release(set);
        // A shared set has at least two sites.
        let (one, other) = {
            let mut sites = ones(&bits);
            (sites.next(), sites.next())
        };
        match (one, other) {
            (Some(one), None) => Some(one as u32),
            _ => Some(self.number(bits)),
        }
    }

    fn copy(&self, set: u32, words: usize) -> Vec<u64> {
        let mut bits = self.bits(set).map(<[u64]>::to_vec).unwrap_or_default();
        let least = if set < FIRST { set as usize / 64 + 1 } else { 0 };
        bits.resize(bits.len().max(words).max(least), 0);
        if set < FIRST {
            bits[set as usize / 64] |= 1 << (set % 64);
        }
        bits
    }

    fn number(&mut self, mut bits: Vec<u64>) -> u32 {
        while bits.last() == Some(&0) {
            bits.pop();
        }
        if let Some(&number) = self.numbers.get(&bits[..]) {
            if let Some(kept) = &mut self.kept[(number - FIRST) as usize] {
                kept.marks += 1;
            }
            return number;
        }
        let bits: Arc<Bits> = bits.into();
        self.words += bits.len();
        let kept = Some(SharedSet { bits: bits.clone(), marks: 1 });
        let number = match self.free.pop() {
            Some(number) => {
                self.kept[(number - FIRST) as usize] = kept;
                number
            }
            None => {
                self.kept.push(kept);
                FIRST + (self.kept.len() - 1) as u32
            }
        };
        self.numbers.insert(bits, number);
        number
    }

    fn release(&mut self, set: u32) {
        let Some(at) = set.checked_sub(FIRST) else { return };
        let slot = &mut self.kept[at as usize];
        let Some(kept) = slot else { return };
        kept.marks -= 1;
        if kept.marks == 0 {
            self.words -= kept.bits.len();
            self.numbers.remove(&kept.bits);
            *slot = None;
            self.free.push(set);
        }
    }

    /// Number of kept sets.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        // Reference counts before the words of each.
        self.kept.capacity() * size_of::<Option<SharedSet>>()
            + self.free.capacity() * 4
            + self.numbers.capacity() * (size_of::<(Arc<Bits>, u32)>() + 1)
            + self.numbers.len() * 16
            + self.words * 8
    }
}

/// The numbers in a set.
pub(crate) fn ones(bits: &Bits) -> impl Iterator<Item = usize> {
    bits.iter().enumerate().flat_map(|(at, &word)| {
        let mut word = word;
        std::iter::from_fn(move || {
            let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
            word &= word - 1;
            Some(at * 64 + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kvatlas_testing::Random;

    use super::*;

    #[test]
    fn sets_are_sets_and_are_kept_once() {
        for seed in 0..50 {
            let mut random = Random(seed);
            let mut sets = Sets::default();
            let mut marks: Vec<(Option<u32>, BTreeSet<usize>)> = vec![(None, BTreeSet::new()); 20];
            for _ in 0..3_000 {
                let (at, site) = (random.index(20), random.index(200));
                let (set, model) = &mut marks[at];
                if random.chance(60) {
                    *set = Some(sets.with(*set, site));
                    model.insert(site);
                } else if let Some(number) = *set {
                    // Often a site already in it.
                    let site = if random.chance(80) { *model.iter().next().unwrap() } else { site };
                    *set = sets.without(number, site);
                    model.remove(&site);
                }
                let (set, model) = &marks[at];
                let mut sites = BTreeSet::new();
                set.iter().for_each(|&set| sets.each(set, |site| assert!(sites.insert(site))));
                assert_eq!(&sites, model);
                assert!(set.is_none_or(|set| model.iter().all(|&site| sets.has(set, site)) && !sets.has(set, 999)));
            }
            let different: BTreeSet<_> = marks.iter().filter(|(_, m)| m.len() > 1).map(|(_, m)| m.clone()).collect();
            assert_eq!(sets.len(), different.len());
            for (set, model) in &mut marks {
                for site in std::mem::take(model) {
                    *set = set.and_then(|set| sets.without(set, site));
                }
                assert_eq!(*set, None);
            }
            assert_eq!((sets.len(), sets.words), (0, 0));
        }
    }
}
