//! Work of the adoption thread: computes the block hashes of prompts, and adds the blocks that engines are proved to
//! hold to the index although no batch announced them.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Instant;

use kvatlas_adopt::{AdoptionFailure, Chain, Chains, Dialect, Namer, Outcome, RankAdoption, RankPlace, Scheme};
use kvatlas_index::hash::next_prefix_hash;
use kvatlas_index::{BlockHash, BlockIndex};

use super::meanings::Meanings;
use crate::state::{AdoptCounts, CacheReport, Keyspace, Prompt, Stream};

/// Stages of hashing, as numbers of a prompt's leading blocks. All prompts complete a stage before any of them proceeds
/// to the next.
const STAGES: [usize; 4] = [64, 256, 1024, usize::MAX];
/// Maximum number of prompts that are remembered as already processed.
const MOST_TRIED: usize = 1 << 16;
/// Minimum number of equal block hashes in two streams that proves that both engines compute block hashes in the same
/// way.
const ENOUGH: usize = 64;
/// Maximum number of prompts whose block hashes are being computed at a time.
const MOST_PROMPTS: usize = 4096;

/// Task of computing the block hashes of one prompt.
struct NamingTask {
    keyspace: Arc<Keyspace>,
    tokens: Box<[u32]>,
    salt: Option<Arc<str>>,
    contents: Vec<u64>,
    /// Number of the prompt's leading blocks whose block hashes have been computed so far.
    done: usize,
    by: Vec<SchemeNames>,
}

/// Block hashes of a prompt by one hashing scheme, in each dialect (form of sending a hash) that an engine may use.
struct SchemeNames {
    namer: Namer,
    dialects: Vec<(Dialect, Vec<BlockHash>)>,
}

/// State of the adoption thread: prompts whose block hashes are to be computed, and contents of block hashes from
/// snapshots.
pub(super) struct Work {
    schemes: Arc<[Scheme]>,
    chains: Chains,
    /// Hashes of the prompts that have been processed or are in process.
    tried: HashSet<u64>,
    stages: [VecDeque<NamingTask>; STAGES.len()],
    /// Contents of block hashes from snapshots whose blocks could not be proved to be still held, with the keyspace
    /// (model and routing group) of each snapshot.
    meanings: Vec<(Weak<Keyspace>, Meanings)>,
}

impl Work {
    pub(super) fn new(schemes: Arc<[Scheme]>) -> Self {
        Self {
            schemes,
            chains: Chains::default(),
            tried: HashSet::new(),
            stages: Default::default(),
            meanings: Vec::new(),
        }
    }

    /// True if no prompt waits for its block hashes to be computed.
    pub(super) fn is_idle(&self) -> bool {
        !self.has_prompts()
    }

    pub(super) fn has_prompts(&self) -> bool {
        self.stages.iter().any(|stage| !stage.is_empty())
    }

    /// True if all prompts have completed the first stage of hashing, which covers their first blocks.
    pub(super) fn is_shallow_done(&self) -> bool {
        self.stages[0].is_empty()
    }

    /// Accepts a prompt for the computation of its block hashes. If the prompt comes with an engine's report of cached
    /// tokens, uses the report at once instead.
    pub(super) fn begin(&mut self, prompt: Prompt<Keyspace>, counts: &AdoptCounts) {
        let Some(keyspace) = prompt.keyspace.upgrade() else { return };
        let Prompt { tokens, salt, answered, .. } = prompt;
        let contents = keyspace.identity().words(&tokens, keyspace.block_size as usize, None, salt.as_deref());
        if let Some(answered) = answered {
            return self.answered(&keyspace, &tokens, salt, contents, &answered, counts);
        }
        let schemes = self.schemes_of(&keyspace);
        let Some((&first, rest)) = contents.split_first() else { return };
        let whole = rest.iter().fold(first, |prefix, content| next_prefix_hash(prefix, *content));
        let key = next_prefix_hash(whole, schemes.len() as u64);
        if self.tried.len() >= MOST_TRIED {
            self.tried.clear();
        }
        let waiting: usize = self.stages.iter().map(VecDeque::len).sum();
        if schemes.is_empty() || !self.tried.insert(key) {
            return;
        }
        if waiting >= MOST_PROMPTS {
            self.tried.remove(&key);
            counts.prompts_dropped.fetch_add(1, Relaxed);
            return;
        }
        counts.prompts.fetch_add(1, Relaxed);
        let by = schemes.into_iter().map(|(scheme, dialects)| {
            let namer = scheme.namer(salt.as_deref());
            SchemeNames { namer, dialects: dialects.into_iter().map(|dialect| (dialect, Vec::new())).collect() }
        });
        let by = by.collect();
        self.stages[0].push_back(NamingTask { keyspace, tokens, salt, contents, done: 0, by });
    }

