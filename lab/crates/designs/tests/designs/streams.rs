//! Random streams of changes, from families defined by the kinds of changes that the streams may contain.
//!
//! The generator proposes changes and keeps those that the family allows, using a model of each worker's holdings. The
//! same model decides whether a stream that was shortened after a failure still belongs to its family.
#![allow(dead_code, reason = "a helper for many files")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kvatlas_designs::{Change, WorkerId};
use kvatlas_index::{BlockHash, hash};

use kvatlas_testing::seeds;
pub(crate) use kvatlas_testing::{Random, mix};

/// A family of streams: the kinds of changes that a stream may contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family {
    /// True if equal contents may occur at several places: after other prefixes, and repeated within a prompt.
    pub(crate) conflation: bool,
    /// True if blocks may be removed while blocks that continue them are held, and may be stored again.
    pub(crate) holes: bool,
    /// True if blocks may be announced while their parent is not held.
    pub(crate) orphans: bool,
    /// True if held blocks may be announced again.
    pub(crate) duplicates: bool,
    /// True if a block hash may be announced for another block; there are few block hashes, so that they collide and
    /// form cycles, too.
    pub(crate) replaced: bool,
    /// True if one worker may have several block hashes for one block.
    pub(crate) aliases: bool,
    /// True if unknown block hashes may be removed, and unknown workers cleared.
    pub(crate) unknown: bool,
}

impl Family {
    /// Family of streams that every design must handle exactly. At every moment, a worker that holds a block holds all
    /// blocks before it; a content occurs at one place only; a block has one block hash, is announced while not held
    /// and removed while held.
    pub(crate) const WELL_BEHAVED: Self = Self {
        conflation: false,
        holes: false,
        orphans: false,
        duplicates: false,
        replaced: false,
        aliases: false,
        unknown: false,
    };
    /// The family of all streams.
    pub(crate) const ANYTHING: Self = Self {
        conflation: true,
        holes: true,
        orphans: true,
        duplicates: true,
        replaced: true,
        aliases: true,
        unknown: true,
    };

    fn covers(self, other: Self) -> bool {
        let Self { conflation, holes, orphans, duplicates, replaced, aliases, unknown } = other;
        (self.conflation || !conflation)
            && (self.holes || !holes)
            && (self.orphans || !orphans)
            && (self.duplicates || !duplicates)
            && (self.replaced || !replaced)
            && (self.aliases || !aliases)
            && (self.unknown || !unknown)
    }

    /// True if the given changes belong to the family. `conflation` depends on the generator's choices and is not
    /// checked.
    pub(crate) fn allows(self, changes: &[Change]) -> bool {
        let mut fleet = Fleet::default();
        changes.iter().all(|change| self.covers(fleet.apply(change)))
    }
}

/// Way in which engines choose block hashes in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// The block hash is the prefix hash: `hash::prefix_hashes` of the content hashes.
    Prefix,
    /// All workers have the same block hashes, which are not prefix hashes.
    Alike,
    /// Each worker has different block hashes.
    Own,
}

/// A random stream of changes, with queries.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) seed: u64,
    pub(crate) family: Family,
    pub(crate) changes: Vec<Change>,
    pub(crate) queries: Vec<Vec<u64>>,
}

/// Random streams of a family, one per seed, with the three ways of choosing block hashes in turn. The environment
/// variable KVATLAS_SEEDS scales their number.
pub(crate) fn streams(family: Family, seeds: Range<u64>) -> impl Iterator<Item = Stream> {
    at_least(seeds).map(move |seed| {
        let names = [Names::Prefix, Names::Alike, Names::Own][seed as usize % 3];
        stream(family, names, seed, 30 + seed as usize * 7 % 150)
    })
}

/// Random streams of a family, one per seed, with one way of choosing block hashes.
pub(crate) fn streams_named(family: Family, names: Names, seeds: Range<u64>) -> impl Iterator<Item = Stream> {
    at_least(seeds).map(move |seed| stream(family, names, seed, 30 + seed as usize * 7 % 150))
}

/// Seeds to run: their number is scaled, but at least a third of the usual number, and at least ten if there are ten,
/// since some tests need enough streams.
fn at_least(usual: Range<u64>) -> Range<u64> {
    let few = usual.end - usual.start;
    usual.start..usual.start + seeds(few).max(few.div_ceil(3)).max(few.min(10))
}

