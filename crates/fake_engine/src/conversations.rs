//! Random conversations that fill a cache.

use std::collections::HashMap;

use kvatlas_adopt::Dialect;
use kvatlas_index::BlockHash;
use kvatlas_testing::Random;
use kvatlas_wire::BatchOf;

use crate::cache::{Cache, Kind, Sequence};
use crate::chain::BLOCK_SIZE;

const BLOCK: usize = BLOCK_SIZE as usize;
const VOCABULARY: u64 = 100_000;

/// Number of blocks of a prompt that were cached when its request began.
pub struct Hit {
    /// The prompt.
    pub sequence: Sequence,
    /// Number of cached blocks.
    pub blocks: usize,
}

/// Conversations that begin with a system prompt, are continued, and branch off one another.
pub struct Conversations {
    cache: Cache,
    random: Random,
    /// Conversations that may be continued. The first three are system prompts.
    past: Vec<Sequence>,
    salts: bool,
}

impl Conversations {
    /// Conversations in an empty cache with room for `blocks` blocks. `salts`: whether some have a salt.
    #[must_use]
    pub fn new(kind: Kind, dialect: Dialect, seed: u64, blocks: usize, salts: bool) -> Self {
        let mut random = Random(seed);
        let systems = (0..3)
            .map(|i| Sequence {
                tokens: (0..8 + 4 * i + random.below(20) as u32).map(|t| 1000 * i + t).collect(),
                salt: None,
            })
            .collect();
        Self { cache: Cache::new(kind, dialect, blocks), random, past: systems, salts }
    }

    /// One step: the cached blocks of the prompt that began, if one did, and the published batch.
    pub fn step(&mut self) -> (Option<Hit>, BatchOf<BlockHash>) {
        let begins = self.random.chance(40) && self.cache.running() < 4;
        let hit = if begins { self.begin() } else { None };
        for request in (0..self.cache.running()).rev() {
            let left = self.cache.left(request);
            let is_prompt = left > 12;
            self.cache.compute(request, left.min(if is_prompt { 10 } else { 1 + self.random.index(3) }));
            if self.cache.left(request) == 0 {
                self.finish(request);
            }
        }
        if self.random.below(400) == 0 && self.cache.running() == 0 {
            self.cache.reset();
        }
        (hit, BatchOf { events: self.cache.take_events(), ..BatchOf::default() })
    }

    /// Conversations that may be continued.
    #[must_use]
    pub fn past(&self) -> &[Sequence] {
        &self.past
    }

    /// Sequences of the running requests, including their future output.
    #[must_use]
    pub fn running(&self) -> Vec<Sequence> {
        self.cache.sequences()
    }

    /// Number of leading blocks of a prompt that are cached.
    #[must_use]
    pub fn depth(&self, names: &[BlockHash]) -> usize {
        self.cache.depth(names)
    }

    /// True if the parents of every held block are held.
    #[must_use]
    pub fn is_closed(&self, parents: &HashMap<BlockHash, Option<BlockHash>>) -> bool {
        self.cache.is_closed(parents)
    }

    fn begin(&mut self) -> Option<Hit> {
        let mut sequence = self.past[self.random.index(self.past.len())].clone();
        if self.random.chance(30) {
            let keep = BLOCK * (1 + self.random.index(sequence.tokens.len().div_ceil(BLOCK)));
            sequence.tokens.truncate(keep);
        } else {
            let more = 1 + self.random.below(24);
            self.extend(&mut sequence, more);
        }
        if self.salts && sequence.salt.is_none() && self.random.chance(20) {
            sequence.salt = Some(format!("tenant-{}", self.random.below(2)));
        }
        sequence.tokens.truncate(self.cache.room() / 3 * BLOCK);
        let blocks = self.cache.admits(&sequence)?;
        let hit = Hit { sequence: sequence.clone(), blocks };
        let output = 1 + self.random.below(16);
        self.extend(&mut sequence, output);
        self.cache.begin(sequence, blocks);
        Some(hit)
    }

    fn extend(&mut self, sequence: &mut Sequence, tokens: u64) {
        sequence.tokens.extend((0..tokens).map(|_| self.random.below(VOCABULARY) as u32));
    }

    fn finish(&mut self, request: usize) {
        let sequence = self.cache.finish(request);
        if self.past.len() > 24 {
            let old = 3 + self.random.index(self.past.len() - 3);
            self.past.remove(old);
        }
        self.past.push(sequence);
    }
}
