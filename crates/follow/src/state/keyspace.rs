//! A keyspace, in which blocks may be shared: a model under a routing group, with one block size, one index, and the
//! streams that fill it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

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
use super::stream::Stream;
use crate::error::Error;

/// Number of times that a question is put because streams came to be untrusted under it. Once in a while one does; if
/// one did each time, they have to wait for the last.
const TRIES: usize = 8;

/// One index, who fills it, and who is not to be trusted in it.
pub struct Keyspace {
    /// The model's name.
    pub model: Box<str>,
    /// The routing group.
    pub routing_group: Box<str>,
    /// Tokens in a block.
    pub block_size: u32,
    /// The index of who holds what. Another one takes its place, under the lock, when a change of it has failed.
    index: ArcSwap<BlockIndex>,
    /// Number of times that another index has taken its place.
    rebuilds: watch::Sender<u64>,
    /// The streams, and whom not to trust. Changes only under the lock; queries read it without.
    members: ArcSwap<Members>,
    changes: Mutex<()>,
    /// Goes up whenever there is more to be said against the answers.
    losses: AtomicU64,
    /// The identity of blocks: what they are called in the index.
    identity: Arc<Identity>,
    /// The queue where prompts are left that may tell what was never announced.
    prompt_queue: Arc<PromptQueue<Self>>,
    /// True if a stream has proved something without saying what it is.
    waiting: AtomicBool,
    /// True if the tokens of a prompt might say what a stream has proved.
    nameable: AtomicBool,
    /// True if the last who asked meanwhile had content hashes, which cannot.
    hashed: AtomicBool,
    /// Dictionaries of snapshots, of blocks that nobody could prove to be held, for whoever learns from them.
    taught: Mutex<Vec<Arc<Dictionary>>>,
    /// The ranks whose depths are cut to what all cache groups can serve.
    hybrids: Hybrids,
    /// True if the next change is to fail.
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
        })
    }

    /// The same, of a service with this queue, where blocks are called so.
    pub(crate) fn of_service(self, prompt_queue: Arc<PromptQueue<Self>>, identity: Arc<Identity>) -> Self {
        Self { prompt_queue, identity, ..self }
    }

    /// The identity of blocks, by which they are called in the index: what to compute of a prompt's tokens before it is
    /// asked.
    #[must_use]
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    pub(crate) fn prompt_queue(&self) -> &Arc<PromptQueue<Self>> {
        &self.prompt_queue
    }

    /// True if a stream may have proved something without saying what it is.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Relaxed)
    }

    pub(crate) fn set_waiting(&self, waiting: bool) {
        if waiting != self.is_waiting() {
            self.waiting.store(waiting, Relaxed);
        }
    }

    /// True if the tokens of a prompt may say what a stream has proved: not of one whose names nobody can compute. It
    /// is as it was when that was looked at last.
    pub(crate) fn is_nameable(&self) -> bool {
        self.nameable.load(Relaxed)
    }

    pub(crate) fn set_nameable(&self, nameable: bool) {
        if nameable != self.nameable.load(Relaxed) {
            self.nameable.store(nameable, Relaxed);
        }
    }

    /// Somebody has asked, while a stream waited for its blocks to be named, by content hashes or by tokens.
    pub(crate) fn was_asked(&self, by_hashes: bool) {
        if by_hashes != self.hashed.load(Relaxed) {
            self.hashed.store(by_hashes, Relaxed);
        }
    }

    /// True if what streams wait for could be learnt if those who ask sent tokens, and the last one did not.
    pub(crate) fn misses_tokens(&self) -> bool {
        self.is_nameable() && self.hashed.load(Relaxed)
    }

    /// The names of a snapshot mean what they meant, even if it is not known who holds their blocks.
    pub(crate) fn teach(&self, dictionary: &Arc<Dictionary>) {
        let mut taught = self.taught.lock();
        if self.prompt_queue.is_open() && !taught.iter().any(|known| Arc::ptr_eq(known, dictionary)) {
            taught.push(dictionary.clone());
        }
    }

    /// Takes what was taught since this was asked last.
    pub(crate) fn take_taught(&self) -> Vec<Arc<Dictionary>> {
        std::mem::take(&mut self.taught.lock())
    }

    /// Calls `f` with what each rank of each stream has proved, and the index that it feeds. The stream waits meanwhile.
    pub(crate) fn each_late(&self, mut f: impl FnMut(&Stream, &Arc<BlockIndex>, u32, &mut RankAdoption)) {
        for stream in self.members.load_full().all() {
            stream.proven_blocks().each(|index, rank, late| f(stream, index, rank, late));
        }
    }

    /// All streams, by worker and registered rank.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        self.members.load().all().to_vec()
    }

    /// The index of who holds what.
    #[must_use]
    pub fn index(&self) -> Guard<Arc<BlockIndex>> {
        self.index.load()
    }

    /// The ranks of hybrid models.
    #[must_use]
    pub fn hybrids(&self) -> &Hybrids {
        &self.hybrids
    }

    /// Number of times that the index was made anew.
    #[must_use]
    pub fn rebuilds(&self) -> u64 {
        *self.rebuilds.borrow()
    }

    /// News of that.
    pub(crate) fn watch_rebuilds(&self) -> watch::Receiver<u64> {
        self.rebuilds.subscribe()
    }

    /// Changes the index. If that fails, the index is made anew, and there is nothing in it to be changed.
    pub(crate) fn change(&self, change: impl FnOnce(&BlockIndex)) {
        let index = self.index.load_full();
        if self.try_change(&index, change).is_err() {
            tracing::error!(model = %self.model, "a change to the index failed");
        }
    }

    /// Changes an index that is or was this keyspace's. A failure inside leaves nobody's blocks certain in it. So an
    /// empty one takes its place, no stream is trusted, and each begins anew.
    ///
    /// # Errors
    /// What the change panicked with.
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

    /// A stream, which feeds this index, came to be trusted or not to be. Whoever feeds one that is replaced is not.
    pub(crate) fn set_trusted(&self, stream: &Stream, index: &Arc<BlockIndex>, trusted: bool) {
        let _lock = self.changes.lock();
        stream.status.set_trusted(trusted && Arc::ptr_eq(index, &self.index.load()));
        self.update(&self.members.load(), stream);
    }

    /// Looks into the index, and tells `look` whom not to trust in what it finds.
    ///
    /// A stream is untrusted before what it holds is cleared. So what `look` found is put down to the right streams if
    /// none came to be untrusted meanwhile; else it is called again. `look` must not change who is trusted.
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

    /// The streams of a worker, by registered rank.
    #[must_use]
    pub fn streams_of(&self, worker: &str) -> Vec<(u32, Arc<Stream>)> {
        let members = self.members.load();
        members.of_worker(worker).iter().map(|stream| (stream.registration.rank, stream.clone())).collect()
    }

    /// The stream that feeds a worker's rank: there is one at most.
    #[must_use]
    pub fn stream(&self, worker: &str, rank: u32) -> Option<Arc<Stream>> {
        self.members.load().feeder(worker, rank).cloned()
    }

    /// True if any engine rank feeds the keyspace.
    #[must_use]
    pub fn has_streams(&self) -> bool {
        !self.members.load().all().is_empty()
    }

    /// Adds a stream.
    ///
    /// # Errors
    /// The stream that feeds its rank already.
    pub(crate) fn add(&self, stream: &Arc<Stream>) -> Result<(), Arc<Stream>> {
        let _lock = self.changes.lock();
        let members = self.members.load();
        if let Some(other) = members.feeder(&stream.worker, stream.registration.rank) {
            return Err(other.clone());
        }
        self.replace(members.with(stream));
        Ok(())
    }

    /// Removes a worker's streams with these registered ranks.
    pub(crate) fn remove(&self, worker: &str, ranks: &[u32]) {
        let _lock = self.changes.lock();
        let members = self.members.load();
        for stream in members.of_worker(worker).iter().filter(|stream| ranks.contains(&stream.registration.rank)) {
            stream.ranks().into_iter().for_each(|rank| self.hybrids.set(&stream.worker, rank, None));
        }
        self.replace(members.without(worker, ranks));
    }

    /// The rank to store a batch under that names `announced`: that one, unless another stream feeds it already or this
    /// one feeds too many; then the registered one.
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

    /// To be called when a stream came not to be trusted, to be partial, or its depths came to be upper bounds.
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

    /// There is more to be said against the answers: who finds what changes after this knows it.
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
