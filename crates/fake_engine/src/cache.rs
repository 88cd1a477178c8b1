//! A simulated KV cache of an engine, with the events that announce its changes, and random conversations that fill the
//! cache.
//!
//! A cache imitates one of two engines. Like vLLM it has physical blocks with copies, evicts the least recently
//! released first and announces each copy; like SGLang it has one copy of each block, evicts leaves and announces many
//! blocks in one event. A block is evicted only after all blocks that continue it.

use std::collections::{HashMap, HashSet, VecDeque};

use kvatlas_adopt::{Algorithm, Dialect, Form, Scheme};
use kvatlas_index::{BlockHash, hash};
use kvatlas_testing::Random;
use kvatlas_wire::{BatchOf, Cleared, EventOf, RemovedOf, StoredOf};

use crate::chain::BLOCK_SIZE;

const BLOCK: usize = BLOCK_SIZE as usize;

/// Kind of engine that a simulated cache imitates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl Kind {
    /// Dialect of the engine's block hashes: how they are computed, and in which form they are sent.
    #[must_use]
    pub fn dialect(self, form: Form) -> Dialect {
        let algorithm = if self == Self::Vllm { Algorithm::Sha256 } else { Algorithm::Sglang };
        Dialect { scheme: Scheme { algorithm, seed: None }, form }
    }
}

/// Tokens of a request, both prompt and output, with its cache salt.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence {
    /// Token ids of prompt and output.
    pub tokens: Vec<u32>,
    /// Cache salt of the request; `None` without one.
    pub salt: Option<String>,
}

impl Sequence {
    /// The engine's block hashes of the full blocks.
    #[must_use]
    pub fn names(&self, dialect: &Dialect) -> Vec<BlockHash> {
        let mut namer = dialect.scheme.namer(self.salt.as_deref());
        self.tokens.chunks_exact(BLOCK).map(|block| namer.next(block).name(dialect.form)).collect()
    }

    /// Content hashes of the full blocks.
    #[must_use]
    pub fn contents(&self) -> Vec<u64> {
        hash::content_hashes(&self.tokens, BLOCK, None, self.salt.as_deref())
    }
}

/// A request that the simulated engine is processing.
struct ActiveRequest {
    sequence: Sequence,
    names: Vec<BlockHash>,
    /// Number of the request's tokens that are computed.
    done: usize,
    /// Indexes of the physical blocks that hold the request's full blocks.
    blocks: Vec<usize>,
}

/// A physical block of the cache.
#[derive(Clone, Default)]
struct Slot {
    name: Option<BlockHash>,
    /// Number of running requests that use the block.
    users: u32,
}

/// A simulated KV cache of an engine, with the requests that the engine is processing.
pub struct Cache {
    kind: Kind,
    dialect: Dialect,
    slots: Vec<Slot>,
    /// Physical blocks without a running request, in the order in which they are reused.
    free: VecDeque<usize>,
    by_name: HashMap<BlockHash, Vec<usize>>,
    running: Vec<ActiveRequest>,
    events: Vec<EventOf<BlockHash>>,
}

