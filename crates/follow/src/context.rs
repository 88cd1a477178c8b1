//! Settings of streams, and the state that all streams of a follower share ([`StreamContext`]).

use std::sync::Arc;

use kvatlas_adopt::Scheme;
use kvatlas_wire::Identity;

use crate::config::StreamConfig;
use crate::relay::Relay;
use crate::snapshot::Snapshots;
use crate::state::{Keyspace, PromptQueue};
use kvatlas_stream::limits::SharedCounts;
use kvatlas_stream::zmtp::Room;

/// Settings of streams, and the state that all streams of a follower share.
#[derive(Debug, Clone)]
pub struct StreamContext {
    /// Settings for reading engines' event streams.
    pub config: StreamConfig,
    /// Counts over all streams: bytes in buffers, and how often limits were reached.
    pub shared: Arc<SharedCounts>,
    /// Scheme by which indexes identify blocks: content hashes, or 64-bit hashes that also depend on a secret key.
    pub identity: Arc<Identity>,
    /// Hashing schemes by which engines may compute block hashes.
    pub schemes: Arc<[Scheme]>,
    /// Queue of prompts whose tokens may reveal the contents of blocks that engines announced before this service
    /// followed them.
    pub prompt_queue: Arc<PromptQueue<Keyspace>>,
    /// Snapshots from which streams are restored, and into which they are saved.
    pub snapshots: Arc<Snapshots>,
    /// Connection to the NATS log to which streams are published, or from which they are read.
    pub relay: Arc<Relay>,
}

impl From<StreamConfig> for StreamContext {
    /// Creates a separate context for streams with these settings: without snapshots and log, with blocks identified by
    /// content hashes.
    fn from(config: StreamConfig) -> Self {
        Self {
            config,
            shared: Arc::default(),
            identity: Arc::default(),
            schemes: Scheme::candidates(&[]).into(),
            prompt_queue: Arc::default(),
            snapshots: Arc::default(),
            relay: Arc::default(),
        }
    }
}

impl StreamContext {
    /// Creates the memory budget for partly received messages.
    pub(crate) fn room(&self) -> Room {
        Room::new(self.shared.clone(), self.config.limits.buffer_bytes)
    }
}
