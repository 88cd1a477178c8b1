//! Sets of numbers as bits: the common part of the two kinds of sets.

/// True if bit `member % 64` of word `member / 64` is set.
#[inline]
pub(crate) fn has_bit(words: &[u64], member: u32) -> bool {
    words.get(member as usize / 64).is_some_and(|word| word >> (member % 64) & 1 == 1)
}

/// Calls `each` with the number of every bit of the word at `at`, in order.
#[inline]
pub(crate) fn each_bit(at: u32, mut word: u64, mut each: impl FnMut(u32)) {
    while word != 0 {
        each(at * 64 + word.trailing_zeros());
        word &= word - 1;
    }
}

/// The words in which exactly these bits are set. `members` are sorted.
pub(crate) fn to_words(members: &[u32]) -> Vec<u64> {
    let mut words = vec![0; members.last().map_or(0, |&last| last as usize / 64 + 1)];
    for &member in members {
        words[member as usize / 64] |= 1 << (member % 64);
    }
    words
}
