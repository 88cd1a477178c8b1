//! A hash table of small numbers in which a lookup waits for one cache line.
//!
//! A line holds twelve numbers and a one-byte tag of the hash of each, so that a lookup reads only the line of its hash
//! or, rarely, when that line is full, the next ones. The lines for an event can be prefetched ([`Lines::touch`]): the
//! waits for sixteen blocks overlap instead of following each other. Two general hash tables (hashbrown's, with tags
//! and numbers in separate places) need 4.1 us instead of 2.4 for an event of 16 new blocks in a context that grows to
//! a million (medians), but 1.1 instead of 1.4 in one of 10,000, which is cached anyway, and 45 us instead of 50 for a
//! full hit of 2,048 blocks.

/// Maximum number of entries (numbers) in a line, a cache line of the hash table.
const ROOM: usize = 12;
/// Mean number of entries (numbers) per cache line at which a hash table counts as full.
const LOAD: usize = 8;
/// Index, among the tags of a line (a cache line of the hash table), of a count: numbers that belong to this line or an
/// earlier one, but are stored in a later line.
const PASSED: usize = 12;
/// Value at which a line's count of numbers that are stored in later lines is too large to be maintained; only a new
/// table resets it.
const MANY: u8 = u8::MAX;

#[derive(Debug, Clone)]
#[repr(align(64))]
struct Line {
    /// Tags (parts of the hashes) of the numbers in the line, 0 for an empty slot; then the count at [`PASSED`].
    tags: [u8; 16],
    numbers: [u32; ROOM],
}

#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Vec<Line>,
    len: usize,
}

impl Lines {
    /// Creates an empty hash table with a capacity of `numbers` entries, each of which is a number.
    pub(super) fn with_capacity(numbers: usize) -> Self {
        let empty = Line { tags: [0; 16], numbers: [0; ROOM] };
        Self { lines: vec![empty; numbers.div_ceil(LOAD)], len: 0 }
    }

    /// Creates an empty hash table with 1.5 times the capacity of this one.
    pub(super) fn next(&self) -> Self {
        Self::with_capacity((self.capacity() * 3 / 2).max(4))
    }

    /// True if no further number may be inserted into this hash table.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len == self.capacity()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of entries at which the hash table is full.
    pub(super) fn capacity(&self) -> usize {
        self.lines.len() * LOAD
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize
    }

    fn tag(hash: u64) -> u8 {
        (hash as u8).max(1)
    }

    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }

    /// Prefetches the part of the hash table for a hash by reading one byte of it. The read depends only on the hash,
    /// so that many prefetches wait for memory at the same time.
    #[inline]
    pub(super) fn touch(&self, hash: u64) -> u8 {
        self.lines.get(self.home(hash)).map_or(0, |line| line.tags[PASSED])
    }

    /// Iterates over all numbers in the hash table that may have been inserted with the given hash.
    #[inline]
    pub(super) fn of(&self, hash: u64) -> Candidates<'_> {
        let at = self.home(hash);
        let tag = Self::tag(hash);
        Candidates {
            table: self,
            at,
            tag,
            found: self.lines.get(at).map_or(0, |line| line.found(tag)),
            place: 0,
            left: self.lines.len(),
        }
    }

    /// Inserts a number with a hash into the hash table, which must not be full.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, number: u32) {
        debug_assert!(self.len < self.capacity());
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            let vacant = line.found(0);
            if vacant != 0 {
                let free = place(vacant);
                line.tags[free] = Self::tag(hash);
                line.numbers[free] = number;
                self.len += 1;
                return;
            }
            line.tags[PASSED] = line.tags[PASSED].saturating_add(1);
            at = self.after(at);
        }
    }

    /// Removes from the hash table a number that was inserted with the given hash. Returns true if it existed.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, number: u32) -> bool {
        let mut candidates = self.of(hash);
        if !candidates.any(|found| found == number) {
            return false;
        }
        let (end, place) = (candidates.at, candidates.place);
        let mut at = self.home(hash);
        while at != end {
            let passed = &mut self.lines[at].tags[PASSED];
            if *passed != MANY {
                *passed -= 1;
            }
            at = self.after(at);
        }
        self.lines[end].tags[place] = 0;
        self.len -= 1;
        true
    }
}

