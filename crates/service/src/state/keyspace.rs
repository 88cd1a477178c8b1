//! What may share blocks: a model under a routing group, with one block size, one index, and the streams that fill it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use kvatlas_index::{BlockIndex, Config};
use tokio::sync::watch;

use super::lock;
use super::stream::Stream;
use super::untrusted::Untrusted;
use crate::error::Error;

/// How often a question is put again because streams came to be untrusted under it. Once in a while one does; if one
/// did each time, the last answer would have to do.
const TRIES: usize = 8;

/// The streams of each worker, by registered rank.
type Streams = BTreeMap<Arc<str>, BTreeMap<u32, Arc<Stream>>>;

/// One index, who fills it, and who is not to be trusted in it.
pub struct Keyspace {
    /// The model's name.
    pub model: Box<str>,
    /// The routing group.
    pub routing_group: Box<str>,
    /// Tokens in a block.
    pub block_size: u32,
    /// Who holds what. Another one takes its place, under the lock of `streams`, when a change of it has failed.
    index: ArcSwap<BlockIndex>,
    /// How often that has happened.
    rebuilds: watch::Sender<u64>,
    streams: Mutex<Streams>,
    /// Changes only under the lock of `streams`; queries read it without.
    untrusted: ArcSwap<Untrusted>,
    /// Whether the next change is to fail.
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
            streams: Mutex::default(),
            untrusted: ArcSwap::default(),
        })
    }

    /// Who holds what.
    #[must_use]
    pub fn index(&self) -> Guard<Arc<BlockIndex>> {
        self.index.load()
    }

    /// How often the index was made anew.
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
            tracing::error!(model = %self.model, "a change of the index failed");
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
        let streams = lock(&self.streams);
        // Those that were inside meanwhile fail as well, one after the other.
        if !Arc::ptr_eq(broken, &self.index.load()) {
            return;
        }
        let Ok(index) = new_index(self.block_size) else { return };
        for stream in streams.values().flat_map(BTreeMap::values) {
            stream.status.set_trusted(false);
            stream.status.set_error("an internal error: the index is built anew from its streams".to_owned());
        }
        self.refresh(&streams);
        self.index.store(Arc::new(index));
        self.rebuilds.send_modify(|rebuilds| *rebuilds += 1);
        let (model, routing_group) = (&*self.model, &*self.routing_group);
        tracing::error!(model, routing_group, "the index failed and is built anew from its streams");
    }

    /// A stream, which feeds this index, came to be trusted or not to be. Whoever feeds one that is replaced is not.
    pub(crate) fn set_trusted(&self, stream: &Stream, index: &Arc<BlockIndex>, trusted: bool) {
        let streams = lock(&self.streams);
        stream.status.set_trusted(trusted && Arc::ptr_eq(index, &self.index.load()));
        self.refresh(&streams);
    }

    /// Looks into the index, and tells `look` whom not to trust in what it finds.
    ///
    /// A stream is untrusted before what it holds is cleared. So what `look` found is put down to the right streams if
    /// none came to be untrusted meanwhile; else it is called again.
    pub fn steady<T>(&self, mut look: impl FnMut(&Untrusted) -> T) -> T {
        let mut tries = 0;
        loop {
            let untrusted = self.untrusted.load();
            let found = look(&untrusted);
            tries += 1;
            if tries == TRIES || self.untrusted.load().is_as_good_as(&untrusted) {
                return found;
            }
        }
    }

    /// The streams of a worker, by registered rank.
    #[must_use]
    pub fn streams_of(&self, worker: &str) -> Vec<(u32, Arc<Stream>)> {
        let streams = lock(&self.streams);
        streams.get(worker).into_iter().flatten().map(|(rank, stream)| (*rank, stream.clone())).collect()
    }

    /// The stream that feeds a worker's rank: there is one at most.
    #[must_use]
    pub fn stream(&self, worker: &str, rank: u32) -> Option<Arc<Stream>> {
        feeder(&lock(&self.streams), worker, rank).cloned()
    }

    pub(crate) fn has_streams(&self) -> bool {
        !lock(&self.streams).is_empty()
    }

    /// Adds a stream.
    ///
    /// # Errors
    /// The stream that feeds its rank already.
    pub(crate) fn add(&self, stream: &Arc<Stream>) -> Result<(), Arc<Stream>> {
        let mut streams = lock(&self.streams);
        let rank = stream.registration.rank;
        if let Some(other) = feeder(&streams, &stream.worker, rank) {
            return Err(other.clone());
        }
        streams.entry(stream.worker.clone()).or_default().insert(rank, stream.clone());
        self.refresh(&streams);
        Ok(())
    }

    /// Removes a worker's streams with these registered ranks.
    pub(crate) fn remove(&self, worker: &str, ranks: &[u32]) {
        let mut streams = lock(&self.streams);
        if let Some(of_worker) = streams.get_mut(worker) {
            of_worker.retain(|rank, _| !ranks.contains(rank));
            if of_worker.is_empty() {
                streams.remove(worker);
            }
        }
        self.refresh(&streams);
    }

    /// The rank to store a batch under that names `announced`: that one, unless another stream feeds it already or this
    /// one feeds too many; then the registered one.
    pub(crate) fn claim(&self, stream: &Stream, announced: u32) -> u32 {
        let streams = lock(&self.streams);
        if stream.feeds(announced) {
            return announced;
        }
        if feeder(&streams, &stream.worker, announced).is_some() || !stream.feed(announced) {
            return stream.registration.rank;
        }
        self.refresh(&streams);
        announced
    }

    /// To be called when a stream came not to be trusted, to be partial, or its depths came to be upper bounds.
    pub(crate) fn trust_changed(&self) {
        self.refresh(&lock(&self.streams));
    }

    fn refresh(&self, streams: &Streams) {
        self.set_untrusted(Untrusted::among(streams.values().flat_map(BTreeMap::values)));
    }

    /// Calls come one after the other.
    fn set_untrusted(&self, untrusted: Untrusted) {
        let untrusted = untrusted.after(&self.untrusted.load());
        self.untrusted.store(Arc::new(untrusted));
    }
}

