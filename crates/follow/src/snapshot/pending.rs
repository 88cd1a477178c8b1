//! Streams of loaded snapshots that wait until their engines are registered.

use std::sync::Arc;

use hashbrown::HashMap;
use kvatlas_index::snapshot::Dictionary;

use super::format::Snapshot;
use crate::state::{KeyedPool, Keyspace, SavedKeyspace, SavedStream, Stream, StreamCopy};
use kvatlas_stream::Outcome;

/// Origin of a snapshot: its kind, and a path or URL.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// Kind of origin: `disk`, `peer` for another service, or `store` for the NATS object store.
    pub(crate) kind: &'static str,
    /// Path or URL from which the snapshot was read.
    pub(crate) file: String,
}

/// Saved state of a stream, as handed to the stream's task.
#[derive(Debug)]
pub(crate) struct StreamRestore {
    pub(crate) kind: &'static str,
    /// Time at which the snapshot was made, in seconds since 1970.
    pub(crate) created: f64,
    pub(crate) dictionary: Arc<Dictionary>,
    pub(crate) stream: SavedStream,
}

/// Report of a stream's saved state that cannot be used.
#[derive(Debug)]
pub(super) struct RestoreFailure {
    /// Reason why the stream's saved state cannot be used.
    pub(super) outcome: Outcome,
    /// Dictionary of the block hashes in the saved state, with their contents; `None` if content hashes are no longer
    /// computed in the same way.
    pub(super) dictionary: Option<Arc<Dictionary>>,
}

/// Keyspace (model and routing group) of a loaded snapshot, with the streams whose engines are not registered yet.
#[derive(Debug)]
struct KeyspaceRestore {
    kind: &'static str,
    created: f64,
    model: String,
    routing_group: String,
    block_size: u32,
    dictionary: Arc<Dictionary>,
    streams: HashMap<(String, u32), SavedStream>,
    pools: Vec<KeyedPool>,
}

/// Keyspaces (models and routing groups) of all loaded snapshots, with the streams whose engines are not registered
/// yet; newest snapshot first.
#[derive(Debug, Default)]
pub(super) struct PendingRestores(Vec<KeyspaceRestore>);

impl PendingRestores {
    /// Adds the streams of a loaded snapshot. Returns the number of streams and the number of blocks added.
    pub(super) fn add(&mut self, snapshot: Snapshot, origin: Origin) -> (u64, u64) {
        let (mut streams, mut blocks) = (0, 0);
        for keyspace in snapshot.keyspaces {
            let SavedKeyspace { model, routing_group, block_size, dictionary, streams: all, pools } = keyspace;
            streams += all.len() as u64;
            blocks += all.iter().map(SavedStream::blocks).sum::<u64>();
            self.0.push(KeyspaceRestore {
                kind: origin.kind,
                created: snapshot.head.created,
                model,
                routing_group,
                block_size,
                dictionary: Arc::new(dictionary),
                streams: all.into_iter().map(|it| ((it.head.worker.clone(), it.head.rank), it)).collect(),
                pools,
            });
        }
        self.0.sort_by(|a, b| b.created.total_cmp(&a.created));
        (streams, blocks)
    }

    /// Removes and returns the newest saved state of a stream, and drops older ones.
    pub(super) fn take(
        &mut self,
        keyspace: &Keyspace,
        stream: &Stream,
    ) -> Option<Result<StreamRestore, RestoreFailure>> {
        let key = (stream.worker.to_string(), stream.registration.rank);
        let mut taken = None;
        for waiting in self.0.iter_mut().filter(|it| it.is(keyspace)) {
            let Some(saved) = waiting.streams.remove(&key) else { continue };
            if taken.is_none() {
                taken = Some(waiting.restoring(keyspace, stream, saved));
            }
        }
        self.0.retain(|waiting| !waiting.streams.is_empty() || !waiting.pools.is_empty());
        taken
    }

