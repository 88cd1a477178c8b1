//! Looking at the members of a set.

use std::ops::ControlFlow;

use smallvec::SmallVec;

use crate::raw::{MASK_HOLDERS, Members, SetWord};

/// The members of a set, kept.
pub(crate) enum OwnedMembers {
    Word(SetWord),
    List(Box<[u32]>),
    Bits(Box<[u64]>),
}

impl Members<'_> {
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
            Self::Word(set) => set.own_members(),
            Self::List(list) => Members::List(list),
            Self::Bits(bits) => Members::Bits(bits),
        }
    }
}
