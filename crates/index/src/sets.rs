//! Sets of holders (ranks' caches), each represented by one 64-bit word; equal sets have equal words.
//!
//! A word either contains the members or points to an object with them (`raw/set.rs`). The object is shared by all
//! users of the set. It is found by a key, the xor of its members' random words (Zobrist 1970), so that a set with one
//! member more is found in one look-up.

use std::ops::ControlFlow;

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::raw::{CountedToken, MASK_HOLDERS, Members, Set, SetBox, SetHead, SetWord, Spares};
use crate::spread::Secret;

/// Owned copy of the members of a set of holders (ranks' caches).
pub(crate) enum OwnedMembers {
    Mask(u64),
    Few([u32; 3], usize),
    List(Box<[u32]>),
    Bits(Box<[u64]>),
}

impl Members<'_> {
    /// Number of members of the set of holders (ranks' caches).
    #[inline]
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Mask(mask) => mask.count_ones() as usize,
            Self::Few(_, n) => n,
            Self::List(list) => list.len(),
            Self::Bits(bits) => bits.iter().map(|word| word.count_ones() as usize).sum(),
        }
    }

    #[inline]
    pub(crate) fn contains(self, holder: u32) -> bool {
        match self {
            Self::Mask(mask) => holder < MASK_HOLDERS && mask >> holder & 1 == 1,
            Self::Few(few, n) => few[..n].contains(&holder),
            // A processor compares eight at a time, and guesses wrong in a search.
            Self::List(list) if list.len() <= 128 => list.iter().fold(false, |found, &it| found | (it == holder)),
            Self::List(list) => list.binary_search(&holder).is_ok(),
            Self::Bits(bits) => bits.get(holder as usize / 64).is_some_and(|word| word >> (holder % 64) & 1 == 1),
        }
    }

    /// Splits the members into 64-bit words of a bit mask, and calls `f` with the index and the bits of each word that
    /// has any, in ascending order, until `f` breaks.
    #[inline]
    pub(crate) fn try_for_each_word(self, mut f: impl FnMut(usize, u64) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut by_word = |holders: &[u32]| {
            holders
                .chunk_by(|one, next| one / 64 == next / 64)
                .try_for_each(|word| f(word[0] as usize / 64, word.iter().fold(0, |bits, h| bits | 1 << (h % 64))))
        };
        match self {
            Self::Mask(mask) => f(0, mask),
            Self::Few(few, n) => by_word(&few[..n]),
            Self::List(list) => by_word(list),
            Self::Bits(bits) => bits.iter().enumerate().try_for_each(|(i, &word)| f(i, word)),
        }
    }

    /// Calls `f` with the number of each holder (a rank's cache) in the set, in ascending order.
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

/// Set of the numbers of holders (ranks' caches) or workers that were already visited in a lookup result.
pub(crate) struct NumberSet(SmallVec<[u64; 32]>);

impl NumberSet {
    /// Creates an empty set of numbers with space for `words` words of 64 numbers each.
    #[inline]
    pub(crate) fn none_of(words: usize) -> Self {
        Self(SmallVec::from_elem(0, words))
    }

    /// Adds a number; returns true if the number was not in the set before. Numbers beyond the last word are ignored,
    /// and give false.
    #[inline]
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        self.insert_word(number as usize / 64, 1 << (number % 64)) != 0
    }

    /// Adds the numbers `64 * word + bit` of the bits set in `bits`; returns the bits that are new.
    #[inline]
    pub(crate) fn insert_word(&mut self, word: usize, bits: u64) -> u64 {
        let Some(seen) = self.0.get_mut(word) else { return 0 };
        let new = bits & !*seen;
        *seen |= bits;
        new
    }
}

/// Iterator over the positions of the bits set in a word, each added to a base number.
pub(crate) struct Bits {
    word: u64,
    base: u32,
}

impl Bits {
    #[inline]
    pub(crate) fn of(word: u64) -> Self {
        Self { word, base: 0 }
    }
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
    #[inline]
    pub(crate) fn of(members: Members<'_>) -> Self {
        match members {
            Members::Mask(mask) => Self::Mask(mask),
            Members::Few(few, n) => Self::Few(few, n),
            Members::List(list) => Self::List(list.into()),
            Members::Bits(bits) => Self::Bits(bits.into()),
        }
    }

