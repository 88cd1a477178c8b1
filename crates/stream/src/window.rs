//! Memory of a stream's batches: hashes of the latest applied ones, and batches that wait for missing earlier ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limits::{Limit, SharedCounts};

/// Number of latest applied batches whose hashes are remembered.
const REMEMBERED: usize = 256;

/// Assumed memory overhead of a waiting batch, in bytes, in addition to its payload.
const OVERHEAD: usize = 128;

/// Sequence numbers and hashes of the latest applied batches. They distinguish a repeated batch from a different one
/// with the same number, published after a restart of the engine.
#[derive(Debug)]
pub struct Recent {
    slots: Box<[Option<(u64, u64)>; REMEMBERED]>,
}

impl Default for Recent {
    fn default() -> Self {
        Self { slots: Box::new([None; REMEMBERED]) }
    }
}

impl Recent {
    /// Records the sequence number and the hash of an applied batch.
    pub fn insert(&mut self, seq: u64, hash: u64) {
        self.slots[seq as usize % REMEMBERED] = Some((seq, hash));
    }

    /// Returns the hash of the batch with a sequence number; `None` if it is not remembered.
    pub fn hash(&self, seq: u64) -> Option<u64> {
        self.slots[seq as usize % REMEMBERED].filter(|(number, _)| *number == seq).map(|(_, hash)| hash)
    }

    /// Removes the records of all applied batches.
    pub fn clear(&mut self) {
        self.slots.fill(None);
    }
}

/// Report of the batches that were dropped because a [`ReorderWindow`] was full.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Number of dropped batches.
    pub batches: u64,
    /// Highest sequence number among the dropped batches; `None` if there are none.
    pub highest: Option<u64>,
}

/// Buffer of batches that cannot be applied before missing earlier ones, ordered by sequence number. When it is full,
/// the newest batches are dropped, because the engine can resend these for the longest time.
#[derive(Debug)]
pub struct ReorderWindow<P> {
    batches: BTreeMap<u64, P>,
    bytes: usize,
    max_batches: usize,
    max_bytes: usize,
    /// Counts shared by all streams, which include the bytes in their buffers.
    shared: Arc<SharedCounts>,
    max_shared: usize,
}

impl<P: AsRef<[u8]>> ReorderWindow<P> {
    /// Creates an empty buffer for at most `max_batches` batches and `max_bytes` bytes. `max_shared` is the maximum
    /// number of bytes in the buffers of all streams together.
    pub fn new(max_batches: usize, max_bytes: usize, shared: Arc<SharedCounts>, max_shared: usize) -> Self {
        Self { batches: BTreeMap::new(), bytes: 0, max_batches, max_bytes, shared, max_shared }
    }

    /// Adds a batch to the buffer. Returns a report of the batches dropped because the buffer is full.
    pub fn insert(&mut self, seq: u64, payload: P) -> Overflow {
        let size = payload.as_ref().len();
        self.bytes += size;
        let together = self.shared.add(size + OVERHEAD);
        if let Some(old) = self.batches.insert(seq, payload) {
            self.left(&old);
        }
        // Other streams may have filled the shared memory: then this stream drops no more than the size of its batch.
        let mut too_much = 0;
        if together > self.max_shared {
            self.shared.count(Limit::BufferBytes);
            too_much = size + OVERHEAD;
        }
        let mut forgotten = Overflow::default();
        while self.batches.len() > self.max_batches || self.bytes > self.max_bytes || too_much > 0 {
            let Some((seq, newest)) = self.batches.pop_last() else { break };
            self.left(&newest);
            too_much = too_much.saturating_sub(newest.as_ref().len() + OVERHEAD);
            forgotten.batches += 1;
            forgotten.highest = forgotten.highest.max(Some(seq));
        }
        forgotten
    }

    fn left(&mut self, payload: &P) {
        self.bytes -= payload.as_ref().len();
        self.shared.sub(payload.as_ref().len() + OVERHEAD);
    }

    /// Returns the lowest sequence number of a waiting batch; `None` if no batch waits.
    pub fn first(&self) -> Option<u64> {
        self.batches.first_key_value().map(|(seq, _)| *seq)
    }

    /// Removes and returns the batch with the lowest sequence number; `None` if no batch waits.
    pub fn pop_first(&mut self) -> Option<(u64, P)> {
        let (seq, payload) = self.batches.pop_first()?;
        self.left(&payload);
        Some((seq, payload))
    }

    /// Returns the number of batches that wait in the buffer.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// True if no batch waits in the buffer.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Drops all batches that wait in the buffer.
    pub fn clear(&mut self) {
        self.shared.sub(self.bytes + self.batches.len() * OVERHEAD);
        self.batches.clear();
        self.bytes = 0;
    }
}

impl<P> Drop for ReorderWindow<P> {
    fn drop(&mut self) {
        self.shared.sub(self.bytes + self.batches.len() * OVERHEAD);
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
        let mut waiting = ReorderWindow::new(3, 100, Arc::default(), usize::MAX);
        for seq in [5, 3, 9] {
            assert_eq!(waiting.insert(seq, vec![0; 10]).batches, 0);
        }
        assert_eq!(waiting.insert(4, vec![0; 10]), Overflow { batches: 1, highest: Some(9) });
        assert_eq!(waiting.insert(8, vec![0; 10]), Overflow { batches: 1, highest: Some(8) });
        assert_eq!([3, 4, 5].map(|_| waiting.pop_first().map(|(seq, _)| seq)), [Some(3), Some(4), Some(5)]);
        assert_eq!((waiting.len(), waiting.bytes), (0, 0));
    }

    #[test]
    fn all_streams_together_have_a_limit() {
        let shared = Arc::<SharedCounts>::default();
        let limit = 3 * (10 + OVERHEAD);
        let [mut a, mut b] = [(); 2].map(|()| ReorderWindow::new(100, 1000, shared.clone(), limit));
        assert_eq!(
            (a.insert(1, vec![0; 10]).batches, a.insert(2, vec![0; 10]).batches, b.insert(1, vec![0; 10]).batches),
            (0, 0, 0)
        );
        assert_eq!(
            (b.insert(2, vec![0; 10]).batches, b.len(), a.len()),
            (1, 1, 2),
            "each forgets its own, and no more"
        );
        assert_eq!((a.insert(0, vec![0; 10]).batches, a.len(), a.first()), (1, 2, Some(0)), "the newest");
        assert_eq!(shared.reached(Limit::BufferBytes), 2);
        a.pop_first();
        assert_eq!(b.insert(2, vec![0; 10]).batches, 0, "there is room again");
        b.clear();
        assert_eq!(shared.buffered(), 10 + OVERHEAD);
        drop((a, b));
        assert_eq!(shared.buffered(), 0);
    }

    #[test]
    fn counts_bytes_of_what_it_holds() {
        let mut waiting = ReorderWindow::new(10, 100, Arc::default(), usize::MAX);
        assert_eq!(waiting.insert(1, vec![0; 60]).batches, 0);
        assert_eq!(waiting.insert(1, vec![0; 30]).batches, 0);
        assert_eq!(waiting.insert(2, vec![0; 70]).batches, 0);
        assert_eq!(waiting.insert(3, vec![0; 1]).batches, 1);
        assert_eq!(waiting.insert(0, vec![0; 101]).batches, 3);
        assert!(waiting.is_empty());
        assert_eq!(waiting.bytes, 0);
    }
}
