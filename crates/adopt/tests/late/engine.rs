//! An engine's cache, announced as engines announce it, from random conversations.
//!
//! Two kinds: `Vllm` has physical blocks with copies, evicts the least recently released first and announces each copy;
//! `Sglang` has one copy of each, evicts leaves and announces many in one event. Neither evicts a block before those
//! below it.

use std::collections::{HashMap, HashSet, VecDeque};

use kvatlas_adopt::{Dialect, Form};
use kvatlas_index::{BlockHash, hash};
use kvatlas_testing::Random;
use kvatlas_wire::{BatchOf, Cleared, EventOf, RemovedOf, StoredOf};

pub(crate) const BLOCK: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Vllm,
    Sglang,
}

/// A request's tokens, prompt and output, and what is known of its blocks.
#[derive(Clone)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) salt: Option<String>,
}

impl Sequence {
    pub(crate) fn names(&self, dialect: &Dialect) -> Vec<BlockHash> {
        let mut namer = dialect.scheme.namer(self.salt.as_deref());
        self.tokens.chunks_exact(BLOCK).map(|block| namer.next(block).name(dialect.form)).collect()
    }

    pub(crate) fn contents(&self) -> Vec<u64> {
        hash::content_hashes(&self.tokens, BLOCK, None, self.salt.as_deref())
    }
}

/// A request that runs.
struct ActiveRequest {
    sequence: Sequence,
    names: Vec<BlockHash>,
    /// Tokens computed.
    done: usize,
    /// Physical blocks of the full ones.
    blocks: Vec<usize>,
}

/// Blocks of a prompt that were cached when its request began.
pub(crate) struct Hit {
    pub(crate) sequence: Sequence,
    pub(crate) blocks: usize,
}

pub(crate) struct Engine {
    kind: Kind,
    dialect: Dialect,
    random: Random,
    physical: Vec<(Option<BlockHash>, u32)>,
    free: VecDeque<usize>,
    by_name: HashMap<BlockHash, Vec<usize>>,
    running: Vec<ActiveRequest>,
    /// Conversations that may be continued.
    pub(crate) past: Vec<Sequence>,
    events: Vec<EventOf<BlockHash>>,
    vocabulary: u32,
    salts: bool,
}

impl Engine {
    pub(crate) fn new(kind: Kind, dialect: Dialect, seed: u64, blocks: usize, salts: bool) -> Self {
        let mut random = Random(seed);
        let systems = (0..3)
            .map(|i| Sequence {
                tokens: (0..8 + 4 * i + random.below(20) as u32).map(|t| 1000 * i + t).collect(),
                salt: None,
            })
            .collect();
        Self {
            kind,
            dialect,
            physical: vec![(None, 0); blocks],
            free: (0..blocks).collect(),
            by_name: HashMap::new(),
            running: Vec::new(),
            past: systems,
            events: Vec::new(),
            vocabulary: 100_000,
            salts,
            random,
        }
    }

    /// One step: what was cached of the prompts that began, and the batch that is published.
    pub(crate) fn step(&mut self) -> (Vec<Hit>, BatchOf<BlockHash>) {
        let mut hits = Vec::new();
        if self.random.chance(40) && self.running.len() < 4 {
            hits.extend(self.admit());
        }
        for i in (0..self.running.len()).rev() {
            let left = self.running[i].sequence.tokens.len() - self.running[i].done;
            let prompt = left > 12;
            let step = left.min(if prompt { 10 } else { 1 + self.random.index(3) });
            self.compute(i, step);
            if self.running[i].done == self.running[i].sequence.tokens.len() {
                self.finish(i);
            }
        }
        if self.random.below(400) == 0 && self.running.is_empty() {
            self.reset();
        }
        (hits, BatchOf { events: std::mem::take(&mut self.events), ..BatchOf::default() })
    }

    /// Leading blocks cached of a prompt.
    pub(crate) fn depth(&self, names: &[BlockHash]) -> usize {
        names.iter().take_while(|name| self.by_name.contains_key(name)).count()
    }

