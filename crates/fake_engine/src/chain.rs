//! One endless chain of blocks as simple test content, and the events that announce the blocks.

use std::time::{SystemTime, UNIX_EPOCH};

use kvatlas_wire::encode::{Dialect, encode};
use kvatlas_wire::{Batch, Event, Name, Removed, Stored};

/// Default number of tokens in a block.
pub const BLOCK_SIZE: u32 = 4;

/// An endless chain of blocks. Each life of an engine (the time between two restarts) has a different chain.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    /// Number of the engine's life, that is, of its restarts so far.
    pub life: u32,
    /// Number of tokens in a block.
    pub block_size: u32,
}

impl Chain {
    /// Creates the chain for one life of an engine, with the default block size.
    #[must_use]
    pub const fn new(life: u32) -> Self {
        Self { life, block_size: BLOCK_SIZE }
    }

    /// Tokens of the chain's first `blocks` blocks.
    #[must_use]
    pub fn tokens(self, blocks: u64) -> Vec<u32> {
        (0..blocks).flat_map(|block| self.block_tokens(block)).collect()
    }

    /// Event that stores one block of the chain. `block`: index of the block.
    #[must_use]
    pub fn stored(self, block: u64) -> Event {
        let stored = Stored {
            block_hashes: vec![self.name(block)],
            parent: block.checked_sub(1).map(|before| self.name(before)),
            tokens: self.block_tokens(block).collect(),
            block_size: self.block_size,
            medium: Some("GPU".into()),
            ..Stored::default()
        };
        stored.into()
    }

    /// Event that removes the chain's first `blocks` blocks.
    #[must_use]
    pub fn removed(self, blocks: u64) -> Event {
        let block_hashes = (0..blocks).map(|block| self.name(block)).collect();
        Removed { block_hashes, medium: Some("GPU".into()), ..Removed::default() }.into()
    }

    fn name(self, block: u64) -> Name {
        Name::from(u64::from(self.life) << 40 | block)
    }

    fn block_tokens(self, block: u64) -> impl Iterator<Item = u32> {
        [self.life, block as u32].into_iter().chain(7..).take(self.block_size as usize)
    }
}

/// Encodes a batch of events in vLLM's present format, with the current time.
#[must_use]
pub fn payload(rank: Option<u32>, events: Vec<Event>) -> Vec<u8> {
    let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
    payload_at(timestamp, rank, events)
}

/// Encodes a batch of events with a given timestamp, in seconds. Equal timestamps and events give equal bytes.
#[must_use]
pub fn payload_at(timestamp: f64, rank: Option<u32>, events: Vec<Event>) -> Vec<u8> {
    encode(&Batch { timestamp, rank, events, refused: Vec::new() }, Dialect::Vllm)
}
