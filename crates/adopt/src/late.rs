//! Adoption for one stream: what its batches prove, how its engine names blocks, and which blocks are adopted.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use kvatlas_index::{Adoption, BlockHash, BlockIndex, Error, Roots, Tier};
use kvatlas_wire::{BatchOf, EventOf, Reader, StoredOf};

use crate::chains::Chain;
use crate::dialect::{Dialect, Scheme};
use crate::frontier::{Frontier, FrontierState, Moment};

/// Number of prompts' first blocks that are tried before an engine's names count as being of no known dialect.
const TRIES: u32 = 64;

/// Rank whose blocks are adopted: its worker, and the index that has its blocks.
#[derive(Clone, Copy)]
pub struct RankPlace<'a> {
    /// Index that has the rank's blocks.
    pub index: &'a BlockIndex,
    /// Name of the worker.
    pub worker: &'a str,
    /// Number of the rank under which blocks are stored.
    pub rank: u32,
}

/// Reason why proved blocks are not adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdoptionFailure {
    /// A block counts for only some of the engine's cache groups, or its name depends on tokens after it.
    Groups,
    /// More blocks were removed since the proof than are remembered, or there is no proof.
    Unproved,
    /// One of the names is already held with another content.
    Contrary,
    /// The index is full.
    Full,
}

/// Outcome of an attempt to adopt blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Blocks were adopted: this many are held now and were not before.
    Blocks(usize),
    /// Nothing was adopted, for this reason.
    Not(AdoptionFailure),
}

/// Counts of adoptions and of failed attempts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Number of adoptions, each of the blocks up to a proved name, or of those that an engine took from its cache.
    pub adoptions: u64,
    /// Number of blocks adopted.
    pub blocks: u64,
    /// Number of attempts that failed because a name is held with another content.
    pub contrary: u64,
    /// Number of prompts' first blocks whose names are not of the stream's dialect.
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

/// Proofs of what one rank of a worker holds, and the dialect of its block names.
#[derive(Debug, Default)]
pub struct RankAdoption {
    frontier: Frontier,
    roots: Roots,
    dialect: Option<Dialect>,
    tries: u32,
    /// True if cache groups or lookahead keep a name from proving all blocks before it.
    grouped: bool,
    /// True if an unknown block was ever proved, or the engine may hold more than is known.
    was_late: bool,
    /// True once the stream's first batch was applied.
    settled: bool,
    /// Blocks that are held because an engine's answer reported them. Answers may be faster than batches, so the next
    /// store of that block may announce the same copy.
    answered: HashSet<BlockHash>,
    /// Adopted names with their salts, still to be passed to the stream's reader.
    salted: Vec<(Vec<BlockHash>, Arc<str>)>,
    /// Counts of adoptions and of failed attempts.
    pub counts: Counts,
    /// Scratch space, kept so that its memory is reused.
    removed: Vec<BlockHash>,
}

impl RankAdoption {
    /// Creates the state of a rank, which remembers at most `removals` removals.
    #[must_use]
    pub fn with_removals(removals: usize) -> Self {
        Self { frontier: Frontier::with_removals(removals), ..Self::default() }
    }

    /// Updates the proofs by a batch that was just applied. `partial`: whether the engine may hold more than it has
    /// announced here; of an engine whose holdings are fully known, nothing is remembered. `time`: returns the present
    /// time; `schemes`: how names may be computed.
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

    /// Drops all proofs, because the stream's blocks are gone or a batch was missed.
    pub fn forget(&mut self) {
        self.frontier.forget();
        self.roots.clear();
        self.salted.clear();
        self.answered.clear();
        self.removed.clear();
    }

    /// Starts anew for a new life of the engine, or another engine.
    pub fn begin(&mut self) {
        self.forget();
        (self.dialect, self.tries, self.settled) = (None, 0, false);
    }

    /// Frontier of the rank: names of blocks that it has proved to hold.
    #[must_use]
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Frontier of the rank, to be changed.
    pub fn frontier_mut(&mut self) -> &mut Frontier {
        &mut self.frontier
    }

    /// Dialect of the engine's block names; `None` if unknown.
    #[must_use]
    pub fn dialect(&self) -> Option<&Dialect> {
        self.dialect.as_ref()
    }

    /// True if enough dialects and prompts were tried to conclude that the engine's names cannot be computed.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.dialect.is_none() && self.tries >= TRIES
    }

    /// True if all the engine's names have one dialect, so that equal names in two streams mean equal blocks.
    #[must_use]
    pub fn is_pure(&self) -> bool {
        self.dialect.is_some() && self.counts.other_names == 0
    }

    /// True if the rank has ever proved an unknown block, or may hold more than is known.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.was_late
    }

    /// Reason why the names of proved blocks cannot be computed; `None` if they can.
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

    /// Sets the rank's dialect, unless one is known, after it led from some tokens to a name on the frontier, which
    /// cannot be by accident.
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

    /// Adopts the blocks that a name on the frontier proves: those of `chain` up to the name. `chain` may continue
    /// after it.
    ///
    /// `certain`: whether the names were computed from the contents of the blocks.
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

    /// Adopts blocks by an engine's report that it took the first `depth` blocks of a prompt, sent at `sent` or later,
    /// from its cache.
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

    /// Passes the salts of adopted blocks to the stream's reader.
    pub fn tell_salts(&mut self, reader: &mut Reader) {
        for (names, salt) in self.salted.drain(..) {
            reader.learn_salt(&names, &salt);
        }
    }

    /// Names of blocks held only because an engine's answer reported them; no batch has named them since.
    pub fn answered(&self) -> impl Iterator<Item = BlockHash> {
        self.answered.iter().copied()
    }

    /// Continues from another rank's state with the same blocks: its [`answered`](Self::answered) blocks, and what was
    /// [`kept`](Frontier::kept) of its frontier.
    ///
    /// The next batch does not count as the first: if all of the engine's holdings are known, a parent that is not held
    /// proves no more than it did to the other rank's state.
    pub fn resume(&mut self, answered: impl IntoIterator<Item = BlockHash>, kept: &FrontierState) {
        self.answered.extend(answered);
        self.frontier.resume(kept);
        self.was_late |= !self.frontier.is_empty();
        self.settled = true;
    }

    /// Prepares for a batch before it is applied: passes salts to the reader, and takes back copies of blocks known
    /// from answers that the batch announces itself.
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

/// True if a store event can be read and concerns the device.
fn is_readable(stored: &StoredOf<BlockHash>, index: &BlockIndex) -> bool {
    let (blocks, size) = (stored.block_hashes.len(), stored.block_size);
    let fills = blocks.checked_mul(size as usize) == Some(stored.tokens.len());
    blocks > 0 && size == index.config().block_size && fills && stored.tier() == Tier::Gpu
}
