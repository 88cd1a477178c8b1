//! Keyspace: one model in one routing group (workers that serve requests together), whose engines may share blocks. A
//! keyspace has one block size, one index, and the streams that fill the index.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use kvatlas_adopt::RankAdoption;
use kvatlas_index::snapshot::Dictionary;
use kvatlas_index::{BlockIndex, Config};
use kvatlas_wire::Identity;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::hybrids::Hybrids;
use super::members::{Members, Reservations};
use super::prompt_queue::PromptQueue;
use super::saved::KeyedPool;
use super::stream::Stream;
use crate::config::{LoadingConfig, PoolConfig};
use crate::error::Error;

/// Maximum number of attempts at a look-up that must be repeated because a stream lost trust during the attempt. During
/// the last attempt, a lock prevents changes of trust.
const TRIES: usize = 8;

/// Blocks of one model in one routing group: an index, the streams that fill it, and the known doubts about these
/// streams, such as lost batches.
pub struct Keyspace {
    /// Name of the model.
    pub model: Box<str>,
    /// Name of the routing group.
    pub routing_group: Box<str>,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// Index of the blocks. If a change to the index panics, an empty index takes its place while the lock `changes` is
    /// held.
    index: ArcSwap<BlockIndex>,
    /// Number of times that the index was replaced by an empty one after a failed change.
    rebuilds: watch::Sender<u64>,
    /// Streams that fill the index, with the doubts about them. Changed only while the lock `changes` is held; queries
    /// read without the lock.
    members: ArcSwap<Members>,
    changes: Mutex<()>,
    /// Number of times that a new doubt about any stream arose, such as a loss of trust. Look-ups compare the number
    /// before and after to detect changes.
    losses: AtomicU64,
    /// Scheme by which the index identifies blocks: content hashes, or 64-bit hashes that also depend on a secret key.
    identity: Arc<Identity>,
    /// Queue of prompts whose tokens may reveal the contents of blocks that engines announced before this service
    /// followed them.
    prompt_queue: Arc<PromptQueue<Self>>,
    /// True if any engine was proved to hold blocks whose contents are unknown.
    waiting: AtomicBool,
    /// True if the tokens of queried prompts may reveal the contents of blocks that engines were proved to hold.
    nameable: AtomicBool,
    /// True if the last query had content hashes, from which engines' block hashes cannot be computed. Updated only
    /// while engines are proved to hold blocks with unknown contents.
    hashed: AtomicBool,
    /// Dictionaries (block hashes with their contents) of snapshots whose blocks could not be proved to be still held;
    /// to be fetched by the thread that learns blocks' contents.
    taught: Mutex<Vec<Arc<Dictionary>>>,
    /// Settings for KV blocks that engines load from outside their device memory.
    loading: LoadingConfig,
    /// Number of blocks removed from shared pools because scans of the pools' directories found no file for them.
    pub gone_from_pools: AtomicU64,
    /// Number of blocks removed from shared pools because an engine's report of cached tokens showed that it had not
    /// loaded them.
    pub missed_in_pools: AtomicU64,
    /// Ranks with hybrid models. Their depths are limited to the blocks that all cache groups can serve.
    hybrids: Hybrids,
    /// True if the next change to the index must panic, for tests.
    #[cfg(test)]
    pub(crate) fail: std::sync::atomic::AtomicBool,
}

impl Keyspace {
    pub(crate) fn new(model: &str, routing_group: &str, block_size: u32) -> Result<Self, Error> {
        let index = new_index(block_size)?;
        Ok(Self {
            model: model.into(),
            routing_group: routing_group.into(),
            block_size,
            index: ArcSwap::from_pointee(index),
            rebuilds: watch::Sender::default(),
            #[cfg(test)]
            fail: std::sync::atomic::AtomicBool::new(false),
            members: ArcSwap::default(),
            changes: Mutex::default(),
            losses: AtomicU64::new(0),
            hybrids: Hybrids::default(),
            identity: Arc::default(),
            prompt_queue: Arc::default(),
            waiting: AtomicBool::new(false),
            nameable: AtomicBool::new(false),
            hashed: AtomicBool::new(false),
            taught: Mutex::default(),
            loading: LoadingConfig::default(),
            gone_from_pools: AtomicU64::new(0),
            missed_in_pools: AtomicU64::new(0),
        })
    }

