//! The memory of events that are done with, for those to come.

use crate::event::{BatchOf, EventOf, StoredOf};

/// So much is kept: events of a batch, and names or tokens of an event. What is larger is rare, and freed.
const EVENTS: usize = 64;
const NAMES: usize = 1 << 11;
const TOKENS: usize = 1 << 14;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Spare<N> {
    stored: Vec<Box<StoredOf<N>>>,
    names: Vec<Vec<N>>,
}

impl<N> Default for Spare<N> {
    fn default() -> Self {
        Self { stored: Vec::new(), names: Vec::new() }
    }
}

impl<N> Spare<N> {
    /// A store with nothing in it.
    pub(super) fn stored(&mut self) -> Box<StoredOf<N>> {
        self.stored.pop().unwrap_or_default()
    }

    /// Returns an empty list of names.
    pub(super) fn names(&mut self) -> Vec<N> {
        self.names.pop().unwrap_or_default()
    }

    /// Empties a batch.
    pub(super) fn take(&mut self, batch: &mut BatchOf<N>) {
        for event in batch.events.drain(..) {
            match event {
                EventOf::Stored(mut it) if self.stored.len() < EVENTS => {
                    let (mut block_hashes, mut tokens) =
                        (std::mem::take(&mut it.block_hashes), std::mem::take(&mut it.tokens));
                    if block_hashes.capacity() <= NAMES && tokens.capacity() <= TOKENS {
                        block_hashes.clear();
                        tokens.clear();
                        *it = StoredOf { block_hashes, tokens, ..StoredOf::default() };
                        self.stored.push(it);
                    }
                }
                EventOf::Removed(mut it) if self.names.len() < EVENTS && it.block_hashes.capacity() <= NAMES => {
                    it.block_hashes.clear();
                    self.names.push(it.block_hashes);
                }
                _ => {}
            }
        }
        batch.events.shrink_to(4 * EVENTS);
        batch.refused = Vec::new();
        (batch.timestamp, batch.rank) = (0.0, None);
    }
}
