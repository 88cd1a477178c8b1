//! Sets of holders: one word each, and each set once.
//!
//! Most sets are small or the fleet is, so a word holds the members themselves: a mask of the holders below 62, or up
//! to three holders of any number below 2^20. Any other set is an object that all who mean it share: it is found by
//! the xor of its members' random words (Zobrist 1970), so that "this set and one more" is one look-up. Equal sets
//! have equal words, always.

use std::ops::ControlFlow;

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::reclaim::Pin;
use crate::shared::{Owned, counted_set, pinned_set};
use crate::sync::{AtomicU32, Ordering};
use crate::table::mix;

const KIND: u64 = 3;
const OBJECT: u64 = 0;
const MASK: u64 = 1;
const FEW: u64 = 2;
/// Holders below this fit into a mask.
const MASK_HOLDERS: u32 = 62;
/// `FEW` keeps three holders of 20 bits; all ones is none.
const FEW_BITS: u32 = 20;
const FEW_NONE: u32 = (1 << FEW_BITS) - 1;

/// A set of holders. Words of objects are references that [`Sets`] counts, and are valid while it counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SetWord(u64);

/// The members of a set, ready to be looked at.
#[derive(Clone, Copy)]
pub(crate) enum Members<'a> {
    Mask(u64),
    Few([u32; 3], usize),
    List(&'a [u32]),
    Bits(&'a [u64]),
}

/// The same, kept.
pub(crate) enum OwnedMembers {
    Word(SetWord),
    List(Box<[u32]>),
    Bits(Box<[u64]>),
}

/// A set that does not fit into a word.
pub(crate) struct Set {
    /// The xor of its members' words.
    key: u64,
    /// How many levels and copies mean it; the writer's own.
    references: AtomicU32,
    body: Body,
}

/// Whichever is smaller; a function of the members alone, so that equal sets have equal bodies.
#[derive(PartialEq, Eq, Clone)]
enum Body {
    /// Holders, rising.
    List(Box<[u32]>),
    /// A bit for each holder up to the highest.
    Bits(Box<[u64]>),
}

impl SetWord {
    pub(crate) const EMPTY: Self = Self(0);

    #[inline]
    pub(crate) fn from_raw(word: u64) -> Self {
        Self(word)
    }

    #[inline]
    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    #[inline]
    fn is_object(self) -> bool {
        self.0 & KIND == OBJECT && self.0 != 0
    }

    /// The members, for a reader that found this word under `pin`.
    #[inline]
    pub(crate) fn members<'p>(self, pin: &'p Pin<'_>) -> Members<'p> {
        self.decode(|address| pinned_set(address, pin))
    }

    #[inline]
    fn decode<'a>(self, object: impl FnOnce(u64) -> &'a Set) -> Members<'a> {
        match self.0 & KIND {
            MASK => Members::Mask(self.0 >> 2),
            FEW => {
                let mut few = [0; 3];
                let mut n = 0;
                for i in 0..3 {
                    let holder = (self.0 >> (2 + FEW_BITS * i)) as u32 & FEW_NONE;
                    if holder != FEW_NONE {
                        few[n] = holder;
                        n += 1;
                    }
                }
                Members::Few(few, n)
            }
            _ if self.0 == 0 => Members::Mask(0),
            _ => match &object(self.0).body {
                Body::List(list) => Members::List(list),
                Body::Bits(bits) => Members::Bits(bits),
            },
        }
    }

    fn of_few(holders: &[u32]) -> Self {
        let mut word = FEW;
        for i in 0..3 {
            word |= u64::from(holders.get(i).copied().unwrap_or(FEW_NONE)) << (2 + FEW_BITS * i as u32);
        }
        Self(word)
    }
}

impl Members<'_> {
    #[inline]
    pub(crate) fn contains(self, holder: u32) -> bool {
        match self {
            Self::Mask(mask) => holder < MASK_HOLDERS && mask >> holder & 1 == 1,
            Self::Few(few, n) => few[..n].contains(&holder),
            Self::List(list) => list.binary_search(&holder).is_ok(),
            Self::Bits(bits) => bits.get(holder as usize / 64).is_some_and(|word| word >> (holder % 64) & 1 == 1),
        }
    }

    /// Calls `f` with each member that is not among the `seen`, rising, until it breaks; they are seen from then on.
    /// Costs a step for 64 members that were seen before, so that many levels of one large set are cheap to merge.
    #[inline]
    pub(crate) fn try_for_each_new(
        self,
        seen: &mut Seen,
        f: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Self::Mask(mask) => Bits { word: seen.insert_word(0, mask), base: 0 }.try_for_each(f),
            Self::Few(few, n) => few[..n].iter().copied().filter(|&holder| seen.insert(holder)).try_for_each(f),
            Self::List(list) => list.iter().copied().filter(|&holder| seen.insert(holder)).try_for_each(f),
            Self::Bits(bits) => bits.iter().enumerate().try_for_each(|(i, &word)| {
                Bits { word: seen.insert_word(i, word), base: i as u32 * 64 }.try_for_each(&mut *f)
            }),
        }
    }

    /// Calls `f` with each member, rising.
    #[inline]
    pub(crate) fn for_each(self, mut f: impl FnMut(u32)) {
        match self {
            Self::Mask(mask) => Bits { word: mask, base: 0 }.for_each(f),
            Self::Few(few, n) => few[..n].iter().copied().for_each(f),
            Self::List(list) => list.iter().copied().for_each(f),
            Self::Bits(bits) => {
                bits.iter().enumerate().for_each(|(i, &word)| Bits { word, base: i as u32 * 64 }.for_each(&mut f));
            }
        }
    }
}

