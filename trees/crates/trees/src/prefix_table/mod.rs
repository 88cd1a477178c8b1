//! `SyncPrefixHashTable`: the share of a prompt that each pod has, by chained hashes of its blocks of bytes.
//!
//! A table has a context for each model and LoRA adapter; a context has entries, one for each prefix hash, with the set
//! of pods that hold the prefix. The table is updated by engines' events (blocks stored and removed, a pod's cache
//! cleared) and by the router's decisions ([`add_prefix`](SyncPrefixHashTable::add_prefix)), which count as
//! expectations until an event confirms or ends them.
//!
//! The names, the hash and the limits are those of AIBrix's `syncprefixcacheindexer`. Intended differences:
//!
//! | AIBrix | this table |
//! |---|---|
//! | all blocks of an event follow the event's parent | each block follows the one before it |
//! | a block of an unknown parent counts as a first block | the block is not indexed, and counted (`unknown_parents`) |
//! | a pod that holds a late block gets the percent of the whole way | a pod counts up to its first missing block |
//! | one pod's removal removes the prefix from all pods, and the name from all | it removes one copy from that pod |
//! | a name keeps the prefix for which it first stood | the newest announcement of a pod counts |
//! | clearing does nothing | clearing removes a pod from one context or from all |
//! | limits are not enforced, counts go below zero | no call ends with more than a limit allows; counts are lengths |
//! | the percent of a short match rounds to 0 | it is at least 1 |
//! | each context has one time, and events do not count as use | each prefix has a time; stores, additions and matches count |
//! | a seed from the clock | a random seed, or the caller's |
//!
//! An engine's block may be a multiple of the table's: it is then several entries with one name. An entry occupies 32
//! bytes and its share of two hash tables (`entries.rs`); equal sets of pods are stored once (`sets.rs`).
//!
//! ```
//! use kvatlas_trees::prefix_table::{Config, SyncPrefixHashTable};
//!
//! let table = SyncPrefixHashTable::new(Config::default())?;
//! let prompt: Vec<u8> = (0..48).collect();
//! let blocks: Vec<&[u8]> = prompt.chunks(16).collect();
//! table.process_block_stored("llama", -1, "pod-a", None, &[71, 72, 73], &blocks)?;
//! table.process_block_stored("llama", -1, "pod-b", None, &[71], &blocks[..1])?;
//! let (pods, hashes) = table.match_prefix("llama", -1, &prompt, None);
//! assert_eq!(pods, [("pod-b".into(), 33), ("pod-a".into(), 100)]);
//! assert_eq!(hashes.len(), 3);
//! # Ok::<(), kvatlas_trees::prefix_table::Error>(())
//! ```

mod config;
mod context;
mod context_change;
mod contexts;
mod entries;
mod hash;
mod lines;
mod sets;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use config::{BLOCK_SIZE, Config, DURATION, Error, INTERVAL, MAX_CONTEXTS, MAX_PREFIXES};
use context_change::StoreOutcome;
pub use contexts::ModelContext;
use contexts::{Inner, Key, Worker, count};

/// Sizes and counts of a prefix table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of contexts: pairs of model and LoRA adapter.
    pub contexts: usize,
    /// Number of entries in all contexts: prefix hashes with at least one holder.
    pub prefixes: usize,
    /// Number of block hashes by which prefixes were announced, beyond the first of each prefix.
    pub other_names: usize,
    /// Number of different sets of pods that hold a prefix.
    pub pod_sets: usize,
    /// Number of pods in all contexts (pairs of model and adapter); a pod in several contexts counts several times.
    pub pods: usize,
    /// Memory of the prefix table, in bytes.
    pub bytes: usize,
    /// Number of store events whose pod did not hold the parent block.
    pub unknown_parents: u64,
    /// Number of removed blocks that the pod did not hold.
    pub unknown_removals: u64,
    /// Number of prefixes evicted because they were not used for too long.
    pub evicted_by_age: u64,
    /// Number of prefixes evicted because their context (model and adapter) had more than its maximum.
    pub evicted_by_limit: u64,
    /// Number of contexts (pairs of model and LoRA adapter) evicted because there were too many.
    pub evicted_contexts: u64,
}