/// Creates a random stream of a family from a seed, with about `length` changes.
pub(crate) fn stream(family: Family, names: Names, seed: u64, length: usize) -> Stream {
    let mut random = Random(seed);
    let mut maker = Maker {
        family,
        names,
        workers: *random.pick(&[1, 2, 3, 8, 40]),
        contents: *random.pick(&[1, 2, 3, 1 << 40]),
        longest: *random.pick(&[3, 12, 40]),
        chaos: *random.pick(&[0, 5, 30, 100]),
        prompts: Vec::new(),
        fleet: Fleet::default(),
        random,
    };
    let mut changes = Vec::new();
    for _ in 0..length * 50 {
        if changes.len() == length {
            break;
        }
        if maker.prompts.len() < 4 || maker.random.chance(10) {
            maker.add_prompt();
        }
        let change = maker.propose();
        let mut after = maker.fleet.clone();
        if family.covers(after.apply(&change)) {
            maker.fleet = after;
            changes.push(change);
        }
    }
    for _ in 0..4 {
        maker.add_prompt();
    }
    Stream { seed, family, changes, queries: maker.prompts }
}

/// Blocks that one worker holds: parent and content hash by block hash.
type Held = BTreeMap<BlockHash, (Option<BlockHash>, u64)>;

/// Blocks held by all workers, as the model of the generator.
#[derive(Clone, Debug, Default)]
struct Fleet(BTreeMap<WorkerId, Held>);

impl Fleet {
    /// Applies a change to the model, and returns the smallest family that allows the change.
    fn apply(&mut self, change: &Change) -> Family {
        let mut took = Family::WELL_BEHAVED;
        match change {
            Change::Store { worker, parent, block_hashes, content_hashes } => {
                let mut parent = *parent;
                for (&name, &content) in block_hashes.iter().zip(content_hashes) {
                    let held = self.0.entry(*worker).or_default();
                    took.orphans |= parent.is_some_and(|parent| !held.contains_key(&parent));
                    match held.insert(name, (parent, content)) {
                        Some(old) if old == (parent, content) => took.duplicates = true,
                        Some(_) => took.replaced = true,
                        None => {}
                    }
                    let same = held.values().filter(|&&block| block == (parent, content)).count();
                    took.aliases |= same > 1;
                    parent = Some(name);
                }
            }
            Change::Remove { worker, block_hashes } => {
                let held = self.0.entry(*worker).or_default();
                let before = unlinked(held);
                for name in block_hashes {
                    took.unknown |= held.remove(name).is_none();
                }
                took.holes = !unlinked(held).is_subset(&before);
            }
            Change::Clear { worker } => match self.0.get_mut(worker) {
                Some(held) => held.clear(),
                None => took.unknown = true,
            },
            Change::Drop { worker } => took.unknown = self.0.remove(worker).is_none(),
        }
        took
    }
}

/// Blocks that are held although a block before them is missing.
fn unlinked(held: &Held) -> BTreeSet<BlockHash> {
    let mut linked = BTreeSet::new();
    loop {
        let before = linked.len();
        for (&name, (parent, _)) in held {
            if parent.is_none_or(|parent| linked.contains(&parent)) {
                linked.insert(name);
            }
        }
        if linked.len() == before {
            return held.keys().copied().filter(|name| !linked.contains(name)).collect();
        }
    }
}

struct Maker {
    family: Family,
    names: Names,
    workers: u32,
    contents: usize,
    longest: usize,
    /// Percentage of blocks whose block hash is any from a small set.
    chaos: u64,
    prompts: Vec<Vec<u64>>,
    fleet: Fleet,
    random: Random,
}

impl Maker {
    /// Adds a prompt, which mostly shares its beginning with another prompt.
    fn add_prompt(&mut self) {
        let mut prompt = Vec::new();
        if !self.prompts.is_empty() && self.random.chance(80) {
            let other = self.random.pick(&self.prompts);
            prompt.extend_from_slice(&other[..self.random.index(other.len() + 1)]);
        }
        for _ in 0..=self.random.index(self.longest) {
            let token = self.random.index(self.contents) as u64 + 1;
            let before = prompt.last().copied().unwrap_or(0);
            prompt.push(if self.family.conflation { token } else { mix(before ^ token.wrapping_mul(31)) });
        }
        if self.prompts.len() > 20 {
            self.prompts.remove(0);
        }
        self.prompts.push(prompt);
    }

    /// Block hashes of a worker for the blocks of a prompt.
    fn names(&mut self, worker: WorkerId, prompt: &[u64]) -> Vec<BlockHash> {
        let alias = if self.family.aliases && self.random.chance(20) { 77 } else { 0 };
        if self.names == Names::Prefix && alias == 0 {
            let mut names: Vec<_> = hash::prefix_hashes(prompt).into_iter().map(BlockHash).collect();
            names.iter_mut().for_each(|name| self.confuse(name));
            return names;
        }
        let mut chain = alias + if self.names == Names::Own { u64::from(worker) + 1 } else { 0 };
        let mut names = Vec::new();
        for content in prompt {
            chain = mix(chain ^ content.wrapping_mul(31));
            let mut name = BlockHash(chain);
            self.confuse(&mut name);
            names.push(name);
        }
        names
    }

