//! Progress of putting a holder's list of runs right (`entered.rs`).

/// Progress of putting a list right.
pub(super) struct ListCleanup {
    /// The next entry to be looked at, and where the next that is right goes.
    pub(super) next: usize,
    pub(super) kept: usize,
    /// The runs among those that are kept, a bit for each.
    pub(super) seen: Vec<u64>,
}

impl ListCleanup {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.seen.capacity() * size_of::<u64>()
    }

    /// Notes a run; true if it is new.
    pub(super) fn is_first(&mut self, run: u32) -> bool {
        let (word, bit) = (run as usize / 64, 1 << (run % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + word / 8 + 1, 0);
        }
        let is_first = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        is_first
    }
}
