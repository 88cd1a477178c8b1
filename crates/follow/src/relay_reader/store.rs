//! Snapshots in the NATS object store, beside the log. Any reader of the log writes them, for readers that start later.
//! The log keeps only the messages needed by a reader that begins with the latest snapshot or the one before.
//!
//! A snapshot has for each stream the sequence number up to which the log was read; the lowest of these is the number
//! of the snapshot. When a new snapshot is written, the log is purged up to the number of the previous snapshot. So a
//! reader that is loading the previous snapshot still finds the messages after it, and a reader that was away for less
//! than the time between two snapshots misses none.
//!
//! Readers need no coordination: a reader that finds a snapshot written by another one since its last turn skips its
//! turn. If two readers write at once, one of the two snapshots is kept, complete.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::object_store::{
    Config as BucketConfig, InfoErrorKind, ObjectInfo, ObjectMetadata, ObjectStore,
};
use async_nats::jetstream::stream::StorageType;

use crate::fleet::Fleet;
use crate::relay::{LinkState, Relay};
use crate::snapshot::{Origin, read_all};

/// Name of the snapshot in the NATS object store. The bucket of the store is named like the log.
const NAME: &str = "kvatlas.snapshot";
/// Key, in the metadata of a stored snapshot, of the sequence number up to which the snapshot includes the log's
/// messages.
const SEQUENCE: &str = "sequence";
/// Maximum number of attempts to read a snapshot, which may be replaced while it is being read.
const ATTEMPTS: u32 = 3;
/// Maximum time for reading a snapshot from the NATS object store.
const LONGEST: Duration = Duration::from_secs(60);
/// Maximum wait for each part of a snapshot, and for an answer of NATS.
const ANSWER: Duration = Duration::from_secs(5);

/// Loads the snapshot from the NATS object store, if there is one, and starts the periodic writing of new snapshots.
pub(super) async fn begin(fleet: &Arc<Fleet>, relay: &Arc<Relay>, log: &Context) {
    let loading = async {
        let mut loaded = load(fleet, relay, log).await;
        for _ in 1..ATTEMPTS {
            if loaded.is_ok() {
                break;
            }
            loaded = load(fleet, relay, log).await;
        }
        loaded
    };
    let late = |_| Err(format!("it did not arrive within {} s", LONGEST.as_secs()));
    let loaded = tokio::time::timeout(LONGEST, loading).await.unwrap_or_else(late);
    let seen = loaded.unwrap_or_else(|error| {
        relay.counts.failed_snapshots.fetch_add(1, Relaxed);
        tracing::error!(error, "the snapshot in the log's object store cannot be used; relays are asked instead");
        None
    });
    if seen.is_some() {
        tokio::spawn(fleet.snapshots().clone().expire());
    }
    tokio::spawn(keep(fleet.clone(), relay.clone(), seen.map(|info| info.nuid)));
}

/// Loads the snapshot from the NATS object store, and returns the store's metadata of it; `None` if there is no
/// snapshot.
async fn load(fleet: &Arc<Fleet>, relay: &Relay, log: &Context) -> Result<Option<ObjectInfo>, String> {
    // No reader has written one.
    let Ok(bucket) = log.get_object_store(&relay.config.stream).await else { return Ok(None) };
    let Some(info) = look(&bucket).await? else { return Ok(None) };
    let object = bucket.get(NAME).await.map_err(|error| error.to_string())?;
    let snapshots = fleet.snapshots().clone();
    // It checks what it has read against the digest.
    let bytes = read_all(object, info.size as u64, snapshots.config.max_bytes).await?;
    let file = format!("{NAME} in the object store {}", relay.config.stream);
    let read = tokio::task::spawn_blocking(move || snapshots.read(&bytes, Origin { kind: "store", file })).await;
    read.map_err(|_| "an internal error, whose place is in the log".to_owned())?.map_err(|error| error.to_string())?;
    Ok(Some(info))
}

async fn look(bucket: &ObjectStore) -> Result<Option<ObjectInfo>, String> {
    match bucket.info(NAME).await {
        Ok(info) => Ok(Some(info).filter(|info| !info.deleted)),
        Err(error) if error.kind() == InfoErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Writes a snapshot to the object store periodically, until the async runtime ends. `seen` identifies the last known
/// snapshot.
async fn keep(fleet: Arc<Fleet>, relay: Arc<Relay>, mut seen: Option<String>) {
    let mut has_failed = false;
    loop {
        tokio::time::sleep(fleet.snapshots().config.every).await;
        // A service that is far behind would write outdated holdings.
        let (Some(client), true) = (relay.client(), relay.link.is(LinkState::Up)) else { continue };
        let log = ContextBuilder::new().timeout(ANSWER).ack_timeout(ANSWER).build(client.clone());
        match turn(&fleet, &relay, &log, &mut seen).await {
            Ok(()) => {
                if std::mem::take(&mut has_failed) {
                    relay.link.set_trouble(None);
                }
            }
            Err(error) => {
                has_failed = true;
                relay.counts.failed_snapshots.fetch_add(1, Relaxed);
                relay.link.set_trouble(Some(format!("no snapshot can be written to the object store: {error}")));
            }
        }
    }
}

/// Writes a snapshot to the object store, unless another reader has done so since the last turn.
async fn turn(fleet: &Arc<Fleet>, relay: &Relay, log: &Context, seen: &mut Option<String>) -> Result<(), String> {
    let config = &relay.config;
    let bucket = match log.get_object_store(&config.stream).await {
        Ok(bucket) => bucket,
        Err(_) => {
            let storage = if config.in_memory { StorageType::Memory } else { StorageType::File };
            let made = BucketConfig { bucket: config.stream.clone(), storage, ..BucketConfig::default() };
            log.create_object_store(made).await.map_err(|error| error.to_string())?
        }
    };
    let before = look(&bucket).await?;
    let nuid = before.as_ref().map(|info| info.nuid.clone());
    if nuid.is_some() && *seen != nuid {
        *seen = nuid;
        return Ok(());
    }
    let (snapshots, whole) = (fleet.snapshots().clone(), fleet.clone());
    let made = tokio::task::spawn_blocking(move || snapshots.compress(&*whole)).await;
    let (bytes, written) = made.map_err(|_| "an internal error, whose place is in the log".to_owned())??;
    // Streams that were not read from the log are of no use to other readers.
    let Some(sequence) = written.sequence else { return Ok(()) };
    let metadata = [(SEQUENCE.to_owned(), sequence.to_string())].into();
    let object = ObjectMetadata { name: NAME.to_owned(), metadata, ..ObjectMetadata::default() };
    let stored = bucket.put(object, &mut &*bytes).await.map_err(|error| error.to_string())?;
    relay.counts.stored_snapshots.fetch_add(1, Relaxed);
    tracing::info!(bytes = bytes.len(), written.streams, written.blocks, sequence, "snapshot in the object store");
    *seen = Some(stored.nuid);
    let needed = before.and_then(|info| info.metadata.get(SEQUENCE)?.parse::<u64>().ok());
    if let Some(needed) = needed.map(|needed| needed.min(sequence)) {
        let stream = log.get_stream_no_info(&config.stream).await.map_err(|error| error.to_string())?;
        let purged =
            stream.purge().sequence(needed).await.map_err(|error| format!("the log cannot be purged: {error}"))?;
        relay.counts.purged.fetch_add(purged.purged, Relaxed);
    }
    Ok(())
}
