//! A simulated KV cache of a hybrid model, whose groups of layers keep blocks for different times.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kvatlas_index::hash::{content_hashes, prefix_hashes};
use kvatlas_testing::{Random, mix};
use kvatlas_wire::{Cleared, Name, Removed, Stored};

use crate::chain::payload;

/// Number of tokens in a block of the cache group that the index stores.
pub const BLOCK: u32 = 2;
/// Number of blocks in each prompt.
const LONG: usize = 12;
/// Number of the cache group that the index stores; it need not be the first.
const FULL: u32 = 3;
const MEDIA: [&str; 2] = ["GPU", "CPU"];

/// A cache group: layers of the model whose blocks are kept together.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// Number of the cache group; `None` for blocks of a connector, which belong to all groups.
    number: Option<u32>,
    kind: &'static str,
    window: Option<u64>,
    /// Number of indexed blocks that one block of the group covers.
    step: usize,
}

impl Group {
    /// True if the group has the blocks to reuse a prefix of `depth` blocks, by the engine's rule for its kind of
    /// attention.
    fn serves(&self, depth: usize, held: impl Fn(usize) -> bool) -> bool {
        let blocks = (1..=depth).filter(|end| end.is_multiple_of(self.step)).collect::<Vec<_>>();
        let tokens = depth as u64 * u64::from(BLOCK);
        match self.kind {
            "mamba" => depth == 0 || held(depth),
            "full_attention" => depth.is_multiple_of(self.step) && blocks.iter().all(|&end| held(end)),
            _ => {
                // All blocks with a token that the next one attends to; at least the last.
                let first_seen = (tokens + 1).saturating_sub(self.window.unwrap_or(0));
                let seen = |end: usize| end as u64 * u64::from(BLOCK) > first_seen || end == depth;
                depth.is_multiple_of(self.step) && blocks.iter().filter(|&&end| seen(end)).all(|&end| held(end))
            }
        }
    }
}

/// A cached block: its cache group, its tier and the hash of its prefix.
type HeldBlock = (Option<u32>, usize, u64);

/// A cache with one indexed group and one or two others, filled and emptied at random. Each step returns the payload of
/// the events that announce it.
pub struct GroupCache {
    random: Random,
    groups: Vec<Group>,
    /// Number of copies of each cached block.
    held: BTreeMap<HeldBlock, u32>,
}

impl GroupCache {
    /// Creates an empty cache with random groups.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut groups = vec![Group { number: Some(FULL), kind: "full_attention", window: None, step: 1 }];
        for number in 0..=random.below(2) {
            let step = 1 + random.index(2);
            let (kind, window) = match random.below(4) {
                0 => ("mamba", None),
                1 => ("full_attention", None),
                _ => ("sliding_window", Some(1 + random.below(14))),
            };
            groups.push(Group { number: Some(number as u32), kind, window, step });
        }
        Self { random, groups, held: BTreeMap::new() }
    }

    /// Number of cache groups. The first is the one that the index stores.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Number of different blocks held.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.held.keys().map(|&(_, _, prefix)| prefix).collect::<BTreeSet<_>>().len()
    }

    /// Largest depth in blocks, up to `limit`, at which all groups but the first can reuse the prompt from the tiers up
    /// to `tier`.
    #[must_use]
    pub fn reach(&self, prefixes: &[u64], tier: usize, limit: u32) -> u32 {
        let held = |group: &Group, end: usize| {
            let is_there = |number, tier| self.held.contains_key(&(number, tier, prefixes[end - 1]));
            (0..=tier).any(|tier| is_there(group.number, tier) || is_there(None, tier))
        };
        let all = |depth: usize| self.groups[1..].iter().all(|group| group.serves(depth, |end| held(group, end)));
        (0..=limit).rev().find(|&depth| all(depth as usize)).expect("nothing can always be served")
    }

    /// Chooses a random prompt from a small set.
    pub fn prompt(&mut self) -> Vec<u32> {
        (0..LONG * BLOCK as usize).map(|at| if at % 6 == 0 { self.random.below(2) as u32 } else { 7 }).collect()
    }

    /// Stores blocks of a group, removes a block, or removes all blocks, at random. Returns the payload of the events.
    pub fn step(&mut self) -> Vec<u8> {
        match self.random.below(100) {
            0 => {
                self.held.clear();
                payload(None, vec![Cleared.into()])
            }
            1..5 => self.store_to(Group { number: None, ..self.groups[0] }),
            5..40 => self.store(0),
            40..65 => {
                let group = self.random.index(self.groups.len());
                self.store(group)
            }
            _ => self.remove(),
        }
    }

    /// Stores a random part of a prompt in a cache group. Returns the payload of the event.
    pub fn store(&mut self, group: usize) -> Vec<u8> {
        self.store_to(self.groups[group])
    }

    fn store_to(&mut self, group: Group) -> Vec<u8> {
        let prompt = self.prompt();
        let prefixes = prefix_hashes(&content_hashes(&prompt, BLOCK as usize, None, None));
        let blocks = LONG / group.step;
        let first = if self.random.chance(60) { 0 } else { self.random.index(blocks) };
        let end = first + 1 + self.random.index(blocks - first);
        let tier = if group.number.is_none() { 1 } else { usize::from(self.random.chance(15)) };
        let is_indexed = group.number.is_none_or(|number| number == FULL);
        let mut names = Vec::new();
        for block in first..end {
            let prefix = prefixes[(block + 1) * group.step - 1];
            // Only events of the indexed group have tokens.
            if is_indexed || self.random.chance(80) {
                names.push(name(prefix));
                *self.held.entry((group.number, tier, prefix)).or_default() += 1;
                if group.number.is_none() {
                    *self.held.entry((Some(FULL), tier, prefix)).or_default() += 1;
                }
            }
        }
        let size = group.step * BLOCK as usize;
        let stored = Stored {
            block_hashes: names,
            parent: first.checked_sub(1).map(|before| name(prefixes[(before + 1) * group.step - 1])),
            tokens: prompt[first * size..end * size].to_vec(),
            block_size: size as u32,
            medium: Some(MEDIA[tier].into()),
            group: group.number,
            kind: Some(group.kind.into()),
            window: group.window,
            ..Stored::default()
        };
        payload(None, vec![stored.into()])
    }

    /// Removes one copy of a random block and returns the payload; the payload has no events if no block is cached, or
    /// if only a connector held the block.
    fn remove(&mut self) -> Vec<u8> {
        let held: Vec<_> = self.held.keys().copied().collect();
        if held.is_empty() {
            return payload(None, Vec::new());
        }
        let (group, tier, prefix) = *self.random.pick(&held);
        self.take((group, tier, prefix));
        if group.is_none() {
            self.take((Some(FULL), tier, prefix));
        } else if group == Some(FULL) && self.held.get(&(None, tier, prefix)) > self.held.get(&(group, tier, prefix)) {
            // The connector's copy was the last one.
            *self.held.entry((group, tier, prefix)).or_default() += 1;
            return payload(None, Vec::new());
        }
        let medium = Some(MEDIA[tier].into());
        let removed = Removed { block_hashes: vec![name(prefix)], medium, group, ..Removed::default() };
        payload(None, vec![removed.into()])
    }

    fn take(&mut self, block: HeldBlock) {
        let copies = self.held.get_mut(&block).expect("it is held");
        *copies -= 1;
        if *copies == 0 {
            self.held.remove(&block);
        }
    }
}

/// Shows only the groups, since there are too many blocks to read.
impl fmt::Debug for GroupCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.groups.fmt(f)
    }
}

fn name(prefix: u64) -> Name {
    Name::from(mix(prefix))
}
