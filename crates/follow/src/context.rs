//! [`StreamContext`]: settings of streams, and the state that all streams share.

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
    /// Settings for following engines.
    pub config: StreamConfig,
    /// Bytes in buffers, and counts of reached limits, over all streams.
    pub shared: Arc<SharedCounts>,
    /// Scheme by which indexes identify blocks: by content hashes, or by 64-bit words that depend on a key.
    pub identity: Arc<Identity>,
    /// Hashing schemes by which engines may compute block hashes.
    pub schemes: Arc<[Scheme]>,
    /// Queue of prompts from whose tokens blocks may be adopted.
    pub prompt_queue: Arc<PromptQueue<Keyspace>>,
    /// Snapshots that streams are restored from, and written to.
    pub snapshots: Arc<Snapshots>,
    /// The log that streams are published to, or read from.
    pub relay: Arc<Relay>,
}

impl From<StreamConfig> for StreamContext {
    /// Creates a separate context for streams with these settings: no snapshots, no log, blocks identified by content
    /// hashes.
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
    /// Memory budget for messages that have arrived only in part.
    pub(crate) fn room(&self) -> Room {
        Room::new(self.shared.clone(), self.config.limits.buffer_bytes)
    }
}