    /// Computes the block hashes of one prompt's next stage. Prompts with the fewest hashed blocks come first.
    pub(super) fn step(&mut self, counts: &AdoptCounts) {
        let Some(stage) = self.stages.iter().position(|stage| !stage.is_empty()) else { return };
        let Some(mut naming) = self.stages[stage].pop_front() else { return };
        let from = naming.done;
        let to = STAGES[stage].min(naming.contents.len());
        let size = naming.keyspace.block_size as usize;
        for SchemeNames { namer, dialects } in &mut naming.by {
            for block in naming.tokens[from * size..to * size].chunks_exact(size) {
                let digest = namer.next(block);
                for (dialect, names) in &mut *dialects {
                    names.push(digest.name(dialect.form));
                }
            }
            for (_, names) in dialects {
                let parent = from.checked_sub(1).map(|before| names[before]);
                self.chains.add(parent, &names[from..], &naming.contents[from..to], naming.salt.as_ref());
            }
        }
        counts.named_blocks.fetch_add(((to - from) * naming.by.len()) as u64, Relaxed);
        naming.done = to;
        self.match_up(&naming, from, counts);
        if self.chains.shrink() {
            // What was named may have to be named again.
            self.tried.clear();
        }
        if to < naming.contents.len() {
            self.stages[stage + 1].push_back(naming);
        }
    }

    /// Adds to the index the blocks of a prompt that engines' streams have proved to be held. Considers the prompt's
    /// block hashes from position `from` on. `counts` has the counters of blocks added and refused.
    fn match_up(&self, naming: &NamingTask, from: usize, counts: &AdoptCounts) {
        for (dialect, names) in naming.by.iter().flat_map(|named| &named.dialects) {
            let mut chain = None;
            naming.keyspace.each_late(|stream, index, rank, late| {
                if late.dialect().is_some_and(|own| own != dialect) || late.frontier().is_empty() {
                    return;
                }
                for &name in names[from..].iter().rev() {
                    if late.frontier().proof(name).is_none() {
                        continue;
                    }
                    late.learn(dialect);
                    let chain = chain.get_or_insert_with(|| Chain {
                        names: names.clone(),
                        contents: naming.contents[..names.len()].to_vec(),
                        salt: naming.salt.clone(),
                    });
                    adopt(&naming.keyspace, (stream, index, rank), late, (name, chain, true), counts);
                }
            });
        }
    }

    /// Takes over the dictionaries (block hashes with their contents) from snapshots that were newly added to a
    /// keyspace.
    pub(super) fn take_up(&mut self, keyspace: &Arc<Keyspace>) {
        for dictionary in keyspace.take_taught() {
            if self.meanings.iter().any(|(_, known)| known.is_of(&dictionary)) {
                continue;
            }
            let blocks = dictionary.names.len();
            match Meanings::new(dictionary) {
                Some(meanings) => self.meanings.push((Arc::downgrade(keyspace), meanings)),
                None => tracing::info!(blocks, "a snapshot that is dropped has too many blocks to learn from them"),
            }
        }
    }

    /// Drops snapshots' tables of block hashes that are too old, or whose keyspaces (indexes) no longer exist.
    pub(super) fn forget_old(&mut self) {
        let now = Instant::now();
        self.meanings.retain(|(keyspace, meanings)| keyspace.strong_count() > 0 && !meanings.is_old(now));
    }

    /// Returns the block hashes and content hashes of the chain that ends with the block `name`, as found in a
    /// snapshot; `None` if no snapshot has the block.
    fn meaning_of(&self, keyspace: &Arc<Keyspace>, name: BlockHash) -> Option<(Vec<BlockHash>, Vec<u64>)> {
        let own = self.meanings.iter().filter(|(whose, _)| whose.as_ptr() == Arc::as_ptr(keyspace));
        own.into_iter().find_map(|(_, meanings)| meanings.chain_of(name))
    }

    /// Compares the block hashes that a keyspace's streams have proved to be held with the known chains of prompts and
    /// snapshots, and adds the blocks found to the index. `sweep` is true to compare all proved hashes, and false for
    /// recently proved ones only.
    pub(super) fn look_at(&self, keyspace: &Arc<Keyspace>, sweep: bool, counts: &AdoptCounts) {
        if sweep {
            keyspace.set_waiting(false);
        }
        let (mut waits, mut nameable) = (false, false);
        keyspace.each_late(|stream, index, rank, late| {
            let names = if sweep {
                late.frontier_mut().expire();
                late.frontier_mut().take_fresh();
                late.frontier().names().collect()
            } else {
                late.frontier_mut().take_fresh()
            };
            nameable |= !late.frontier().is_empty() && late.why_not().is_none();
            if names.is_empty() {
                return;
            }
            let mut others = None;
            for name in names {
                if let Some(chain) = self.chains.up_to(name) {
                    adopt(keyspace, (stream, index, rank), late, (name, &chain, true), counts);
                    continue;
                }
                // Another stream's names are as good, if they are proved to follow what is in the blocks.
                let pure = late.is_pure();
                if !*others.get_or_insert_with(|| pure || index.agrees(&stream.worker, rank, ENOUGH)) {
                    continue;
                }
                let of_snapshot = || self.meaning_of(keyspace, name).filter(|_| pure);
                if let Some((names, contents)) = index.chain_of(name).or_else(of_snapshot) {
                    let chain = Chain { names, contents, salt: None };
                    adopt(keyspace, (stream, index, rank), late, (name, &chain, false), counts);
                }
            }
            waits |= !late.frontier().is_empty();
        });
        if waits {
            keyspace.set_waiting(true);
        }
        keyspace.set_nameable(nameable);
    }

