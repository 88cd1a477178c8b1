//! What a stream remembers of its batches: which the last ones were, and those that have to wait.

use std::collections::BTreeMap;

/// How many batches are remembered by hash.
const REMEMBERED: usize = 256;

/// Numbers and hashes of the batches applied last: they tell a batch that came twice from one of another epoch that has
/// the same number.
#[derive(Debug)]
pub(crate) struct Recent {
    slots: Box<[Option<(u64, u64)>; REMEMBERED]>,
}

impl Default for Recent {
    fn default() -> Self {
        Self { slots: Box::new([None; REMEMBERED]) }
    }
}

impl Recent {
    pub(crate) fn insert(&mut self, seq: u64, hash: u64) {
        self.slots[seq as usize % REMEMBERED] = Some((seq, hash));
    }

    /// The hash of a batch, unless it is too long ago.
    pub(crate) fn hash(&self, seq: u64) -> Option<u64> {
        self.slots[seq as usize % REMEMBERED].filter(|(number, _)| *number == seq).map(|(_, hash)| hash)
    }

    pub(crate) fn clear(&mut self) {
        self.slots.fill(None);
    }
}

/// What had to be forgotten.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Forgotten {
    pub(crate) batches: u64,
    /// The highest number of them.
    pub(crate) highest: Option<u64>,
}

/// Batches that cannot be applied yet, by number. When it is full the newest are forgotten, because those are the ones
/// that the engine remembers longest.
#[derive(Debug)]
pub(crate) struct Waiting<P> {
    batches: BTreeMap<u64, P>,
    bytes: usize,
    max_batches: usize,
    max_bytes: usize,
}

impl<P: AsRef<[u8]>> Waiting<P> {
    pub(crate) fn new(max_batches: usize, max_bytes: usize) -> Self {
        Self { batches: BTreeMap::new(), bytes: 0, max_batches, max_bytes }
    }

    /// Keeps a batch; returns what had to be forgotten.
    pub(crate) fn insert(&mut self, seq: u64, payload: P) -> Forgotten {
        self.bytes += payload.as_ref().len();
        if let Some(old) = self.batches.insert(seq, payload) {
            self.bytes -= old.as_ref().len();
        }
        let mut forgotten = Forgotten::default();
        while self.batches.len() > self.max_batches || self.bytes > self.max_bytes {
            let Some((seq, newest)) = self.batches.pop_last() else { break };
            self.bytes -= newest.as_ref().len();
            forgotten.batches += 1;
            forgotten.highest = forgotten.highest.max(Some(seq));
        }
        forgotten
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.batches.first_key_value().map(|(seq, _)| *seq)
    }

    pub(crate) fn pop_first(&mut self) -> Option<(u64, P)> {
        let (seq, payload) = self.batches.pop_first()?;
        self.bytes -= payload.as_ref().len();
        Some((seq, payload))
    }

    pub(crate) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_last_ones_only() {
        let mut recent = Recent::default();
        for seq in 0..300 {
            recent.insert(seq, seq * 7);
        }
        assert_eq!(recent.hash(299), Some(299 * 7));
        assert_eq!(recent.hash(44), Some(44 * 7));
        assert_eq!(recent.hash(43), None);
        assert_eq!(recent.hash(300), None);
        recent.clear();
        assert_eq!(recent.hash(299), None);
    }

    #[test]
    fn forgets_the_newest_when_full() {
        let mut waiting = Waiting::new(3, 100);
        for seq in [5, 3, 9] {
            assert_eq!(waiting.insert(seq, vec![0; 10]).batches, 0);
        }
        assert_eq!(waiting.insert(4, vec![0; 10]), Forgotten { batches: 1, highest: Some(9) });
        assert_eq!(waiting.insert(8, vec![0; 10]), Forgotten { batches: 1, highest: Some(8) });
        assert_eq!([3, 4, 5].map(|_| waiting.pop_first().map(|(seq, _)| seq)), [Some(3), Some(4), Some(5)]);
        assert_eq!((waiting.len(), waiting.bytes), (0, 0));
    }

    #[test]
    fn counts_bytes_of_what_it_holds() {
        let mut waiting = Waiting::new(10, 100);
        assert_eq!(waiting.insert(1, vec![0; 60]).batches, 0);
        assert_eq!(waiting.insert(1, vec![0; 30]).batches, 0);
        assert_eq!(waiting.insert(2, vec![0; 70]).batches, 0);
        assert_eq!(waiting.insert(3, vec![0; 1]).batches, 1);
        assert_eq!(waiting.insert(0, vec![0; 101]).batches, 3);
        assert!(waiting.is_empty());
        assert_eq!(waiting.bytes, 0);
    }
}
