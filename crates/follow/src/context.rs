//! [`StreamContext`]: the settings of streams, and the state that they share.

use std::sync::Arc;

use kvatlas_adopt::Scheme;
use kvatlas_wire::Identity;

use crate::config::StreamConfig;
use crate::relay::Relay;
use crate::snapshot::Snapshots;
use crate::state::{Keyspace, PromptQueue};
use kvatlas_stream::limits::SharedCounts;
use kvatlas_stream::zmtp::Room;

/// The settings of streams, and the state that they share.
#[derive(Debug, Clone)]
pub struct StreamContext {
    /// The settings.
    pub config: StreamConfig,
    /// Bytes in buffers, and counts of reached limits.
    pub shared: Arc<SharedCounts>,
    /// Identity of blocks in the indexes: content hashes, or words that depend on a key.
    pub identity: Arc<Identity>,
    /// Schemes by which engines may compute block hashes.
    pub schemes: Arc<[Scheme]>,
    /// Queue of prompts from which blocks may be adopted.
    pub prompt_queue: Arc<PromptQueue<Keyspace>>,
    /// Snapshots that streams are restored from, and written to.
    pub snapshots: Arc<Snapshots>,
    /// The log that streams are published to, or read from.
    pub relay: Arc<Relay>,
}

impl From<StreamConfig> for StreamContext {
    /// A context of its own for streams with these settings: no snapshots, no log, content hashes as words.
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
    /// Memory for messages of which a part has arrived.
    pub(crate) fn room(&self) -> Room {
        Room::new(self.shared.clone(), self.config.limits.buffer_bytes)
    }
}
