//! Set of holders: a 64-bit word that contains the members, or points to them.
//!
//! Most sets are small, or the fleet is, so a word holds the members themselves: a bit mask of the holders below 62, or
//! up to three holders with numbers below 2^20. Any other word is the address of a set in separate memory ([`SetBox`]).
//!
//! **Protocol.** The writer counts the references to a set, and retires the set with the last one, that is frees it
//! once no reader can use it. Readers access a set by words that they found under their guard.
//!
//! **Invariants.** A word that points to memory is the address of a [`SetBox`], whose key and members never change. A
//! word is used either under the guard under which it was found (rule 2), which [`SetRef`] and [`super::Found`] ensure,
//! or by the writer while the table of sets counts its reference, which [`CountedToken`] shows.
//!
//! **Checked by** the test of `sets.rs`, `tests/random_streams.rs`, and `tests/concurrency.rs` under Valgrind and the
//! address sanitizer (`make sanitize`).

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::thin::{Memory, ThinBox, ThinRef};
use crate::sync::{AtomicU32, Ordering};

const KIND: u64 = 3;
const OBJECT: u64 = 0;
const MASK: u64 = 1;
const FEW: u64 = 2;
/// Number of holders (ranks' caches) that fit into a bit mask: those with smaller numbers.
pub(crate) const MASK_HOLDERS: u32 = 62;
/// Number of bits for a holder's number in a word with up to three holders (ranks' caches), of kind `FEW`; all bits set
/// mean no holder.
const FEW_BITS: u32 = 20;
const FEW_NONE: u32 = (1 << FEW_BITS) - 1;

/// Set of holders (ranks' caches) as a 64-bit word. If the word points to memory, it is a reference that the table of
/// sets counts, and it is valid only while counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SetWord(u64);

/// Set of holders (ranks' caches) that a reader found under a guard; valid only for the guard's lifetime `'p`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SetRef<'p>(SetWord, PhantomData<fn(&'p ()) -> &'p ()>);

impl SetRef<'_> {
    /// Wraps a word, found by a reader, that stands for a set of holders.
    ///
    /// # Safety
    ///
    /// The word was linked at some moment of the lifetime of a guard, and the guard lives for as long as the result.
    #[inline]
    pub(super) unsafe fn new(word: SetWord) -> Self {
        Self(word, PhantomData)
    }

    #[inline]
    pub(super) fn word(self) -> SetWord {
        self.0
    }
}

/// Members of a set of holders (ranks' caches), in one of the forms in which they are stored.
#[derive(Clone, Copy)]
pub(crate) enum Members<'a> {
    Mask(u64),
    Few([u32; 3], usize),
    List(&'a [u32]),
    Bits(&'a [u64]),
}

/// Header of a set of holders (ranks' caches) that does not fit into a word; its members follow in memory.
pub(crate) struct SetHead {
    /// Key of the set in the table of sets: the xor of its members' random words.
    pub(crate) key: u64,
    /// Number of references to the set. Only the writer uses it; it is an atomic because readers may read the fields
    /// beside it.
    references: AtomicU32,
    /// Number of holders (ranks' caches) in the set.
    members: u32,
    /// True if the members of the set (holders) are stored as a bit mask up to the highest member; otherwise they are
    /// an ascending list, two to a word, padded with 0.
    bits: bool,
}

/// Memory of a set of holders (ranks' caches) that does not fit into a word.
pub(crate) type SetBox = ThinBox<SetHead, u64>;

/// Reference to a set of holders (ranks' caches) that does not fit into a word.
#[derive(Clone, Copy)]
pub(crate) struct Set<'a> {
    head: &'a SetHead,
    body: &'a [u64],
}

impl SetHead {
    /// Creates the header of a set of holders with `members` members and one reference. `key`: key of the set in the
    /// table of sets; `bits`: true if the members are stored as a bit mask.
    pub(crate) fn new(key: u64, members: usize, bits: bool) -> Self {
        Self { key, references: AtomicU32::new(1), members: members as u32, bits }
    }
}

impl<'a> Set<'a> {
    fn of(set: ThinRef<'a, SetHead, u64>) -> Self {
        Self { head: set.head(), body: set.items() }
    }

    #[inline]
    pub(crate) fn key(self) -> u64 {
        self.head.key
    }