    fn confuse(&mut self, name: &mut BlockHash) {
        if self.family.replaced && self.random.chance(self.chaos) {
            *name = BlockHash(self.random.index(8) as u64);
        }
    }

    fn propose(&mut self) -> Change {
        let worker = self.random.index(self.workers as usize) as u32;
        let prompt = self.random.pick(&self.prompts).clone();
        let names = self.names(worker, &prompt);
        match self.random.index(100) {
            0..=1 => Change::Clear { worker },
            2 => Change::Drop { worker },
            3..=60 => self.store(worker, &prompt, &names),
            _ => self.remove(worker, &names),
        }
    }

    /// Number of leading blocks of a prompt, given by block hashes, that a worker holds.
    fn held(&self, worker: WorkerId, names: &[BlockHash]) -> usize {
        let held = self.fleet.0.get(&worker);
        names.iter().take_while(|name| held.is_some_and(|held| held.contains_key(name))).count()
    }

    fn store(&mut self, worker: WorkerId, prompt: &[u64], names: &[BlockHash]) -> Change {
        // The next changes, as an engine would announce them, or random ones.
        let tidy = self.family == Family::WELL_BEHAVED || self.random.chance(50);
        let from = match tidy {
            true => self.held(worker, names).min(prompt.len() - 1),
            false => self.random.index(prompt.len() + 1) * usize::from(self.random.chance(50)),
        };
        let to = from + self.random.index(prompt.len() - from + 1).max(usize::from(tidy));
        let parent = match from {
            _ if self.family.replaced && self.random.chance(self.chaos / 4) => {
                Some(BlockHash(self.random.index(8) as u64))
            }
            0 => None,
            _ => Some(names[from - 1]),
        };
        let (block_hashes, content_hashes) = (names[from..to].into(), prompt[from..to].into());
        Change::Store { worker, parent, block_hashes, content_hashes }
    }

    fn remove(&mut self, worker: WorkerId, names: &[BlockHash]) -> Change {
        let tidy = self.family == Family::WELL_BEHAVED || self.random.chance(30);
        let to = if tidy { self.held(worker, names) } else { self.random.index(names.len() + 1) };
        let from = self.random.index(to + 1);
        let mut block_hashes = names[from..to].to_vec();
        match self.random.index(4) {
            0 => {}
            1 if !tidy => block_hashes.retain(|_| self.random.chance(40)),
            2 => {
                for i in (1..block_hashes.len()).rev() {
                    block_hashes.swap(i, self.random.index(i + 1));
                }
            }
            // As engines evict: the last first.
            _ => block_hashes.reverse(),
        }
        if !tidy && self.random.chance(10) {
            block_hashes.extend(block_hashes.first().copied());
        }
        Change::Remove { worker, block_hashes: block_hashes.into() }
    }
}

#[test]
fn streams_are_of_their_family_and_show_what_it_allows() {
    for names in [Names::Prefix, Names::Alike, Names::Own] {
        let mut took = Family::WELL_BEHAVED;
        let (mut stored, mut removed) = (0, 0);
        for stream in streams_named(Family::ANYTHING, names, 0..120) {
            let mut fleet = Fleet::default();
            for change in &stream.changes {
                let one = fleet.apply(change);
                assert!(stream.family.covers(one));
                took.holes |= one.holes;
                took.orphans |= one.orphans;
                took.duplicates |= one.duplicates;
                took.replaced |= one.replaced;
                took.aliases |= one.aliases;
                took.unknown |= one.unknown;
            }
        }
        assert_eq!(took, Family { conflation: false, ..Family::ANYTHING });
        for stream in streams_named(Family::WELL_BEHAVED, names, 0..120) {
            assert!(Family::WELL_BEHAVED.allows(&stream.changes), "seed {}", stream.seed);
            assert!(stream.changes.len() >= 30, "seed {}: {} changes", stream.seed, stream.changes.len());
            for change in &stream.changes {
                stored += usize::from(matches!(change, Change::Store { block_hashes, .. } if !block_hashes.is_empty()));
                removed +=
                    usize::from(matches!(change, Change::Remove { block_hashes, .. } if !block_hashes.is_empty()));
            }
        }
        assert!(stored > 500 && removed > 200, "{stored} stores, {removed} removals");
    }
}
