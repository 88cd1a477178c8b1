//! Sets of holders: one word each, and each set once.
//!
//! A word has the members in it or leads to them (`raw/set.rs`). A set that a word leads to is shared by all who mean
//! it: it is found by the xor of its members' random words (Zobrist 1970), so that "this set and one more" is one
//! look-up. Equal sets have equal words, always.

mod table;

use std::ops::ControlFlow;

use smallvec::SmallVec;

use crate::raw::{MASK_HOLDERS, Members};

pub(crate) use self::table::Sets;

/// Copy of a set's members.
pub(crate) enum OwnedMembers {
    Mask(u64),
    Few([u32; 3], usize),
    List(Box<[u32]>),
    Bits(Box<[u64]>),
}

impl Members<'_> {
    /// Number of members.
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

    /// Calls `f` with each word of 64 members that has any, rising, and the number of the word, until it breaks.
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

/// Numbers met so far: of holders, whose sets in a match shrink with depth but for what a writer did between two; or
/// of workers.
pub(crate) struct NumberSet(SmallVec<[u64; 32]>);

impl NumberSet {
    /// An empty set with room for `words` words of 64 numbers each.
    #[inline]
    pub(crate) fn none_of(words: usize) -> Self {
        Self(SmallVec::from_elem(0, words))
    }

    /// Adds a number; true if it is new. Numbers beyond the last word never are.
    #[inline]
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        self.insert_word(number as usize / 64, 1 << (number % 64)) != 0
    }

    /// Adds the numbers `64 * word..` given by `bits`; returns those that are new.
    #[inline]
    pub(crate) fn insert_word(&mut self, word: usize, bits: u64) -> u64 {
        let Some(seen) = self.0.get_mut(word) else { return 0 };
        let new = bits & !*seen;
        *seen |= bits;
        new
    }
}

/// Positions of a word's set bits, after a base.
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