fn new_index(block_size: u32) -> Result<BlockIndex, Error> {
    let config = Config { block_size, count_copies: true };
    BlockIndex::new(config).map_err(|error| Error::invalid(error.code(), error.to_string()))
}

fn feeder<'a>(streams: &'a Streams, worker: &str, rank: u32) -> Option<&'a Arc<Stream>> {
    let of_worker = streams.get(worker)?;
    of_worker.get(&rank).or_else(|| of_worker.values().find(|stream| stream.feeds(rank)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(keyspace: &Keyspace, ranks: &[u32]) {
        let ranks = ranks.iter().map(|rank| ("w".into(), *rank)).collect();
        keyspace.set_untrusted(Untrusted::of(ranks));
    }

    /// What `steady` was told at each call, if this becomes untrusted during the first.
    fn told(before: &[u32], meanwhile: &[&[u32]]) -> Vec<Vec<u32>> {
        let keyspace = Keyspace::new("m", "g", 4).expect("a block size");
        set(&keyspace, before);
        let mut told = Vec::new();
        keyspace.steady(|untrusted| {
            told.push((0..9).filter(|rank| untrusted.contains(&"w".into(), *rank)).collect());
            if told.len() == 1 {
                meanwhile.iter().for_each(|ranks| set(&keyspace, ranks));
            }
        });
        told
    }

    #[test]
    fn who_loses_trust_while_somebody_looks_is_not_trusted_in_the_answer() {
        assert_eq!(told(&[1], &[]), [[1]]);
        assert_eq!(told(&[1], &[&[1, 2]]), [vec![1], vec![1, 2]]);
        // Cleared, read anew, trusted again: what was found may be of the time between.
        assert_eq!(told(&[], &[&[2], &[]]), vec![Vec::<u32>::new(); 2]);
        // Who gains it is left out of this answer still.
        assert_eq!(told(&[1, 2], &[&[2]]), [[1, 2]]);
    }

    #[test]
    fn an_answer_comes_in_the_end() {
        let keyspace = Keyspace::new("m", "g", 4).expect("a block size");
        let mut calls = 0;
        keyspace.steady(|_| {
            calls += 1;
            set(&keyspace, &[calls]);
        });
        assert_eq!(calls as usize, TRIES);
    }
}