/// A table of the prefixes that each pod holds, by model and LoRA adapter (see the [module](self)). May be shared by
/// threads.
#[derive(Debug)]
pub struct SyncPrefixHashTable {
    inner: Arc<Inner>,
    worker: Worker,
}

impl SyncPrefixHashTable {
    /// Creates an empty table, and a thread that evicts expired prefixes until [`Self::close`] or the table's end.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for an invalid setting, and [`Error::Thread`].
    pub fn new(config: Config) -> Result<Self, Error> {
        config.check()?;
        let interval = config.eviction_interval;
        let seed = config.seed.unwrap_or_else(|| RandomState::new().hash_one(0));
        let inner = Arc::new(Inner::new(config, seed));
        let worker = Worker::start(Arc::downgrade(&inner), interval, |inner| _ = inner.evict_expired())?;
        Ok(Self { inner, worker })
    }

    /// Settings of the prefix table.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Seed of the prefix hashes. Tables with equal seeds and block sizes have equal hashes.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Computes the prefix hash of each full block of `tokens`.
    #[must_use]
    pub fn get_prefix_hashes(&self, tokens: &[u8]) -> Vec<u64> {
        let Inner { seed, config: Config { block_size, .. }, .. } = *self.inner;
        let mut hashes = Vec::with_capacity(tokens.len() / block_size);
        hash::extend(seed, seed, tokens, block_size, &mut hashes);
        hashes
    }

    /// Finds the share of a prompt that each ready pod holds, in percent of its full blocks. Also returns the prompt's
    /// prefix hashes.
    ///
    /// A pod's share ends at the first block that the pod does not hold. It is rounded down, but at least 1; pods that
    /// do not hold the first block are left out. If `ready` is `None`, all pods are ready. Matched prefixes count as
    /// used. The order of pods is unspecified.
    #[must_use]
    pub fn match_prefix(
        &self,
        model: &str,
        lora_id: i64,
        tokens: &[u8],
        ready: Option<&[&str]>,
    ) -> (Vec<(Arc<str>, u32)>, Vec<u64>) {
        let hashes = self.get_prefix_hashes(tokens);
        let found = self.match_hashes(model, lora_id, &hashes, ready);
        let percent = |(pod, depth): (_, usize)| (pod, (depth * 100 / hashes.len()).max(1) as u32);
        (found.into_iter().map(percent).collect(), hashes)
    }

    /// Finds the number of leading prefixes of a prompt that each ready pod holds. `prefixes`: the prompt's prefix
    /// hashes.
    #[must_use]
    pub fn match_hashes(
        &self,
        model: &str,
        lora_id: i64,
        hashes: &[u64],
        ready: Option<&[&str]>,
    ) -> Vec<(Arc<str>, usize)> {
        let now = self.inner.now();
        let contexts = self.inner.read();
        let Some(shared) = contexts.get(&Key { model, lora_id }) else { return Vec::new() };
        shared.use_now(now);
        shared.read().find(hashes, ready, now)
    }

    /// Records that a pod's engine has cached consecutive blocks, the first of them after the block `parent`, or at the
    /// beginning of a prompt if `None`. Returns the number of the event's blocks that are now known.
    ///
    /// The number is 0 if the pod does not hold the parent, and less than the event has blocks if the event exceeds a
    /// context's limit. A block hash announced before and not removed gains a copy if its content is the same, and
    /// otherwise stands for the new content.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`], and [`Error::BlockBytes`] if the tokens of a block are not one or more whole blocks
    /// of this table.
    pub fn process_block_stored(
        &self,
        model: &str,
        lora_id: i64,
        pod: &str,
        parent: Option<u64>,
        block_hashes: &[u64],
        tokens: &[&[u8]],
    ) -> Result<usize, Error> {
        let block_size = self.inner.config.block_size;
        if block_hashes.len() != tokens.len() {
            return Err(Error::LengthMismatch { block_hashes: block_hashes.len(), blocks: tokens.len() });
        }
        // Nearly all are one block: a division takes as long as a look-up in a cached table.
        let whole =
            |bytes: &[u8]| bytes.len() == block_size || !bytes.is_empty() && bytes.len().is_multiple_of(block_size);
        if let Some(block) = tokens.iter().position(|bytes| !whole(bytes)) {
            return Err(Error::BlockBytes { block, bytes: tokens[block].len(), block_size });
        }
        if tokens.is_empty() {
            return Ok(0);
        }
        let stored = self.inner.write(model, lora_id, parent.is_none(), |context, now, rules| {
            context.store(pod, parent, block_hashes, tokens, rules, now)
        });
        match stored {
            Some(StoreOutcome::Blocks { blocks, evicted }) => {
                count(&self.inner.counters.evicted_by_limit, evicted);
                Ok(blocks)
            }
            Some(StoreOutcome::UnknownParent) | None => {
                count(&self.inner.counters.unknown_parents, 1);
                Ok(0)
            }
        }
    }

