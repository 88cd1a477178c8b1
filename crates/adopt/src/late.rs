//! Adoption for one stream: adding blocks to the index that the engine announced before the service followed it. Blocks
//! are proved to be held by the engine's batches, and their hashes are computed from prompts' tokens.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use kvatlas_index::{Adoption, BlockHash, BlockIndex, Error, Roots, Tier};
use kvatlas_wire::{BatchOf, EventOf, Reader, StoredOf};

use crate::chains::Chain;
use crate::dialect::{Dialect, Scheme};
use crate::frontier::{Frontier, FrontierState, Moment};

/// Number of prompts' first blocks for which all known hash algorithms are tried before the engine's block hashes are
/// considered not computable.
const TRIES: u32 = 64;

/// Rank for which blocks are to be added to the index that no batch announced, with its worker and the index.
#[derive(Clone, Copy)]
pub struct RankPlace<'a> {
    /// Index that has the rank's blocks.
    pub index: &'a BlockIndex,
    /// Name of the worker.
    pub worker: &'a str,
    /// Number of the data-parallel rank under which the blocks are stored.
    pub rank: u32,
}

/// Reason why blocks that were proved to be held are not adopted (added to the index).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdoptionFailure {
    /// The engine has several cache groups and a block may count for only some of them, or its block hashes depend on
    /// the tokens after a block.
    Groups,
    /// No evidence shows that the engine still holds the blocks, or more blocks were removed since the evidence than
    /// are remembered.
    Unproved,
    /// One of the block hashes is already held with other contents.
    Contrary,
    /// The index cannot number any more blocks.
    Full,
}

/// Outcome of an attempt to adopt blocks (to add proved blocks to the index).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Number of blocks that were added to the index, not counting blocks that were held before.
    Blocks(usize),
    /// No block was added to the index, for this reason.
    Not(AdoptionFailure),
}

/// Counts of adoptions (additions of proved blocks to the index) and of failed attempts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Number of successful adoptions. Each adds the leading blocks of one prompt, as proved by a batch or reported by
    /// the engine as taken from its cache.
    pub adoptions: u64,
    /// Number of blocks added to the index although no batch announced them.
    pub blocks: u64,
    /// Number of failed attempts to add blocks to the index, because one of their block hashes is held with other
    /// contents.
    pub contrary: u64,
    /// Number of stored first blocks of prompts whose hashes differ from those computed in the engine's dialect (its
    /// way of hashing blocks).
    pub other_names: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.adoptions += other.adoptions;
        self.blocks += other.blocks;
        self.contrary += other.contrary;
        self.other_names += other.other_names;
    }
}

/// Adoption state of one rank: blocks that the rank is proved to hold, and the engine's dialect (its way of hashing
/// blocks).
#[derive(Debug, Default)]
pub struct RankAdoption {
    frontier: Frontier,
    roots: Roots,
    dialect: Option<Dialect>,
    tries: u32,
    /// True if a store does not prove that all blocks before it are held, because the engine has several cache groups
    /// or its block hashes depend on later tokens.
    grouped: bool,
    /// True if the service has missed early events: the rank was proved to hold an unknown block, or may hold more
    /// blocks than are known.
    was_late: bool,
    /// True once the stream's first batch has been applied.
    settled: bool,
    /// Block hashes of blocks that are held because an engine's answer to a request reported them as cached. The answer
    /// may arrive before the batch that announces the same copy, so the next store of the block must not count another
    /// copy.
    answered: HashSet<BlockHash>,
    /// Block hashes of adopted blocks (blocks added to the index although no batch announced them) with their cache
    /// salts, which are still to be passed to the stream's reader.
    salted: Vec<(Vec<BlockHash>, Arc<str>)>,
    /// Counts of adoptions (additions of proved blocks to the index) and of failed attempts.
    pub counts: Counts,
    /// Buffer for the removed blocks of one batch, kept so that its memory is reused.
    removed: Vec<BlockHash>,
}