    #[inline]
    pub(crate) fn members(&self) -> Members<'_> {
        match self {
            Self::Mask(mask) => Members::Mask(*mask),
            Self::Few(few, n) => Members::Few(*few, *n),
            Self::List(list) => Members::List(list),
            Self::Bits(bits) => Members::Bits(bits),
        }
    }
}

/// Decides if a set is stored as a bit mask rather than as a list of members: true if the mask needs at most twice the
/// space of the list, as the list is slower to search and to change. The decision depends only on the members, so that
/// equal sets are stored in the same way.
fn as_bits(members: usize, highest: u32) -> bool {
    highest as usize / 64 < members
}

/// Table of all sets of holders (ranks' caches) that are objects, because their members do not fit into a word; used
/// only by the writer.
pub(crate) struct Sets {
    /// Objects that contain the members of large sets, each with the set's key, so that most look-ups end without
    /// reading a set.
    objects: HashTable<(u64, SetBox)>,
    secret: Secret,
    /// Total size of all objects that contain the members of large sets of holders, in bytes.
    set_bytes: usize,
    /// Objects of sets that nothing refers to any longer. The writer must free them once no reader can use them.
    pub(crate) dead: Vec<SetBox>,
    /// Memory of freed sets of holders, reused for the objects of new sets.
    pub(crate) spares: Spares<SetHead, u64>,
    /// Buffer for the members of the set of holders that is being looked up.
    body: Vec<u64>,
    counted: CountedToken,
}

impl Sets {
    pub(crate) fn new() -> Self {
        Self {
            objects: HashTable::new(),
            secret: Secret::new(),
            set_bytes: 0,
            dead: Vec::new(),
            spares: Spares::new(),
            body: Vec::new(),
            counted: CountedToken::new(),
        }
    }

