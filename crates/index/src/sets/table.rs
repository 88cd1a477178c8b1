//! The writer's table of the sets that do not fit into a word: each set once.

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::raw::{Body, CountedToken, Members, Owned, Set, SetWord};
use crate::spread::Secret;
use crate::sync::{AtomicU32, Ordering};

impl Body {
    /// The body of a set of these holders (rising).
    fn of(holders: &[u32]) -> Self {
        let highest = holders.last().map_or(0, |&h| h as usize);
        let words = highest / 64 + 1;
        if words * 8 >= size_of_val(holders) {
            return Self::List(holders.into());
        }
        let mut bits = vec![0; words];
        for &holder in holders {
            bits[holder as usize / 64] |= 1 << (holder % 64);
        }
        Self::Bits(bits.into())
    }

    fn bytes(&self) -> usize {
        match self {
            Self::List(list) => size_of_val::<[u32]>(list),
            Self::Bits(bits) => size_of_val::<[u64]>(bits),
        }
    }
}

/// The writer's table of all sets that are objects.
pub(crate) struct Sets {
    /// With the key beside: most look-ups end without a look at the set.
    objects: HashTable<(u64, Owned<Set>)>,
    secret: Secret,
    body_bytes: usize,
    /// Unlinked: the writer retires them.
    pub(crate) dead: Vec<Owned<Set>>,
    counted: CountedToken,
}

impl Sets {
    pub(crate) fn new() -> Self {
        Self {
            objects: HashTable::new(),
            secret: Secret::new(),
            body_bytes: 0,
            dead: Vec::new(),
            counted: CountedToken::new(),
        }
    }

    /// Number of sets that are objects.
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.objects.allocation_size() + self.objects.len() * size_of::<Set>() + self.body_bytes
    }

    #[inline]
    pub(crate) fn members(&self, set: SetWord) -> Members<'_> {
        set.counted_members(&self.counted)
    }

    #[inline]
    pub(crate) fn contains(&self, set: SetWord, holder: u32) -> bool {
        self.members(set).contains(holder)
    }

    #[inline]
    fn object_of(&self, set: SetWord) -> Option<&Set> {
        set.object(&self.counted)
    }

    /// One more reference to a set.
    #[inline]
    pub(crate) fn retain(&mut self, set: SetWord) -> SetWord {
        if let Some(object) = self.object_of(set) {
            object.references.fetch_add(1, Ordering::Relaxed);
        }
        set
    }

    /// One reference less.
    #[inline]
    pub(crate) fn release(&mut self, set: SetWord) {
        if set.is_object() {
            self.release_object(set);
        }
    }

    fn release_object(&mut self, set: SetWord) {
        let Some(object) = self.object_of(set) else { return };
        if object.references.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let (key, bytes) = (object.key, object.body.bytes());
        if let Ok(entry) = self.objects.find_entry(key, |(_, o)| o.address() == set.raw()) {
            self.dead.push(entry.remove().0.1);
            self.body_bytes -= bytes;
        }
        if self.objects.capacity() > 64 && self.objects.len() * 4 < self.objects.capacity() {
            self.objects.shrink_to(self.objects.len() * 2, |(key, _)| *key);
        }
    }

    /// A new reference to the set and `holder`, who is not in it.
    pub(crate) fn with(&mut self, set: SetWord, holder: u32) -> SetWord {
        set.mask_with(holder).unwrap_or_else(|| self.changed(set, holder))
    }

    /// A new reference to the set without `holder`, who is in it.
    pub(crate) fn without(&mut self, set: SetWord, holder: u32) -> SetWord {
        set.mask_without(holder).unwrap_or_else(|| self.changed(set, holder))
    }

    /// The set with `holder` in it if it was not, and the reverse.
    fn changed(&mut self, set: SetWord, holder: u32) -> SetWord {
        let mut holders: SmallVec<[u32; 128]> = SmallVec::new();
        let key = self.object_of(set).map(|object| object.key);
        match self.members(set) {
            Members::List(list) => holders.extend_from_slice(list),
            members => members.for_each(|h| holders.push(h)),
        }
        match holders.binary_search(&holder) {
            Ok(at) => drop(holders.remove(at)),
            Err(at) => holders.insert(at, holder),
        }
        if let Some(word) = SetWord::of_holders(&holders) {
            return word;
        }
        let secret = self.secret;
        let word = |h: u32| secret.mix(u64::from(h) + 1, 0);
        let key = key.map_or_else(|| holders.iter().fold(0, |key, &h| key ^ word(h)), |key| key ^ word(holder));
        self.object(key, Body::of(&holders))
    }

    fn object(&mut self, key: u64, body: Body) -> SetWord {
        // The key alone would do but for one chance in 2^64 a pair; the comparison makes it exact.
        if let Some((_, object)) = self.objects.find(key, |(k, o)| *k == key && o.body == body) {
            object.references.fetch_add(1, Ordering::Relaxed);
            return SetWord::of_object(object);
        }
        self.body_bytes += body.bytes();
        let object = Owned::new(Set { key, references: AtomicU32::new(1), body });
        let word = SetWord::of_object(&object);
        self.objects.insert_unique(key, (key, object), |(key, _)| *key);
        word
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn equal_sets_have_equal_words_and_nothing_is_left() {
        let mut sets = Sets::new();
        let mut random = 1u64;
        let mut held: Vec<(BTreeSet<u32>, SetWord)> = (0..8).map(|_| (BTreeSet::new(), SetWord::EMPTY)).collect();
        for step in 0..if cfg!(miri) { 600 } else { 20_000u64 } {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let i = (random >> 60) as usize % held.len();
            let span = [8, 70, 5_000, 2_000_000][(random >> 50) as usize % 4];
            let holder = (random >> 20) as u32 % span;
            let (model, word) = &mut held[i];
            let new = if model.remove(&holder) {
                sets.without(*word, holder)
            } else {
                model.insert(holder);
                sets.with(*word, holder)
            };
            sets.release(*word);
            *word = new;
            let mut got = Vec::new();
            sets.members(new).for_each(|h| got.push(h));
            assert_eq!(got, model.iter().copied().collect::<Vec<_>>());
            assert!(!model.contains(&holder) || sets.contains(new, holder));
            if step % 512 == 0 {
                for (a, wa) in &held {
                    for (b, wb) in &held {
                        assert_eq!(a == b, wa == wb);
                    }
                }
                sets.dead.clear();
            }
        }
        for (_, word) in held {
            sets.release(word);
        }
        assert_eq!((sets.len(), sets.body_bytes), (0, 0));
    }
}