    /// Number of holders (ranks' caches) in the set.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.head.members as usize
    }

    #[inline]
    pub(crate) fn is_bits(self) -> bool {
        self.head.bits
    }

    #[inline]
    pub(crate) fn body(self) -> &'a [u64] {
        self.body
    }

    #[inline]
    pub(crate) fn members(self) -> Members<'a> {
        if self.head.bits {
            Members::Bits(self.body)
        } else {
            Members::List(&bytemuck::cast_slice(self.body)[..self.len()])
        }
    }

    /// Adds a reference to the set, without an atomic instruction, as there is only one writer.
    #[inline]
    pub(crate) fn retain(self, _: &CountedToken) {
        let references = self.head.references.load(Ordering::Relaxed);
        self.head.references.store(references + 1, Ordering::Relaxed);
    }

    /// Removes a reference to the set; returns true if it was the last one.
    #[inline]
    pub(crate) fn release(self, _: &CountedToken) -> bool {
        let references = self.head.references.load(Ordering::Relaxed);
        self.head.references.store(references - 1, Ordering::Relaxed);
        references == 1
    }
}

/// Token that proves that its owner is the table that counts references to sets; each index has one.
pub(crate) struct CountedToken(());

impl CountedToken {
    pub(crate) fn new() -> Self {
        Self(())
    }
}

impl SetWord {
    pub(crate) const EMPTY: Self = Self(0);

    #[inline]
    pub(super) fn from_raw(word: u64) -> Self {
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
    pub(crate) fn is_object(self) -> bool {
        self.0 & KIND == OBJECT && self.0 != 0
    }

    /// Members (holders) of the set for which this word stands, for a reader.
    ///
    /// # Safety
    ///
    /// The word was linked at some moment of the lifetime of a guard, and the guard lives for as long as the result.
    #[inline]
    pub(super) unsafe fn members<'p>(self) -> Members<'p> {
        // SAFETY: rule 2: what was linked while the reader was under its guard is not freed before it leaves.
        self.decode(|address| unsafe { Self::at(address) })
    }

    /// Members (holders) of the set for which this word stands, for the table of sets, which counts the references to
    /// it.
    #[inline]
    pub(crate) fn counted_members(self, token: &CountedToken) -> Members<'_> {
        self.decode(|address| Self::counted(address, token))
    }

    /// Set of holders (ranks' caches) in memory to which this word points; None if the word itself contains the
    /// members.
    #[inline]
    pub(crate) fn object(self, token: &CountedToken) -> Option<Set<'_>> {
        self.is_object().then(|| Self::counted(self.0, token))
    }

    #[inline]
    fn counted(address: u64, _: &CountedToken) -> Set<'_> {
        // SAFETY: the table of sets frees none that is counted, and the writer has no others.
        unsafe { Self::at(address) }
    }

    /// Set of holders whose memory begins at this address.
    ///
    /// # Safety
    ///
    /// The set at the address is not freed during `'a`.
    #[inline]
    unsafe fn at<'a>(address: u64) -> Set<'a> {
        let memory = ptr::with_exposed_provenance_mut::<Memory<SetHead, u64>>(address as usize);
        // SAFETY: the address of a box is not null; the rest by contract.
        Set::of(unsafe { ThinRef::of(NonNull::new_unchecked(memory)) })
    }

    #[inline]
    fn decode<'a>(self, object: impl FnOnce(u64) -> Set<'a>) -> Members<'a> {
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
            _ => object(self.0).members(),
        }
    }

    /// Word that points to a set of holders (ranks' caches) in memory, which the table of sets owns.
    pub(crate) fn of_object(set: &SetBox) -> Self {
        Self(set.as_ptr().expose_provenance() as u64)
    }

    /// Word for the set of these holders (ranks' caches), given in ascending order, if they fit into a word; None
    /// otherwise.
    pub(crate) fn of_holders(holders: &[u32]) -> Option<Self> {
        let Some(&highest) = holders.last() else { return Some(Self::EMPTY) };
        if highest < MASK_HOLDERS {
            return Some(Self(holders.iter().fold(MASK, |word, h| word | 1 << (2 + h))));
        }
        (holders.len() <= 3 && highest < FEW_NONE).then(|| Self::of_few(holders))
    }

    /// Word for this set with one more holder (a rank's cache), if the word is a bit mask and the holder fits; None
    /// otherwise.
    #[inline]
    pub(crate) fn mask_with(self, holder: u32) -> Option<Self> {
        let is_mask = (self.is_empty() || self.0 & KIND == MASK) && holder < MASK_HOLDERS;
        is_mask.then(|| Self(self.0 | MASK | 1 << (2 + holder)))
    }

    /// Word for this set without one of its holders (ranks' caches), if the word is a bit mask; None otherwise.
    #[inline]
    pub(crate) fn mask_without(self, holder: u32) -> Option<Self> {
        if self.0 & KIND != MASK {
            return None;
        }
        let rest = self.0 & !(1 << (2 + holder));
        Some(if rest == MASK { Self::EMPTY } else { Self(rest) })
    }

    fn of_few(holders: &[u32]) -> Self {
        let mut word = FEW;
        for i in 0..3 {
            word |= u64::from(holders.get(i).copied().unwrap_or(FEW_NONE)) << (2 + FEW_BITS * i as u32);
        }
        Self(word)
    }
}