impl Line {
    /// Slots of the line (a cache line of the hash table) whose tag is `tag`, as bits in the layout of [`place`].
    #[inline]
    fn found(&self, tag: u8) -> u64 {
        // Eight tags at a time: a byte of `other` is 0 where they are equal, and the highest bit of each byte of the
        // result marks it. The compiler's own comparison of bytes makes an event a tenth slower.
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let [low, high] = [0, 1].map(|half| {
            let other = u64::from_le_bytes(self.tags.as_chunks().0[half]) ^ (0x0101_0101_0101_0101 * u64::from(tag));
            !(((other & LOW) + LOW) | other | LOW)
        });
        (low >> 7) | ((high & 0x8080_8080) >> 6)
    }
}

/// Number of the slot (place in a line of the hash table) of the lowest bit set in `bits`. Each of the first 8 slots
/// has 8 bits, and the other slots have bits between these.
#[inline]
fn place(bits: u64) -> usize {
    let bit = bits.trailing_zeros() as usize;
    bit / 8 + bit % 8 * 8
}

/// Iterator over the numbers that may have been inserted with one hash, returned by [`Lines::of`].
pub(super) struct Candidates<'a> {
    table: &'a Lines,
    at: usize,
    tag: u8,
    found: u64,
    /// Slot (place in the present line) of the number that was returned last.
    place: usize,
    /// Number of lines (cache lines of the hash table) left to read, including the present one. It limits a search to
    /// one pass over the table.
    left: usize,
}

impl Iterator for Candidates<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.found == 0 {
            if self.left <= 1 || self.table.lines[self.at].tags[PASSED] == 0 {
                return None;
            }
            self.left -= 1;
            self.at = self.table.after(self.at);
            self.found = self.table.lines[self.at].found(self.tag);
        }
        self.place = place(self.found);
        self.found &= self.found - 1;
        Some(self.table.lines[self.at].numbers[self.place])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Compares random operations on a hash table with a set of pairs. The hashes have few different values, so that
    /// lines (cache lines of the table, with a few slots each) overflow and counts reach their limit.
    fn random_run(seed: u64) {
        let mut state = seed;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % limit
        };
        let room = 1 + below(600) as usize;
        let hashes = [1, 3, 50, 1 << 20][below(4) as usize];
        let mut table = Lines::with_capacity(room);
        let mut model = BTreeSet::new();
        for number in 0..3000_u32 {
            let hash = below(hashes).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if below(5) < 3 && table.len() < table.capacity() {
                table.insert(hash, number);
                model.insert((hash, number));
            } else if let Some(&(hash, number)) = model.range((hash, 0)..).next() {
                assert!(table.remove(hash, number), "seed {seed}");
                assert!(!table.remove(hash, number), "seed {seed}");
                model.remove(&(hash, number));
            }
            assert_eq!(table.len(), model.len(), "seed {seed}");
            let mut found: Vec<u32> = table.of(hash).collect();
            found.sort_unstable();
            found.dedup();
            let expected: Vec<u32> = model.range((hash, 0)..=(hash, u32::MAX)).map(|&(_, number)| number).collect();
            assert!(expected.iter().all(|number| found.binary_search(number).is_ok()), "seed {seed}");
        }
        for &(hash, number) in &model {
            assert_eq!(table.of(hash).filter(|&found| found == number).count(), 1, "seed {seed}");
        }
    }

    #[test]
    fn has_what_was_put_in_and_not_taken_out() {
        (0..200).for_each(random_run);
    }

    #[test]
    fn an_empty_table_has_nothing() {
        let mut table = Lines::default();
        assert_eq!((table.capacity(), table.of(7).count(), table.touch(7)), (0, 0, 0));
        assert!(!table.remove(7, 0));
    }
}
