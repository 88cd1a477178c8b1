//! A simulated cache of an engine, with the events that announce its changes.
//!
//! Two kinds: `Vllm` has physical blocks with copies, evicts the least recently released first and announces each copy;
//! `Sglang` has one copy of each block, evicts leaves and announces many in one event. Neither evicts a block before
//! those that continue it.

use std::collections::{HashMap, HashSet, VecDeque};

use kvatlas_adopt::{Algorithm, Dialect, Form, Scheme};
use kvatlas_index::{BlockHash, hash};
use kvatlas_wire::{Cleared, EventOf, RemovedOf, StoredOf};

use crate::chain::BLOCK_SIZE;

const BLOCK: usize = BLOCK_SIZE as usize;

/// The engine that a cache imitates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl Kind {
    /// The block names of the engine, in this form.
    #[must_use]
    pub fn dialect(self, form: Form) -> Dialect {
        let algorithm = if self == Self::Vllm { Algorithm::Sha256 } else { Algorithm::Sglang };
        Dialect { scheme: Scheme { algorithm, seed: None }, form }
    }
}

/// A request's tokens, prompt and output, with its salt.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The cache salt.
    pub salt: Option<String>,
}

impl Sequence {
    /// The engine's names of the full blocks.
    #[must_use]
    pub fn names(&self, dialect: &Dialect) -> Vec<BlockHash> {
        let mut namer = dialect.scheme.namer(self.salt.as_deref());
        self.tokens.chunks_exact(BLOCK).map(|block| namer.next(block).name(dialect.form)).collect()
    }

    /// The content hashes of the full blocks.
    #[must_use]
    pub fn contents(&self) -> Vec<u64> {
        hash::content_hashes(&self.tokens, BLOCK, None, self.salt.as_deref())
    }
}

/// A running request.
struct ActiveRequest {
    sequence: Sequence,
    names: Vec<BlockHash>,
    /// Number of computed tokens.
    done: usize,
    /// Physical blocks of the full ones.
    blocks: Vec<usize>,
}

/// A physical block.
#[derive(Clone, Default)]
struct Slot {
    name: Option<BlockHash>,
    /// Number of requests that use it.
    users: u32,
}

/// An engine's cache and its running requests.
pub struct Cache {
    kind: Kind,
    dialect: Dialect,
    slots: Vec<Slot>,
    /// Unused slots, in the order of their reuse.
    free: VecDeque<usize>,
    by_name: HashMap<BlockHash, Vec<usize>>,
    running: Vec<ActiveRequest>,
    events: Vec<EventOf<BlockHash>>,
}

impl Cache {
    /// An empty cache with room for `blocks` blocks.
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

    /// Capacity in blocks.
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

    /// Takes the events since the last call.
    pub fn take_events(&mut self) -> Vec<EventOf<BlockHash>> {
        std::mem::take(&mut self.events)
    }

    /// Number of leading blocks of a prompt that are cached.
    #[must_use]
    pub fn depth(&self, names: &[BlockHash]) -> usize {
        names.iter().take_while(|name| self.by_name.contains_key(name)).count()
    }

    /// True if the parents of every held block are held, on which proofs rely.
    #[must_use]
    pub fn is_closed(&self, parents: &HashMap<BlockHash, Option<BlockHash>>) -> bool {
        let held: HashSet<_> = self.by_name.keys().copied().collect();
        held.iter().all(|name| parents[name].is_none_or(|parent| held.contains(&parent)))
    }

    /// Number of cached blocks of a prompt whose request could begin now; none if it has no room beside the running
    /// ones.
    #[must_use]
    pub fn admits(&self, prompt: &Sequence) -> Option<usize> {
        let names = prompt.names(&self.dialect);
        let cached = self.depth(&names[..(prompt.tokens.len() - 1) / BLOCK]);
        let need = prompt.tokens.len().div_ceil(BLOCK) + 8;
        let idle = names[..cached].iter().filter(|name| self.slots[self.by_name[name][0]].users == 0).count();
        let owed: usize = self.running.iter().map(|it| it.names.len() + 1 - it.blocks.len()).sum();
        (self.free.len() >= need + idle + owed).then_some(cached)
    }

    /// Begins an admitted request. Its future output is part of the sequence from the beginning, but not announced
    /// before it is computed.
    pub fn begin(&mut self, sequence: Sequence, cached: usize) {
        let names = sequence.names(&self.dialect);
        let blocks: Vec<usize> = names[..cached].iter().map(|name| self.by_name[name][0]).collect();
        blocks.iter().for_each(|&block| self.hold(block));
        self.running.push(ActiveRequest { sequence, names, done: cached * BLOCK, blocks });
    }

    /// Tokens of a running request that remain to be computed.
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

    /// Ends a running request: its blocks may be evicted from now on, the last one first.
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

    /// Clears the cache. No request may be running.
    pub fn reset(&mut self) {
        self.by_name.clear();
        self.slots.iter_mut().for_each(|slot| slot.name = None);
        self.events.push(Cleared.into());
    }

    /// Adds a user to a block.
    fn hold(&mut self, block: usize) {
        if self.slots[block].users == 0 {
            self.free.retain(|it| *it != block);
        }
        self.slots[block].users += 1;
    }

    /// Stores a block in the least recently released slot, evicting its content. The block has no users yet.
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