    /// Records that a pod's engine has evicted blocks, one copy of each, without an effect on other pods.
    ///
    /// With the last copy of a block, the router's additions of its prefix for the pod end too. A block hash that the
    /// pod does not hold is counted and changes nothing.
    pub fn process_block_removed(&self, model: &str, lora_id: i64, pod: &str, block_hashes: &[u64]) {
        let unknown = self.inner.write(model, lora_id, false, |context, _, _| {
            let unknown = context.remove(pod, block_hashes);
            (unknown, context.len() == 0)
        });
        let (unknown, empty) = unknown.unwrap_or((block_hashes.len(), false));
        count(&self.inner.counters.unknown_removals, unknown);
        if empty {
            self.inner.drop_empty();
        }
    }

    /// Records that a pod's engine has cleared its cache, for one model and adapter, or for all if `context` is `None`.
    pub fn process_all_blocks_cleared(&self, context: Option<(&str, i64)>, pod: &str) {
        if let Some((model, lora_id)) = context {
            self.remove_prefix(model, lora_id, pod);
            return;
        }
        self.inner.read().values().for_each(|shared| _ = shared.write().remove_pod(pod));
        self.inner.drop_empty();
    }

    /// Records that the router sent a prompt with the given prefixes to a pod.
    ///
    /// The pod counts as holding the prefixes until its engine removes them or they expire.
    pub fn add_prefix(&self, model: &str, lora_id: i64, pod: &str, prefix_hashes: &[u64]) {
        if prefix_hashes.is_empty() {
            return;
        }
        let evicted = self.inner.write(model, lora_id, true, |context, now, rules| {
            context.add(pod, prefix_hashes, rules.max_prefixes, now)
        });
        count(&self.inner.counters.evicted_by_limit, evicted.unwrap_or(0));
    }

    /// Removes a pod from one context (model and adapter), with its prefixes, block hashes and copies. O(prefixes of
    /// the context).
    pub fn remove_prefix(&self, model: &str, lora_id: i64, pod: &str) {
        let empty = self.inner.write(model, lora_id, false, |context, _, _| {
            context.remove_pod(pod);
            context.len() == 0
        });
        if empty == Some(true) {
            self.inner.drop_empty();
        }
    }

    /// Evicts expired prefixes now, like the background thread, and returns their number. O(prefixes).
    pub fn evict_expired(&self) -> usize {
        self.inner.evict_expired()
    }

    /// Sizes and counts of the prefix table. O(contexts and different sets of pods).
    #[must_use]
    pub fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.inner.counters;
        let contexts = self.inner.read();
        let mut stats = Stats {
            contexts: contexts.len(),
            bytes: contexts.allocation_size(),
            unknown_parents: get(&counters.unknown_parents),
            unknown_removals: get(&counters.unknown_removals),
            evicted_by_age: get(&counters.evicted_by_age),
            evicted_by_limit: get(&counters.evicted_by_limit),
            evicted_contexts: get(&counters.evicted_contexts),
            ..Stats::default()
        };
        for (key, shared) in contexts.iter() {
            let context = shared.read();
            let (sets, pods) = context.counts();
            stats.prefixes += context.len();
            stats.other_names += context.other_names();
            stats.pod_sets += sets;
            stats.pods += pods;
            stats.bytes += context.bytes() + key.model.len();
        }
        stats
    }

    /// Stops the background thread and waits for its end. Further calls do nothing.
    ///
    /// The table can still be used: its limits hold without the thread, and [`Self::evict_expired`] does the thread's
    /// work.
    pub fn close(&self) {
        self.worker.stop();
    }

    /// True if the table was closed, so that no background thread evicts expired prefixes.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.worker.is_stopped()
    }
}