impl RankAdoption {
    /// Creates the state of a rank for adding blocks to the index that no batch announced. The state remembers at most
    /// `removals` removed blocks.
    #[must_use]
    pub fn with_removals(removals: usize) -> Self {
        Self { frontier: Frontier::with_removals(removals), ..Self::default() }
    }

    /// Updates the proofs after a batch was applied to the index.
    ///
    /// `partial` is true if the engine may hold more blocks than this service knows; for an engine whose held blocks
    /// are all known, nothing is remembered. `time` returns the current time, and `schemes` are the ways in which the
    /// engine may compute block hashes.
    pub fn applied(
        &mut self,
        batch: &BatchOf<BlockHash>,
        reader: &Reader,
        at: RankPlace<'_>,
        partial: bool,
        time: impl Fn() -> Duration,
        schemes: &[Scheme],
    ) {
        if !partial && self.settled && self.frontier.is_empty() {
            return self.frontier.rest();
        }
        // The first batch comes before anybody can say whether there was one before it.
        self.settled = true;
        self.grouped = reader.hybrid().is_some() || reader.upper_bound();
        if self.grouped {
            self.roots.clear();
            return self.frontier.forget();
        }
        self.was_late |= partial;
        self.frontier.pass(time());
        self.removed.clear();
        let (mut parents, mut moments) = (Vec::new(), Vec::new());
        for event in &batch.events {
            match event {
                EventOf::Removed(removed) if removed.tier() == Tier::Gpu => {
                    self.frontier.removed(&removed.block_hashes);
                    self.removed.extend_from_slice(&removed.block_hashes);
                }
                EventOf::Removed(_) => {}
                EventOf::Cleared(_) => {
                    self.forget();
                    (parents, moments) = (Vec::new(), Vec::new());
                    self.frontier.pass(time());
                }
                EventOf::Stored(stored) if is_readable(stored, at.index) => {
                    if !self.frontier.is_empty() {
                        stored.block_hashes.iter().for_each(|&name| self.frontier.settle(name));
                    }
                    match stored.parent {
                        Some(parent) => {
                            parents.push(parent);
                            moments.push(self.frontier.now());
                        }
                        None => self.learn_from(stored, schemes),
                    }
                }
                EventOf::Stored(_) => {}
            }
        }
        let RankPlace { index, worker, rank } = at;
        if !parents.is_empty() || !self.removed.is_empty() {
            let missing = index.missing_above(worker, rank, &self.removed, &parents, &mut self.roots);
            for (missing, moment) in missing.into_iter().zip(moments) {
                if let Some(name) = missing {
                    self.was_late = true;
                    self.frontier.prove(name, moment);
                }
            }
        }
        if !partial {
            self.frontier.rest();
        }
    }

    /// Drops all evidence of held blocks, because the blocks were cleared or a batch was missed.
    pub fn forget(&mut self) {
        self.frontier.forget();
        self.roots.clear();
        self.salted.clear();
        self.answered.clear();
        self.removed.clear();
    }

    /// Resets the state after a restart of the engine, or for another engine.
    pub fn begin(&mut self) {
        self.forget();
        (self.dialect, self.tries, self.settled) = (None, 0, false);
    }

    /// Returns the rank's frontier: block hashes that the rank is proved to hold, with unknown contents.
    #[must_use]
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Returns the rank's frontier (block hashes that it is proved to hold, with unknown contents) for changes.
    pub fn frontier_mut(&mut self) -> &mut Frontier {
        &mut self.frontier
    }

    /// Returns the engine's dialect (its way of hashing blocks); `None` if unknown.
    #[must_use]
    pub fn dialect(&self) -> Option<&Dialect> {
        self.dialect.as_ref()
    }