    fn admit(&mut self) -> Option<Hit> {
        let mut sequence = self.past[self.random.index(self.past.len())].clone();
        if self.random.chance(30) {
            let keep = BLOCK * (1 + self.random.index(sequence.tokens.len().div_ceil(BLOCK)));
            sequence.tokens.truncate(keep);
        } else {
            let more = 1 + self.random.below(24);
            sequence.tokens.extend((0..more).map(|_| self.random.below(u64::from(self.vocabulary)) as u32));
        }
        if self.salts && sequence.salt.is_none() && self.random.chance(20) {
            sequence.salt = Some(format!("tenant-{}", self.random.below(2)));
        }
        let most = self.physical.len() / 3 * BLOCK;
        sequence.tokens.truncate(most);
        let names = sequence.names(&self.dialect);
        let cached = self.depth(&names[..(sequence.tokens.len() - 1) / BLOCK]);
        let need = sequence.tokens.len().div_ceil(BLOCK) + 8;
        let idle = names[..cached].iter().filter(|name| self.physical[self.by_name[name][0]].1 == 0).count();
        let owed: usize = self.running.iter().map(|it| it.names.len() + 1 - it.blocks.len()).sum();
        if self.free.len() < need + idle + owed {
            return None;
        }
        let blocks: Vec<usize> = names[..cached].iter().map(|name| self.by_name[name][0]).collect();
        for &block in &blocks {
            if self.physical[block].1 == 0 {
                self.free.retain(|it| *it != block);
            }
            self.physical[block].1 += 1;
        }
        let hit = Hit { sequence: sequence.clone(), blocks: cached };
        // What it will generate is part of the sequence from the beginning: nobody sees it before it is computed.
        let output = 1 + self.random.below(16);
        sequence.tokens.extend((0..output).map(|_| self.random.below(u64::from(self.vocabulary)) as u32));
        let names = sequence.names(&self.dialect);
        self.running.push(ActiveRequest { sequence, names, done: cached * BLOCK, blocks });
        Some(hit)
    }

    fn compute(&mut self, i: usize, tokens: usize) {
        let running = &mut self.running[i];
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
            block_size: BLOCK as u32,
            // vLLM shows the salt at the beginning of a prompt only.
            salt: running.sequence.salt.as_deref().filter(|_| from == 0 || self.kind == Kind::Sglang).map(Into::into),
            ..StoredOf::default()
        };
        let mut kept = Vec::new();
        for name in &names {
            let held = self.by_name.get(name).and_then(|blocks| blocks.first().copied());
            let block = match held.filter(|_| self.kind == Kind::Sglang) {
                // Somebody else has written it meanwhile: this one's own copy is not kept.
                Some(block) => {
                    if self.physical[block].1 == 0 {
                        self.free.retain(|it| *it != block);
                    }
                    block
                }
                None => {
                    let block = self.take();
                    self.physical[block].0 = Some(*name);
                    self.by_name.entry(*name).or_default().push(block);
                    kept.push(*name);
                    block
                }
            };
            self.physical[block].1 += 1;
            self.running[i].blocks.push(block);
        }
        if self.kind == Kind::Vllm {
            self.events.push(stored.into());
        } else if let Some(first) = kept.first() {
            // New ones are the last, because what is below a block that is held continues it.
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

    fn take(&mut self) -> usize {
        let block = self.free.pop_front().expect("room was checked");
        if let Some(name) = self.physical[block].0.take() {
            self.forget(name, block);
            if let (Kind::Sglang, Some(EventOf::Removed(last))) = (self.kind, self.events.last_mut()) {
                last.block_hashes.push(name);
            } else {
                self.events.push(RemovedOf { block_hashes: vec![name], ..RemovedOf::default() }.into());
            }
        }
        block
    }

    fn forget(&mut self, name: BlockHash, block: usize) {
        let blocks = self.by_name.get_mut(&name).expect("it is held");
        blocks.retain(|it| *it != block);
        if blocks.is_empty() {
            self.by_name.remove(&name);
        }
    }

    fn finish(&mut self, i: usize) {
        let ActiveRequest { sequence, blocks, .. } = self.running.swap_remove(i);
        for block in blocks.into_iter().rev() {
            self.physical[block].1 -= 1;
            if self.physical[block].1 == 0 {
                self.free.push_back(block);
            }
        }
        if self.past.len() > 24 {
            let old = 3 + self.random.index(self.past.len() - 3);
            self.past.remove(old);
        }
        self.past.push(sequence);
    }

    fn reset(&mut self) {
        self.by_name.clear();
        self.physical.iter_mut().for_each(|block| block.0 = None);
        self.events.push(Cleared.into());
    }

    /// Names held, each with all before it: what makes proofs proofs.
    pub(crate) fn is_closed(&self, parents: &HashMap<BlockHash, Option<BlockHash>>) -> bool {
        let held: HashSet<_> = self.by_name.keys().copied().collect();
        held.iter().all(|name| parents[name].is_none_or(|parent| held.contains(&parent)))
    }

    /// Requests that run, whose output will be what is in them.
    pub(crate) fn sequences(&self) -> Vec<Sequence> {
        self.running.iter().map(|running| running.sequence.clone()).collect()
    }
}

pub(crate) fn dialect(kind: Kind, form: Form) -> Dialect {
    let algorithm =
        if kind == Kind::Vllm { kvatlas_adopt::Algorithm::Sha256 } else { kvatlas_adopt::Algorithm::Sglang };
    Dialect { scheme: kvatlas_adopt::Scheme { algorithm, seed: None }, form }
}
