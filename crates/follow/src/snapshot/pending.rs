//! Streams of snapshots that were loaded and wait to be registered.

use std::sync::Arc;

use hashbrown::HashMap;
use kvatlas_index::snapshot::Dictionary;

use super::format::Snapshot;
use crate::state::{Keyspace, SavedKeyspace, SavedStream, Stream, StreamCopy};
use kvatlas_stream::Outcome;

/// The place that a snapshot comes from.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// `disk`, `peer`, or `store` for a log's.
    pub(crate) kind: &'static str,
    /// The file or URL.
    pub(crate) file: String,
}

/// A stream of a snapshot, taken by the stream that begins.
#[derive(Debug)]
pub(crate) struct StreamRestore {
    pub(crate) kind: &'static str,
    /// Seconds since 1970 when the snapshot was made.
    pub(crate) created: f64,
    pub(crate) dictionary: Arc<Dictionary>,
    pub(crate) stream: SavedStream,
}

/// A stream of a snapshot that cannot be used.
#[derive(Debug)]
pub(super) struct RestoreFailure {
    /// The reason why it cannot be used.
    pub(super) outcome: Outcome,
    /// The meanings of its names, if they are as they were.
    pub(super) dictionary: Option<Arc<Dictionary>>,
}

/// A keyspace of a snapshot.
#[derive(Debug)]
struct KeyspaceRestore {
    kind: &'static str,
    created: f64,
    model: String,
    routing_group: String,
    block_size: u32,
    dictionary: Arc<Dictionary>,
    streams: HashMap<(String, u32), SavedStream>,
}

/// All keyspaces of all snapshots that were loaded, the newest first.
#[derive(Debug, Default)]
pub(super) struct PendingRestores(Vec<KeyspaceRestore>);

impl PendingRestores {
    /// Adds a snapshot: how many streams and blocks are in it.
    pub(super) fn add(&mut self, snapshot: Snapshot, origin: Origin) -> (u64, u64) {
        let (mut streams, mut blocks) = (0, 0);
        for keyspace in snapshot.keyspaces {
            let SavedKeyspace { model, routing_group, block_size, dictionary, streams: all } = keyspace;
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
            });
        }
        self.0.sort_by(|a, b| b.created.total_cmp(&a.created));
        (streams, blocks)
    }

    /// Takes the newest that there is of a stream. Nothing of it waits any more.
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
        self.0.retain(|waiting| !waiting.streams.is_empty());
        taken
    }

    /// The places up to which a log was read for each stream that came by one, by what a stream will take: the newest.
    pub(super) fn sequences(&self) -> Vec<u64> {
        let mut newest = HashMap::new();
        for waiting in &self.0 {
            for (key, stream) in &waiting.streams {
                newest.entry((&*waiting.model, &*waiting.routing_group, key)).or_insert(stream.head.sequence);
            }
        }
        newest.into_values().flatten().collect()
    }

    /// Takes all: workers, with the blocks of each stream.
    pub(super) fn drain(&mut self) -> Vec<(String, u64)> {
        let streams = self.0.drain(..).flat_map(|waiting| waiting.streams.into_values());
        streams.map(|stream| (stream.head.worker.clone(), stream.blocks())).collect()
    }

    /// Model, routing group and block size of all keyspaces.
    pub(super) fn keyspaces(&self) -> Vec<(String, String, u32)> {
        self.0.iter().map(|it| (it.model.clone(), it.routing_group.clone(), it.block_size)).collect()
    }

    /// Copies of what waits of a keyspace, as it was loaded: to go into the next snapshot as well.
    pub(super) fn copies(&self, model: &str, routing_group: &str, block_size: u32) -> Vec<StreamCopy> {
        let of = |it: &&KeyspaceRestore| {
            (&*it.model, &*it.routing_group, it.block_size) == (model, routing_group, block_size)
        };
        let all = self.0.iter().filter(of);
        all.flat_map(|it| it.streams.values().map(|stream| stream.to_copy(&it.dictionary))).collect()
    }
}

impl KeyspaceRestore {
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
