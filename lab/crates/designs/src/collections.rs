//! Small collections for the index designs: a map that mostly has one entry, and sets of numbers as words of bits.

use std::hash::Hash;

use hashbrown::HashMap;

/// A map that mostly has one entry, which is stored inline.
///
/// The inner dictionaries of rungs 1 and 3 of the ladder map a content hash to its blocks, which is one block unless
/// prompts repeat themselves or each other. A hash map for each would cost ten times the entry, so a hash map is
/// created only for the second entry.
#[derive(Debug)]
pub(super) enum SmallMap<K, V> {
    One(K, V),
    /// The entries of a map that has had several, in a separate hash map, which is empty only during a change.
    Many(Box<HashMap<K, V>>),
}

impl<K: Copy + Eq + Hash, V> SmallMap<K, V> {
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match self {
            Self::One(only, value) => (only == key).then_some(value),
            Self::Many(map) => map.get_mut(key),
        }
    }

    /// Sets the value of a key in the map.
    pub(super) fn insert(&mut self, key: K, value: V) {
        match self {
            Self::One(only, old) if *only == key => *old = value,
            Self::One(..) => {
                let first = std::mem::replace(self, Self::Many(Box::new(HashMap::with_capacity(2))));
                let Self::Many(map) = self else { return };
                map.insert(key, value);
                if let Self::One(key, value) = first {
                    map.insert(key, value);
                }
            }
            Self::Many(map) => {
                map.insert(key, value);
            }
        }
    }

    /// Removes a key from the map. Returns true if no entry is left, so that the caller removes the map itself.
    pub(super) fn remove(&mut self, key: &K) -> bool {
        match self {
            Self::One(only, _) => only == key,
            Self::Many(map) => {
                map.remove(key);
                map.is_empty()
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let (one, many) = match self {
            Self::One(key, value) => (Some((key, value)), None),
            Self::Many(map) => (None, Some(map.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// True if the number `member` is in a set stored as bits: bit `member % 64` of word `member / 64` is set.
#[inline]
pub(crate) fn has_bit(words: &[u64], member: u32) -> bool {
    words.get(member as usize / 64).is_some_and(|word| word >> (member % 64) & 1 == 1)
}

/// Calls `each` with every number in one word of a set stored as bits, in order. `at`: index of the word `word`, whose
/// bits stand for the numbers from `64 * at` on.
#[inline]
pub(crate) fn each_bit(at: u32, mut word: u64, mut each: impl FnMut(u32)) {
    while word != 0 {
        each(at * 64 + word.trailing_zeros());
        word &= word - 1;
    }
}

/// Converts a sorted list of numbers to a set stored as bits: word `n / 64` has bit `n % 64` set for each number n in
/// the list.
pub(crate) fn to_words(members: &[u32]) -> Vec<u64> {
    let mut words = vec![0; members.last().map_or(0, |&last| last as usize / 64 + 1)];
    for &member in members {
        words[member as usize / 64] |= 1 << (member % 64);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_shrinks() {
        let mut few = SmallMap::One(1, 'a');
        few.insert(1, 'b');
        assert_eq!((few.get_mut(&1).copied(), few.get_mut(&2)), (Some('b'), None));
        few.insert(2, 'c');
        few.insert(3, 'd');
        *few.get_mut(&3).unwrap() = 'e';
        let mut all: Vec<_> = few.iter().map(|(&key, &value)| (key, value)).collect();
        all.sort_unstable();
        assert_eq!(all, [(1, 'b'), (2, 'c'), (3, 'e')]);
        assert!(!few.remove(&1) && !few.remove(&9) && !few.remove(&2));
        assert!(few.remove(&3));
        assert!(SmallMap::One(7, ()).remove(&7) && !SmallMap::One(7, ()).remove(&8));
    }
}