    /// Returns the keyspace (index of a model and routing group) with the prompt queue, the scheme for identifying
    /// blocks, and the loading settings of a service.
    pub(crate) fn of_service(
        self,
        prompt_queue: Arc<PromptQueue<Self>>,
        identity: Arc<Identity>,
        loading: LoadingConfig,
    ) -> Self {
        loading.tell(&self.index.load());
        Self { prompt_queue, identity, loading, ..self }
    }

    /// Returns the scheme by which the index identifies blocks, and by which the blocks of a queried prompt are hashed.
    #[must_use]
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    pub(crate) fn prompt_queue(&self) -> &Arc<PromptQueue<Self>> {
        &self.prompt_queue
    }

    /// Settings of the pools that the model's engines may load from.
    pub(crate) fn pool_settings(&self) -> &[PoolConfig] {
        &self.loading.pools
    }

    /// True if any engine may have been proved to hold blocks whose contents are unknown.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Relaxed)
    }

    pub(crate) fn set_waiting(&self, waiting: bool) {
        if waiting != self.is_waiting() {
            self.waiting.store(waiting, Relaxed);
        }
    }

    /// True if, at the last check, the tokens of prompts could reveal the contents of blocks that engines were proved
    /// to hold; false if the hashes of all these blocks cannot be computed.
    pub(crate) fn is_nameable(&self) -> bool {
        self.nameable.load(Relaxed)
    }

    pub(crate) fn set_nameable(&self, nameable: bool) {
        if nameable != self.nameable.load(Relaxed) {
            self.nameable.store(nameable, Relaxed);
        }
    }

    /// Records that the last query was by content hashes (true) or by tokens (false). Called while engines are proved
    /// to hold blocks with unknown contents.
    pub(crate) fn was_asked(&self, by_hashes: bool) {
        if by_hashes != self.hashed.load(Relaxed) {
            self.hashed.store(by_hashes, Relaxed);
        }
    }

    /// True if the last query was by content hashes, and queries by tokens might reveal the contents of blocks that
    /// engines were proved to hold.
    pub(crate) fn misses_tokens(&self) -> bool {
        self.is_nameable() && self.hashed.load(Relaxed)
    }

    /// Adds the dictionary (block hashes with their contents) of a snapshot whose blocks could not be proved to be
    /// still held, as its block hashes may still be proved later.
    pub(crate) fn teach(&self, dictionary: &Arc<Dictionary>) {
        let mut taught = self.taught.lock();
        if self.prompt_queue.is_open() && !taught.iter().any(|known| Arc::ptr_eq(known, dictionary)) {
            taught.push(dictionary.clone());
        }
    }

    /// Removes and returns the dictionaries (block hashes with their contents) that were added since the last call.
    pub(crate) fn take_taught(&self) -> Vec<Arc<Dictionary>> {
        std::mem::take(&mut self.taught.lock())
    }

    /// Calls `f` for each rank of each stream, with the index that the stream feeds and the rank's proofs of held
    /// blocks. The stream applies no batches meanwhile.
    pub(crate) fn each_late(&self, mut f: impl FnMut(&Stream, &Arc<BlockIndex>, u32, &mut RankAdoption)) {
        for stream in self.members.load_full().all() {
            stream.proven_blocks().each(|index, rank, late| f(stream, index, rank, late));
        }
    }

    /// Returns all streams, sorted by worker and registered rank.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        self.members.load().all().to_vec()
    }

    /// Returns the index of the blocks of this model and routing group.
    #[must_use]
    pub fn index(&self) -> Guard<Arc<BlockIndex>> {
        self.index.load()
    }

    /// Returns the ranks with hybrid models.
    #[must_use]
    pub fn hybrids(&self) -> &Hybrids {
        &self.hybrids
    }

    /// Returns the number of times that the index was replaced by an empty one after a failed change.
    #[must_use]
    pub fn rebuilds(&self) -> u64 {
        *self.rebuilds.borrow()
    }

    /// Returns a receiver that is notified when the index is replaced after a failed change.
    pub(crate) fn watch_rebuilds(&self) -> watch::Receiver<u64> {
        self.rebuilds.subscribe()
    }

    /// Changes the index. If the change panics, the index is replaced by an empty one, and the panic is logged.
    pub(crate) fn change(&self, change: impl FnOnce(&BlockIndex)) {
        let index = self.index.load_full();
        if self.try_change(&index, change).is_err() {
            tracing::error!(model = %self.model, "a change to the index failed");
        }
    }

    /// Changes an index that is or was the keyspace's. If the change panics, any block in the index may be wrong. The
    /// index is then replaced by an empty one, no stream is trusted, and each stream is read anew.
    ///
    /// # Errors
    /// The payload of the panic.
    pub(crate) fn try_change<T>(
        &self,
        index: &Arc<BlockIndex>,
        change: impl FnOnce(&BlockIndex) -> T,
    ) -> std::thread::Result<T> {
        let changed = catch_unwind(AssertUnwindSafe(|| {
            #[cfg(test)]
            assert!(!self.fail.swap(false, std::sync::atomic::Ordering::Relaxed), "as the test wants it");
            change(index)
        }));
        if changed.is_err() {
            self.rebuild(index);
        }
        changed
    }

    fn rebuild(&self, broken: &Arc<BlockIndex>) {
        let _lock = self.changes.lock();
        // Those that were inside meanwhile fail as well, one after the other.
        if !Arc::ptr_eq(broken, &self.index.load()) {
            return;
        }
        let Ok(index) = new_index(self.block_size) else { return };
        self.loading.tell(&index);
        let members = self.members.load();
        for stream in members.all() {
            stream.status.set_trusted(false);
            stream.status.set_error("internal error: the index is being rebuilt from its streams".to_owned());
            self.update(&members, stream);
        }
        self.index.store(Arc::new(index));
        self.hybrids.clear();
        self.rebuilds.send_modify(|rebuilds| *rebuilds += 1);
        let (model, routing_group) = (&*self.model, &*self.routing_group);
        tracing::error!(model, routing_group, "the index failed and is being rebuilt from its streams");
    }

    /// Sets the trust in a stream that feeds `index`. A stream that feeds an index which has been replaced is never
    /// trusted.
    pub(crate) fn set_trusted(&self, stream: &Stream, index: &Arc<BlockIndex>, trusted: bool) {
        let _lock = self.changes.lock();
        stream.status.set_trusted(trusted && Arc::ptr_eq(index, &self.index.load()));
        self.update(&self.members.load(), stream);
    }

    /// Calls `look`, which reads the index, with the current doubts about the streams, and returns its result.
    ///
    /// A stream loses trust before its blocks are removed. So the result is consistent if no stream has lost trust
    /// during the call; otherwise `look` is called again. `look` must not change the trust in a stream.
    pub fn steady<T>(&self, mut look: impl FnMut(&Reservations) -> T) -> T {
        for _ in 1..TRIES {
            let losses = self.losses.load(Acquire);
            let found = look(&Reservations::among(self.members.load()));
            // Not before what was looked at: the other side of the fence in `lose`.
            fence(Acquire);
            if self.losses.load(Acquire) == losses {
                return found;
            }
        }
        // Whoever is about to lose trust, and then its holdings, waits until this is over.
        let _lock = self.changes.lock();
        look(&Reservations::among(self.members.load()))
    }

    /// Copies all shared pools (stores that several engines load from) that have blocks, for a snapshot.
    pub(crate) fn pools(&self) -> Vec<KeyedPool> {
        let index = self.index();
        tell_time(&index);
        let key = self.identity.key_check();
        index.saved_pools().into_iter().map(|pool| KeyedPool { key, pool }).collect()
    }

    /// Restores shared pools (stores that several engines load from) from a snapshot that was taken `elapsed` seconds
    /// ago.
    pub(crate) fn restore_pools(&self, pools: &[KeyedPool], elapsed: f64) {
        self.change(|index| {
            tell_time(index);
            for KeyedPool { pool, .. } in pools {
                let (model, name, blocks) = (&*self.model, &*pool.name, index.restore_pool(pool, elapsed));
                tracing::info!(
                    model,
                    pool = name,
                    blocks,
                    saved = pool.blocks.len(),
                    "a pool of a snapshot is restored"
                );
            }
        });
    }

    /// Returns the streams of a worker, each with its registered rank, sorted by rank.
    #[must_use]
    pub fn streams_of(&self, worker: &str) -> Vec<(u32, Arc<Stream>)> {
        let members = self.members.load();
        members.of_worker(worker).iter().map(|stream| (stream.registration.rank, stream.clone())).collect()
    }

    /// Returns the stream that supplies the blocks of a worker's rank; `None` if there is none.
    #[must_use]
    pub fn stream(&self, worker: &str, rank: u32) -> Option<Arc<Stream>> {
        self.members.load().feeder(worker, rank).cloned()
    }

    /// True if any stream fills the index.
    #[must_use]
    pub fn has_streams(&self) -> bool {
        !self.members.load().all().is_empty()
    }

    /// Adds a stream, which from now on fills the index.
    ///
    /// # Errors
    /// The stream that already supplies the blocks of the same rank.
    pub(crate) fn add(&self, stream: &Arc<Stream>) -> Result<(), Arc<Stream>> {
        let _lock = self.changes.lock();
        let members = self.members.load();
        if let Some(other) = members.feeder(&stream.worker, stream.registration.rank) {
            return Err(other.clone());
        }
        self.replace(members.with(stream));
        Ok(())
    }

    /// Removes the streams of a worker that are registered for these ranks.
    pub(crate) fn remove(&self, worker: &str, ranks: &[u32]) {
        let _lock = self.changes.lock();
        let members = self.members.load();
        for stream in members.of_worker(worker).iter().filter(|stream| ranks.contains(&stream.registration.rank)) {
            stream.ranks().into_iter().for_each(|rank| self.hybrids.set(&stream.worker, rank, None));
        }
        self.replace(members.without(worker, ranks));
    }

    /// Determines the rank under which the blocks of a batch are stored, if the batch names the rank `announced`. The
    /// result is `announced`, or the stream's registered rank if another stream supplies the blocks of `announced` or
    /// this stream has too many ranks.
    pub(crate) fn claim(&self, stream: &Stream, announced: u32) -> u32 {
        let _lock = self.changes.lock();
        if stream.feeds(announced) {
            return announced;
        }
        if self.members.load().feeder(&stream.worker, announced).is_some() || !stream.feed(announced) {
            return stream.registration.rank;
        }
        announced
    }

    /// Updates the doubts about a stream (untrusted, partial, unverified and others), after its trust or a flag of its
    /// status has changed.
    pub(crate) fn trust_changed(&self, stream: &Stream) {
        let _lock = self.changes.lock();
        self.update(&self.members.load(), stream);
    }

    fn replace(&self, members: Members) {
        self.members.store(Arc::new(members));
        // What was said against a stream just now may be in them already, and is news to whoever looks at the old ones.
        self.lose();
    }

    fn update(&self, members: &Members, stream: &Stream) {
        if members.update(stream) {
            self.lose();
        }
    }

    /// Counts a new doubt about a stream, such as a loss of trust. A query that reads changes made to the index after
    /// this call also reads the new count.
    fn lose(&self) {
        self.losses.fetch_add(1, Release);
        fence(SeqCst);
    }
}

fn new_index(block_size: u32) -> Result<BlockIndex, Error> {
    let config = Config { block_size, count_copies: true };
    BlockIndex::new(config).map_err(|error| Error::invalid(error.code(), error.to_string()))
}

#[cfg(test)]
mod tests;

/// Sets the current time of an index, from which the ages of blocks in shared pools are computed. Does nothing if the
/// index has no pools.
pub(crate) fn tell_time(index: &BlockIndex) {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    if index.has_loadable() {
        index.set_time(START.elapsed().as_secs_f64());
    }
}