impl Cache {
    /// Creates an empty cache with a capacity of `blocks` blocks.
    #[must_use]
    pub fn new(kind: Kind, dialect: Dialect, blocks: usize) -> Self {
        Self {
            kind,
            dialect,
            slots: vec![Slot::default(); blocks],
            free: (0..blocks).collect(),
            by_name: HashMap::new(),
            running: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Capacity of the cache, in blocks.
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots.len()
    }

    /// Number of running requests.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences of the running requests, including their future output.
    #[must_use]
    pub fn sequences(&self) -> Vec<Sequence> {
        self.running.iter().map(|running| running.sequence.clone()).collect()
    }

    /// Returns the events since the last call and removes them.
    pub fn take_events(&mut self) -> Vec<EventOf<BlockHash>> {
        std::mem::take(&mut self.events)
    }

    /// Number of leading blocks of a prompt that are cached.
    #[must_use]
    pub fn depth(&self, names: &[BlockHash]) -> usize {
        names.iter().take_while(|name| self.by_name.contains_key(name)).count()
    }

    /// True if the parents of every cached block are cached. Proofs that an engine held a block rely on this.
    #[must_use]
    pub fn is_closed(&self, parents: &HashMap<BlockHash, Option<BlockHash>>) -> bool {
        let held: HashSet<_> = self.by_name.keys().copied().collect();
        held.iter().all(|name| parents[name].is_none_or(|parent| held.contains(&parent)))
    }

    /// Number of cached blocks of a prompt, if its request could begin now; `None` if the cache has no space for the
    /// request beside the running ones.
    #[must_use]
    pub fn admits(&self, prompt: &Sequence) -> Option<usize> {
        let names = prompt.names(&self.dialect);
        let cached = self.depth(&names[..(prompt.tokens.len() - 1) / BLOCK]);
        let need = prompt.tokens.len().div_ceil(BLOCK) + 8;
        let idle = names[..cached].iter().filter(|name| self.slots[self.by_name[name][0]].users == 0).count();
        let owed: usize = self.running.iter().map(|it| it.names.len() + 1 - it.blocks.len()).sum();
        (self.free.len() >= need + idle + owed).then_some(cached)
    }

    /// Begins a request for which [`admits`](Self::admits) found space. The sequence includes the future output, which
    /// is announced only as it is computed.
    pub fn begin(&mut self, sequence: Sequence, cached: usize) {
        let names = sequence.names(&self.dialect);
        let blocks: Vec<usize> = names[..cached].iter().map(|name| self.by_name[name][0]).collect();
        blocks.iter().for_each(|&block| self.hold(block));
        self.running.push(ActiveRequest { sequence, names, done: cached * BLOCK, blocks });
    }

    /// Number of tokens of a running request that remain to be computed.
    #[must_use]
    pub fn left(&self, request: usize) -> usize {
        self.running[request].sequence.tokens.len() - self.running[request].done
    }

    /// Computes `tokens` more tokens of a running request.
    pub fn compute(&mut self, request: usize, tokens: usize) {
        let running = &mut self.running[request];
        running.done += tokens;
        let (from, to) = (running.blocks.len(), running.done / BLOCK);
        if from == to {
            return;
        }
        let names: Vec<BlockHash> = running.names[from..to].to_vec();
        let parent = from.checked_sub(1).map(|before| running.names[before]);
        let stored = StoredOf {
            block_hashes: names.clone(),
            parent,
            tokens: running.sequence.tokens[from * BLOCK..to * BLOCK].to_vec(),
            block_size: BLOCK_SIZE,
            // vLLM announces the salt with the first block of a prompt only.
            salt: running.sequence.salt.as_deref().filter(|_| from == 0 || self.kind == Kind::Sglang).map(Into::into),
            ..StoredOf::default()
        };
        let mut kept = Vec::new();
        for name in &names {
            let held = self.by_name.get(name).and_then(|blocks| blocks.first().copied());
            // If another request has stored the block meanwhile, SGLang drops this copy.
            let block = held.filter(|_| self.kind == Kind::Sglang).unwrap_or_else(|| {
                kept.push(*name);
                self.write(*name)
            });
            self.hold(block);
            self.running[request].blocks.push(block);
        }
        if self.kind == Kind::Vllm {
            self.events.push(stored.into());
        } else if let Some(first) = kept.first() {
            // New copies are last, because blocks below a held block continue it.
            let skip = names.iter().position(|name| name == first).expect("one of them");
            self.events.push(
                StoredOf {
                    block_hashes: names[skip..].to_vec(),
                    parent: if skip > 0 { Some(names[skip - 1]) } else { parent },
                    tokens: stored.tokens[skip * BLOCK..].to_vec(),
                    ..stored
                }
                .into(),
            );
        }
    }

    /// Ends a running request. Its blocks may be evicted from now on, the last block first.
    pub fn finish(&mut self, request: usize) -> Sequence {
        let ActiveRequest { sequence, blocks, .. } = self.running.swap_remove(request);
        for block in blocks.into_iter().rev() {
            self.slots[block].users -= 1;
            if self.slots[block].users == 0 {
                self.free.push_back(block);
            }
        }
        sequence
    }

    /// Removes all blocks from the cache. No request may be running.
    pub fn reset(&mut self) {
        self.by_name.clear();
        self.slots.iter_mut().for_each(|slot| slot.name = None);
        self.events.push(Cleared.into());
    }

    /// Counts one more running request that uses a block.
    fn hold(&mut self, block: usize) {
        if self.slots[block].users == 0 {
            self.free.retain(|it| *it != block);
        }
        self.slots[block].users += 1;
    }

    /// Stores a block in the physical block that was released longest ago, evicting the old content. No request uses
    /// the new block yet.
    fn write(&mut self, name: BlockHash) -> usize {
        let block = *self.free.front().expect("room was checked");
        if let Some(evicted) = self.slots[block].name.replace(name) {
            self.evict(evicted, block);
        }
        self.by_name.entry(name).or_default().push(block);
        block
    }

    fn evict(&mut self, name: BlockHash, block: usize) {
        let blocks = self.by_name.get_mut(&name).expect("it is held");
        blocks.retain(|it| *it != block);
        if blocks.is_empty() {
            self.by_name.remove(&name);
        }
        if let (Kind::Sglang, Some(EventOf::Removed(last))) = (self.kind, self.events.last_mut()) {
            last.block_hashes.push(name);
        } else {
            self.events.push(RemovedOf { block_hashes: vec![name], ..RemovedOf::default() }.into());
        }
    }
}

const VOCABULARY: u64 = 100_000;

/// Prompt whose request has begun, with the number of its blocks that were cached then.
pub struct Hit {
    /// Prompt and future output of the request.
    pub sequence: Sequence,
    /// Number of leading blocks that were cached when the request began.
    pub blocks: usize,
}

/// Random conversations that begin with a system prompt, are continued, and branch off one another.
pub struct Conversations {
    cache: Cache,
    random: Random,
    /// Conversations that may be continued. The first three are system prompts.
    past: Vec<Sequence>,
    salts: bool,
}

impl Conversations {
    /// Creates random conversations in an empty cache with a capacity of `blocks` blocks. `salts`: true if some
    /// conversations have a cache salt.
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

    /// Performs one engine step. Returns the request that began with its cached blocks, if one did, and the published
    /// batch of events.
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

    /// True if the parents of every cached block are cached.
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