    /// True if all known hash algorithms were tried on enough prompts to conclude that the engine's block hashes cannot
    /// be computed.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.dialect.is_none() && self.tries >= TRIES
    }

    /// True if all block hashes of the engine follow one dialect (way of hashing blocks), so that equal block hashes in
    /// two streams mean equal blocks.
    #[must_use]
    pub fn is_pure(&self) -> bool {
        self.dialect.is_some() && self.counts.other_names == 0
    }

    /// True if the service has missed early events: the rank was ever proved to hold an unknown block, or may hold more
    /// blocks than are known.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.was_late
    }

    /// Returns the reason why the hashes of proved blocks cannot be computed; `None` if they can.
    #[must_use]
    pub fn why_not(&self) -> Option<&'static str> {
        if self.grouped {
            Some("the engine has several cache groups, or its block hashes depend on the tokens after a block")
        } else if self.is_foreign() {
            Some("the engine's block hashes cannot be computed from tokens")
        } else {
            None
        }
    }

    /// Sets the engine's dialect (its way of hashing blocks), unless one is known. The caller must have computed a
    /// block hash on the frontier from a prompt's tokens in this dialect, which cannot happen by chance.
    pub fn learn(&mut self, dialect: &Dialect) {
        self.dialect.get_or_insert_with(|| dialect.clone());
    }

    fn learn_from(&mut self, stored: &StoredOf<BlockHash>, schemes: &[Scheme]) {
        let is_plain = stored.adapter().is_none()
            && stored.salt.is_none()
            && stored.bigrams.is_none()
            && stored.extra_keys.is_empty();
        let tokens = stored.tokens.get(..stored.block_size as usize);
        let (Some(&name), Some(tokens), true) = (stored.block_hashes.first(), tokens, is_plain) else { return };
        if let Some(dialect) = &self.dialect {
            let digest = dialect.scheme.namer(None).next(tokens);
            // Without a place for salts, it is unknown whether there is one.
            self.counts.other_names += u64::from(!stored.bare && digest.name(dialect.form) != name);
        } else if self.tries < TRIES {
            self.tries += 1;
            let found = schemes.iter().find_map(|scheme| {
                let digest = scheme.namer(None).next(tokens);
                let form = scheme.forms().iter().copied().find(|form| digest.name(*form) == name)?;
                Some(Dialect { scheme: scheme.clone(), form })
            });
            self.dialect = found;
        }
    }

    /// Adopts the blocks that a block hash on the frontier proves: adds the blocks of `chain` up to `name` to the
    /// index, if they were not removed since. `chain` may continue after `name`.
    ///
    /// `certain` is true if the block hashes were computed from the contents of the blocks.
    pub fn adopt(&mut self, name: BlockHash, chain: &Chain, certain: bool, at: RankPlace<'_>) -> Outcome {
        let depth = chain.names.iter().position(|it| *it == name).map_or(0, |at| at + 1);
        let Some(proof) = self.frontier.proof(name).filter(|_| depth > 0) else {
            self.frontier.expire();
            return Outcome::Not(AdoptionFailure::Unproved);
        };
        let outcome = self.hold(chain, depth, proof, certain, at);
        if outcome != Outcome::Not(AdoptionFailure::Full) {
            self.frontier.settle(name);
        }
        outcome
    }

    /// Adopts the first `depth` blocks of a prompt, because the engine reported in its answer that it took them from
    /// its cache. `sent` is a time before or at which the prompt was sent to the engine.
    pub fn observe(&mut self, chain: &Chain, depth: usize, sent: Duration, at: RankPlace<'_>) -> Outcome {
        match self.frontier.moment_at(sent) {
            Some(moment) if depth <= chain.names.len() => {
                let held = at.index.held(at.worker, at.rank, &chain.names[..depth]);
                let outcome = self.hold(chain, depth, moment, true, at);
                if let Outcome::Blocks(1..) = outcome {
                    let new = chain.names[..depth].iter().zip(held).filter(|(_, held)| !held);
                    self.answered.extend(new.map(|(name, _)| *name));
                }
                outcome
            }
            _ => Outcome::Not(AdoptionFailure::Unproved),
        }
    }

    fn hold(&mut self, chain: &Chain, depth: usize, proof: Moment, certain: bool, at: RankPlace<'_>) -> Outcome {
        if self.grouped {
            return Outcome::Not(AdoptionFailure::Groups);
        }
        let Some(mut gone) = self.frontier.find_removed(proof, &chain.names) else {
            return Outcome::Not(AdoptionFailure::Unproved);
        };
        // Of what comes behind it nothing is proved.
        gone[depth..].fill(true);
        let RankPlace { index, worker, rank } = at;
        match index.adopt(worker, rank, &chain.names, &chain.contents, &gone, certain) {
            Ok(Adoption::Blocks(blocks)) => {
                self.roots.clear();
                self.counts.adoptions += u64::from(blocks > 0);
                self.counts.blocks += blocks as u64;
                if let (Some(salt), true) = (&chain.salt, blocks > 0) {
                    let held = chain.names.iter().zip(gone).filter(|(_, gone)| !gone);
                    self.salted.push((held.map(|(name, _)| *name).collect(), salt.clone()));
                }
                Outcome::Blocks(blocks)
            }
            Ok(Adoption::Contrary) => {
                self.counts.contrary += 1;
                Outcome::Not(AdoptionFailure::Contrary)
            }
            Err(Error::Full { .. }) | Err(_) => Outcome::Not(AdoptionFailure::Full),
        }
    }

    /// Passes the cache salts of adopted blocks (blocks added to the index although no batch announced them) to the
    /// stream's reader, so that blocks which continue their chains inherit the salts.
    pub fn tell_salts(&mut self, reader: &mut Reader) {
        for (names, salt) in self.salted.drain(..) {
            reader.learn_salt(&names, &salt);
        }
    }

    /// Iterates over the block hashes of blocks that are held only because an engine's answer reported them as cached,
    /// and that no batch has announced since.
    pub fn answered(&self) -> impl Iterator<Item = BlockHash> {
        self.answered.iter().copied()
    }

    /// Continues from the state of another rank that holds the same blocks: its [`answered`](Self::answered) blocks,
    /// and the state [`kept`](Frontier::kept) of its frontier.
    ///
    /// The next batch does not count as the stream's first one. So if all held blocks of the engine are known, an
    /// unknown parent block proves nothing, as in the state that is continued.
    pub fn resume(&mut self, answered: impl IntoIterator<Item = BlockHash>, kept: &FrontierState) {
        self.answered.extend(answered);
        self.frontier.resume(kept);
        self.was_late |= !self.frontier.is_empty();
        self.settled = true;
    }

    /// Prepares for a batch that is about to be applied: passes cache salts to the reader, and removes copies of blocks
    /// known from answers that the batch announces itself.
    pub fn note_batch(&mut self, batch: &BatchOf<BlockHash>, reader: &mut Reader, at: RankPlace<'_>) {
        self.tell_salts(reader);
        if self.answered.is_empty() {
            return;
        }
        let mut twice = Vec::new();
        for event in &batch.events {
            match event {
                EventOf::Stored(stored) => {
                    twice.extend(stored.block_hashes.iter().copied().filter(|name| self.answered.remove(name)));
                }
                EventOf::Removed(removed) => self.answered.retain(|name| !removed.block_hashes.contains(name)),
                EventOf::Cleared(_) => self.answered.clear(),
            }
        }
        at.index.remove(at.worker, at.rank, Tier::Gpu, &twice);
    }
}

/// True if a store event is valid and concerns device memory.
fn is_readable(stored: &StoredOf<BlockHash>, index: &BlockIndex) -> bool {
    let (blocks, size) = (stored.block_hashes.len(), stored.block_size);
    let fills = blocks.checked_mul(size as usize) == Some(stored.tokens.len());
    blocks > 0 && size == index.config().block_size && fills && stored.tier() == Tier::Gpu
}