    /// Adds blocks to the index from an engine's report of the number of a prompt's tokens that the engine had cached.
    fn answered(
        &mut self,
        keyspace: &Arc<Keyspace>,
        tokens: &[u32],
        salt: Option<Arc<str>>,
        contents: Vec<u64>,
        answered: &CacheReport,
        counts: &AdoptCounts,
    ) {
        counts.answers.fetch_add(1, Relaxed);
        let mut used = false;
        let mut chain = Chain { contents, salt, ..Chain::default() };
        let size = keyspace.block_size as usize;
        let Some(stream) = keyspace.stream(&answered.worker, answered.rank) else { return };
        stream.proven_blocks().each(|index, rank, late| {
            if rank != answered.rank {
                return;
            }
            let worker = &*stream.worker;
            let mut named = self.named(late, tokens, size, chain.salt.as_deref());
            if late.dialect().is_none() {
                // One of these names that the engine has used says how it names them all.
                named.retain(|(_, names)| index.held(worker, rank, names).contains(&true));
            }
            let Some((dialect, names)) = named.into_iter().next() else { return };
            late.learn(&dialect);
            chain.names = names;
            let adopt = |index: &BlockIndex| {
                late.observe(&chain, answered.blocks, answered.sent, RankPlace { index, worker, rank })
            };
            if let Ok(Outcome::Blocks(blocks)) = keyspace.try_change(index, adopt) {
                counts.blocks.fetch_add(blocks as u64, Relaxed);
                used = true;
            }
        });
        if !used {
            counts.answers_unused.fetch_add(1, Relaxed);
        }
    }

    /// Computes a prompt's block hashes in the dialect (way of hashing blocks) of the stream's engine, or in all known
    /// dialects if the engine's dialect is unknown.
    fn named(
        &self,
        late: &RankAdoption,
        tokens: &[u32],
        size: usize,
        salt: Option<&str>,
    ) -> Vec<(Dialect, Vec<BlockHash>)> {
        let dialects = match late.dialect() {
            Some(dialect) => vec![dialect.clone()],
            None if late.is_foreign() => Vec::new(),
            None => self.schemes.iter().flat_map(dialects_of).collect(),
        };
        let named = dialects.into_iter().map(|dialect| {
            let mut namer = dialect.scheme.namer(salt);
            let names = tokens.chunks_exact(size).map(|block| namer.next(block).name(dialect.form)).collect();
            (dialect, names)
        });
        named.collect()
    }

    /// Lists the hashing schemes, and the forms of sending a hash, by which engines may compute block hashes. Considers
    /// only engines that are proved to hold blocks with unknown contents.
    fn schemes_of(&self, keyspace: &Keyspace) -> Vec<(Scheme, Vec<Dialect>)> {
        let mut wanted: Vec<Dialect> = Vec::new();
        let mut any = false;
        keyspace.each_late(|_, _, _, late| match late.dialect() {
            _ if late.frontier().is_empty() => {}
            Some(dialect) if !wanted.contains(dialect) => wanted.push(dialect.clone()),
            Some(_) => {}
            None => any |= !late.is_foreign(),
        });
        let all = self.schemes.iter().map(|scheme| {
            let forms = dialects_of(scheme).filter(|dialect| any || wanted.contains(dialect));
            (scheme.clone(), forms.collect::<Vec<_>>())
        });
        all.filter(|(_, dialects)| !dialects.is_empty()).collect()
    }
}

fn dialects_of(scheme: &Scheme) -> impl Iterator<Item = Dialect> {
    scheme.forms().iter().map(|form| Dialect { scheme: scheme.clone(), form: *form })
}

/// Adds the blocks of `chain` up to the block `name` to the index, for a rank that is proved to hold that block.
fn adopt(
    keyspace: &Keyspace,
    (stream, index, rank): (&Stream, &Arc<BlockIndex>, u32),
    late: &mut RankAdoption,
    (name, chain, certain): (BlockHash, &Chain, bool),
    counts: &AdoptCounts,
) {
    let worker = &*stream.worker;
    let adopt = |index: &BlockIndex| late.adopt(name, chain, certain, RankPlace { index, worker, rank });
    // If that fails, the index is made anew, and all that was proved is proved again.
    match keyspace.try_change(index, adopt) {
        Ok(Outcome::Blocks(blocks)) => {
            counts.blocks.fetch_add(blocks as u64, Relaxed);
            let depth = chain.names.len();
            tracing::debug!(worker, rank, depth, blocks, "learnt blocks that were announced earlier");
        }
        Ok(Outcome::Not(AdoptionFailure::Contrary)) => {
            counts.contrary.fetch_add(1, Relaxed);
        }
        Ok(Outcome::Not(_)) | Err(_) => {}
    }
}