    /// Number of sets of holders (ranks' caches) that are objects in memory, rather than contained in a word.
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.objects.allocation_size()
            + self.set_bytes
            + self.spares.bytes()
            + (self.dead.capacity() + self.body.capacity()) * 8
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
    fn object_of(&self, set: SetWord) -> Option<Set<'_>> {
        set.object(&self.counted)
    }

    /// Adds a reference to the object that contains a set's members, if the set has one, and returns the set.
    #[inline]
    pub(crate) fn retain(&mut self, set: SetWord) -> SetWord {
        if let Some(object) = self.object_of(set) {
            object.retain(&self.counted);
        }
        set
    }

    /// Removes a reference to the object that contains a set's members, if the set has one. When the last reference is
    /// removed, the object leaves the table.
    #[inline]
    pub(crate) fn release(&mut self, set: SetWord) {
        if set.is_object() {
            self.release_object(set);
        }
    }

    fn release_object(&mut self, set: SetWord) {
        let Some(object) = self.object_of(set) else { return };
        if !object.release(&self.counted) {
            return;
        }
        if let Ok(entry) = self.objects.find_entry(object.key(), |(_, it)| SetWord::of_object(it) == set) {
            let ((_, it), _) = entry.remove();
            self.set_bytes -= it.bytes();
            self.dead.push(it);
        }
        if self.objects.capacity() > 64 && self.objects.len() * 4 < self.objects.capacity() {
            self.objects.shrink_to(self.objects.len() * 2, |(key, _)| *key);
        }
    }

    /// Set with `holder` (a rank's cache) added, as a new reference; `holder` must not be a member yet.
    pub(crate) fn with(&mut self, set: SetWord, holder: u32) -> SetWord {
        set.mask_with(holder).unwrap_or_else(|| self.toggle(set, holder))
    }

    /// Set with `holder` (a rank's cache) removed, as a new reference; `holder` must be a member.
    pub(crate) fn without(&mut self, set: SetWord, holder: u32) -> SetWord {
        set.mask_without(holder).unwrap_or_else(|| self.toggle(set, holder))
    }

    /// Set with `holder` (a rank's cache) added, or removed if it is a member, as a new reference.
    fn toggle(&mut self, set: SetWord, holder: u32) -> SetWord {
        if let Some(word) = self.toggle_in_kind(set, holder) {
            return word;
        }
        let mut holders: SmallVec<[u32; 128]> = SmallVec::new();
        self.members(set).for_each(|h| holders.push(h));
        match holders.binary_search(&holder) {
            Ok(at) => drop(holders.remove(at)),
            Err(at) => holders.insert(at, holder),
        }
        if let Some(word) = SetWord::of_holders(&holders) {
            return word;
        }
        let key = holders.iter().fold(0, |key, &h| key ^ self.word(h));
        let highest = holders.last().copied().unwrap_or(0);
        let bits = as_bits(holders.len(), highest);
        self.body.clear();
        if bits {
            self.body.resize(highest as usize / 64 + 1, 0);
            holders.iter().for_each(|&h| self.body[h as usize / 64] |= 1 << (h % 64));
        } else {
            self.body.resize(holders.len().div_ceil(2), 0);
            bytemuck::cast_slice_mut(&mut self.body)[..holders.len()].copy_from_slice(&holders);
        }
        self.object(key, holders.len(), bits)
    }

    /// Adds or removes a holder (a rank's cache) like `toggle`, by a faster way that copies the object. `None` if the
    /// set is not an object, or the result would be stored in another form.
    #[inline]
    fn toggle_in_kind(&mut self, set: SetWord, holder: u32) -> Option<SetWord> {
        let object = set.object(&self.counted)?;
        let key = object.key() ^ self.word(holder);
        let body = &mut self.body;
        body.clear();
        let (members, highest, bits) = match object.members() {
            Members::Bits(all) => {
                body.extend_from_slice(all);
                let word = holder as usize / 64;
                if word >= body.len() {
                    body.resize(word + 1, 0);
                }
                body[word] ^= 1 << (holder % 64);
                let had = body[word] >> (holder % 64) & 1 == 0;
                while body.last() == Some(&0) {
                    body.pop();
                }
                let highest = body.last().map_or(0, |last| body.len() as u32 * 64 - 1 - last.leading_zeros());
                (if had { object.len() - 1 } else { object.len() + 1 }, highest, true)
            }
            Members::List(all) => {
                let at = all.iter().filter(|&&it| it < holder).count();
                let had = all.get(at) == Some(&holder);
                let members = if had { all.len() - 1 } else { all.len() + 1 };
                body.resize(members.div_ceil(2), 0);
                let list = &mut bytemuck::cast_slice_mut(body)[..members];
                list[..at].copy_from_slice(&all[..at]);
                if had {
                    list[at..].copy_from_slice(&all[at + 1..]);
                } else {
                    list[at] = holder;
                    list[at + 1..].copy_from_slice(&all[at..]);
                }
                (members, list.last().copied().unwrap_or(0), false)
            }
            Members::Mask(_) | Members::Few(..) => return None,
        };
        let fits_a_word = members <= 3 || highest < MASK_HOLDERS;
        let likewise = !fits_a_word && as_bits(members, highest) == bits;
        likewise.then(|| self.object(key, members, bits))
    }

    /// Random word of a holder (a rank's cache); the xor of its members' words is a set's key.
    #[inline]
    fn word(&self, holder: u32) -> u64 {
        self.secret.mix(u64::from(holder) + 1, 0)
    }

    /// Looks up the set whose members are in `body`, creates it if it does not exist, and returns a new reference to
    /// the set.
    fn object(&mut self, key: u64, members: usize, bits: bool) -> SetWord {
        let Self { objects, body, counted, set_bytes, spares, .. } = self;
        // The key alone would do but for one chance in 2^64 a pair; the comparison makes it exact.
        let is_it = |it: &SetBox| {
            let it = SetWord::of_object(it).object(counted)?;
            (it.len() == members && it.is_bits() == bits && it.body() == body).then_some(it)
        };
        if let Some((_, it)) = objects.find(key, |(k, it)| *k == key && is_it(it).is_some()) {
            let word = SetWord::of_object(it);
            return self.retain(word);
        }
        let it = spares.make(SetHead::new(key, members, bits), body);
        *set_bytes += it.bytes();
        let word = SetWord::of_object(&it);
        objects.insert_unique(key, (key, it), |(key, _)| *key);
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
                std::mem::take(&mut sets.dead).into_iter().for_each(|dead| sets.spares.keep(dead));
            }
        }
        for (_, word) in held {
            sets.release(word);
        }
        assert_eq!((sets.len(), sets.set_bytes), (0, 0));
    }
}