    /// Removes the shared pools of a keyspace (model and routing group) from the newest snapshot whose content hashes
    /// depend on the same secret key, and returns them with the snapshot's time. Pools of older snapshots are dropped.
    pub(super) fn take_pools(&mut self, keyspace: &Keyspace) -> Option<(f64, Vec<KeyedPool>)> {
        let mut newest = None;
        for waiting in self.0.iter_mut().filter(|it| it.is(keyspace) && !it.pools.is_empty()) {
            let mut pools = std::mem::take(&mut waiting.pools);
            let key = keyspace.identity().key_check();
            pools.retain(|it| waiting.block_size == keyspace.block_size && it.key == key);
            if newest.is_none() && !pools.is_empty() {
                newest = Some((waiting.created, pools));
            }
        }
        newest
    }

    /// Copies the shared pools of a keyspace (model and routing group) that have been loaded and not been restored yet,
    /// newest first, for the next snapshot.
    pub(super) fn pools(&self, model: &str, routing_group: &str, block_size: u32) -> Vec<KeyedPool> {
        let all = self.0.iter().filter(|it| it.is_named(model, routing_group, block_size));
        all.flat_map(|it| it.pools.iter().cloned()).collect()
    }

    /// Returns the sequence numbers up to which the NATS log was read, one for each loaded stream that is read from the
    /// log, as given by its newest saved state.
    pub(super) fn sequences(&self) -> Vec<u64> {
        let mut newest = HashMap::new();
        for waiting in &self.0 {
            for (key, stream) in &waiting.streams {
                newest.entry((&*waiting.model, &*waiting.routing_group, key)).or_insert(stream.head.sequence);
            }
        }
        newest.into_values().flatten().collect()
    }

    /// Removes all waiting streams, and returns the worker and the number of blocks of each.
    pub(super) fn drain(&mut self) -> Vec<(String, u64)> {
        let streams = self.0.drain(..).flat_map(|waiting| waiting.streams.into_values());
        streams.map(|stream| (stream.head.worker.clone(), stream.blocks())).collect()
    }

    /// Returns the model, routing group and block size of each keyspace that has waiting streams.
    pub(super) fn keyspaces(&self) -> Vec<(String, String, u32)> {
        self.0.iter().map(|it| (it.model.clone(), it.routing_group.clone(), it.block_size)).collect()
    }

    /// Copies the streams of a keyspace (model and routing group) that have been loaded and not been restored yet, for
    /// the next snapshot.
    pub(super) fn copies(&self, model: &str, routing_group: &str, block_size: u32) -> Vec<StreamCopy> {
        let all = self.0.iter().filter(|it| it.is_named(model, routing_group, block_size));
        all.flat_map(|it| it.streams.values().map(|stream| stream.to_copy(&it.dictionary))).collect()
    }
}

impl KeyspaceRestore {
    fn is_named(&self, model: &str, routing_group: &str, block_size: u32) -> bool {
        (&*self.model, &*self.routing_group, self.block_size) == (model, routing_group, block_size)
    }

    fn is(&self, keyspace: &Keyspace) -> bool {
        *self.model == *keyspace.model && *self.routing_group == *keyspace.routing_group
    }

    fn restoring(
        &self,
        keyspace: &Keyspace,
        stream: &Stream,
        saved: SavedStream,
    ) -> Result<StreamRestore, RestoreFailure> {
        let registration = &stream.registration;
        let means_the_same =
            self.block_size == keyspace.block_size && saved.head.key == keyspace.identity().key_check();
        let unusable =
            |outcome| RestoreFailure { outcome, dictionary: means_the_same.then(|| self.dictionary.clone()) };
        if registration.replay_endpoint.is_none() && registration.endpoint.log_subject().is_none() {
            return Err(unusable(Outcome::NoReplay));
        }
        let is_same = means_the_same
            && saved.head.topic == registration.topic
            && saved.head.count_copies == registration.count_copies;
        if !is_same {
            return Err(unusable(Outcome::Settings));
        }
        Ok(StreamRestore { kind: self.kind, created: self.created, dictionary: self.dictionary.clone(), stream: saved })
    }
}