/// Holders met so far. (The sets of a match shrink with depth, but a writer may have been at work between two.)
#[derive(Default)]
pub(crate) struct Seen(SmallVec<[u64; 4]>);

impl Seen {
    /// Whether it is new.
    #[inline]
    pub(crate) fn insert(&mut self, holder: u32) -> bool {
        self.insert_word(holder as usize / 64, 1 << (holder % 64)) != 0
    }

    /// Those of the holders `64 * word..` given by `bits` that are new.
    #[inline]
    fn insert_word(&mut self, word: usize, bits: u64) -> u64 {
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let new = bits & !self.0[word];
        self.0[word] |= bits;
        new
    }
}

/// The positions of a word's ones, after a base.
struct Bits {
    word: u64,
    base: u32,
}

impl Iterator for Bits {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.word == 0 {
            return None;
        }
        let bit = self.word.trailing_zeros();
        self.word &= self.word - 1;
        Some(self.base + bit)
    }
}

impl OwnedMembers {
    /// A copy of what `set`, whose members these are, means.
    #[inline]
    pub(crate) fn of(set: SetWord, members: Members<'_>) -> Self {
        match members {
            Members::Mask(_) | Members::Few(..) => Self::Word(set),
            Members::List(list) => Self::List(list.into()),
            Members::Bits(bits) => Self::Bits(bits.into()),
        }
    }

    #[inline]
    pub(crate) fn members(&self) -> Members<'_> {
        match self {
            Self::Word(set) => set.decode(|_| unreachable!("an object is copied")),
            Self::List(list) => Members::List(list),
            Self::Bits(bits) => Members::Bits(bits),
        }
    }
}

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
    secret: u64,
    body_bytes: usize,
    /// Unlinked: the writer retires them.
    pub(crate) dead: Vec<Owned<Set>>,
}

impl Sets {
    pub(crate) fn new(secret: u64) -> Self {
        Self { objects: HashTable::new(), secret, body_bytes: 0, dead: Vec::new() }
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
        set.decode(|address| counted_set(address, self))
    }

    #[inline]
    pub(crate) fn contains(&self, set: SetWord, holder: u32) -> bool {
        self.members(set).contains(holder)
    }

    #[inline]
    fn object_of(&self, set: SetWord) -> Option<&Set> {
        set.is_object().then(|| counted_set(set.0, self))
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
        if (set.is_empty() || set.0 & KIND == MASK) && holder < MASK_HOLDERS {
            return SetWord(set.0 | MASK | 1 << (2 + holder));
        }
        self.changed(set, holder)
    }

    /// A new reference to the set without `holder`, who is in it.
    pub(crate) fn without(&mut self, set: SetWord, holder: u32) -> SetWord {
        if set.0 & KIND == MASK {
            let rest = set.0 & !(1 << (2 + holder));
            return if rest == MASK { SetWord::EMPTY } else { SetWord(rest) };
        }
        self.changed(set, holder)
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
        let Some(&highest) = holders.last() else { return SetWord::EMPTY };
        if highest < MASK_HOLDERS {
            return SetWord(holders.iter().fold(MASK, |word, h| word | 1 << (2 + h)));
        }
        if holders.len() <= 3 && highest < FEW_NONE {
            return SetWord::of_few(&holders);
        }
        let secret = self.secret;
        let word = |h: u32| mix(u64::from(h) + 1, 0, secret);
        let key = key.map_or_else(|| holders.iter().fold(0, |key, &h| key ^ word(h)), |key| key ^ word(holder));
        self.object(key, Body::of(&holders))
    }

    fn object(&mut self, key: u64, body: Body) -> SetWord {
        // The key alone would do but for one chance in 2^64 a pair; the comparison makes it exact.
        if let Some((_, object)) = self.objects.find(key, |(k, o)| *k == key && o.body == body) {
            object.references.fetch_add(1, Ordering::Relaxed);
            return SetWord(object.address());
        }
        self.body_bytes += body.bytes();
        let object = Owned::new(Set { key, references: AtomicU32::new(1), body });
        let word = SetWord(object.address());
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
        let mut sets = Sets::new(1);
        let mut random = 1u64;
        let mut held: Vec<(BTreeSet<u32>, SetWord)> = (0..8).map(|_| (BTreeSet::new(), SetWord::EMPTY)).collect();
        for step in 0..20_000u64 {
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
