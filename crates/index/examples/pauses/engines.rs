//! Engines that serve conversations: each request stores what is new of its prompt, and evicts for it, least recently
//! used first and leaves first.

use std::collections::VecDeque;

use kvatlas_index::{BlockHash, BlockIndex, Tier};
use kvatlas_testing::{Random, mix};

use crate::Times;

/// Blocks of the prompt that all conversations of a group begin with.
const SYSTEM: u64 = 8;
/// Number of groups.
const GROUPS: u64 = 64;

/// A fleet.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) engines: u64,
    /// Engines that each conversation is on.
    pub(crate) copies: u32,
    /// True if every engine has block hashes of its own.
    pub(crate) own_names: bool,
    /// Blocks that all hold together.
    pub(crate) blocks: u64,
}

/// One engine's part of a conversation.
struct CachedPart {
    conversation: u64,
    blocks: u64,
}

struct Engine {
    name: String,
    salt: u64,
    /// Least recently used first.
    held: VecDeque<CachedPart>,
    blocks: u64,
    room: u64,
    is_full: bool,
}

/// Engines at work.
pub(crate) struct Fleet {
    engines: Vec<Engine>,
    copies: u64,
    /// Conversations that go on: number and length.
    conversations: Vec<(u64, u64)>,
    next: u64,
    /// Engines that have had to evict.
    full: usize,
    random: Random,
}

/// The content of a block.
pub(crate) fn content(conversation: u64, at: u64) -> u64 {
    if at < SYSTEM { mix(((conversation % GROUPS) << 8) | at) } else { mix(mix(conversation + GROUPS) ^ at) }
}

fn name(salt: u64, conversation: u64, at: u64) -> BlockHash {
    BlockHash(mix(content(conversation, at) ^ salt))
}

impl Fleet {
    pub(crate) fn new(shape: &Shape) -> Self {
        let engine = |i: u64| Engine {
            name: format!("engine-{i}"),
            salt: if shape.own_names { mix(i + 1) } else { 5 },
            held: VecDeque::new(),
            blocks: 0,
            room: shape.blocks / shape.engines,
            is_full: false,
        };
        Self {
            engines: (0..shape.engines).map(engine).collect(),
            copies: shape.copies.into(),
            conversations: Vec::new(),
            next: 0,
            full: 0,
            random: Random(7),
        }
    }

    /// True if nearly all engines are full.
    pub(crate) fn is_full(&self) -> bool {
        self.full * 20 >= self.engines.len() * 19
    }

    /// A request, on every engine of its conversation.
    pub(crate) fn request(&mut self, index: &BlockIndex, times: &mut Times) {
        let random = &mut self.random;
        let most = 64.max(self.engines.len());
        if self.conversations.len() < most || random.chance(20) {
            if self.conversations.len() >= most {
                let at = random.index(self.conversations.len());
                self.conversations.swap_remove(at);
            }
            self.conversations.push((self.next, SYSTEM));
            self.next += 1;
        }
        let at = random.index(self.conversations.len());
        let (conversation, length) = &mut self.conversations[at];
        *length += 4 + random.below(60);
        let (conversation, length) = (*conversation, *length);
        let most = self.engines.len() as u64;
        for copy in 0..self.copies {
            let engine = mix(mix(conversation) ^ copy) % most;
            let engine = &mut self.engines[engine as usize];
            let was_full = engine.is_full;
            engine.serve(conversation, length, index, times);
            self.full += usize::from(engine.is_full && !was_full);
        }
    }
}

impl Engine {
    fn serve(&mut self, conversation: u64, length: u64, index: &BlockIndex, times: &mut Times) {
        let at = self.held.iter().rev().take(256).position(|held| held.conversation == conversation);
        let held = at.and_then(|at| self.held.remove(self.held.len() - 1 - at));
        let from = held.map_or(0, |held| held.blocks);
        let new = length - from;
        while self.blocks + new > self.room {
            self.is_full = true;
            let Some(oldest) = self.held.front_mut() else { break };
            let least = if oldest.blocks > SYSTEM { SYSTEM } else { 0 };
            let to = oldest.blocks.saturating_sub(self.blocks + new - self.room).max(least);
            let gone: Vec<_> = (to..oldest.blocks)
                .rev()
                .filter(|&at| at >= SYSTEM)
                .map(|at| name(self.salt, oldest.conversation, at))
                .collect();
            self.blocks -= oldest.blocks - to;
            oldest.blocks = to;
            if to <= SYSTEM {
                self.held.pop_front();
            }
            if !gone.is_empty() {
                times.time("eviction", || index.remove(&self.name, 0, Tier::Gpu, &gone));
            }
        }
        let names: Vec<_> = (from..length).map(|at| name(self.salt, conversation, at)).collect();
        let contents: Vec<_> = (from..length).map(|at| content(conversation, at)).collect();
        let parent = from.checked_sub(1).map(|at| name(self.salt, conversation, at));
        // The system prompt is announced when it is new, not as another copy.
        times
            .time("store", || index.store_once(&self.name, 0, Tier::Gpu, parent, &names, &contents))
            .expect("lists of one length");
        self.blocks += new;
        self.held.push_back(CachedPart { conversation, blocks: length });
    }
}
