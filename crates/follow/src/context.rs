//! [`StreamContext`]: the settings of streams, and what streams share while they run.

use std::sync::Arc;

use kvatlas_adopt::Scheme;
use kvatlas_wire::Identity;

use crate::adopt::PromptQueue;
use crate::config::StreamConfig;
use crate::relay::Relay;
use crate::snapshot::Snapshots;
use crate::state::Keyspace;
use kvatlas_stream::limits::SharedCounts;
use kvatlas_stream::zmtp::Room;

/// The settings of streams, and what streams share while they run.
#[derive(Debug, Clone)]
pub struct StreamContext {
    /// The settings.
    pub config: StreamConfig,
    /// Bytes in buffers, and how often each limit was reached.
    pub shared: Arc<SharedCounts>,
    /// The words that blocks are called by in the indexes.
    pub identity: Arc<Identity>,
    /// The ways in which engines may compute the names of blocks.
    pub schemes: Arc<[Scheme]>,
    /// The place where prompts are left that may tell what was never announced.
    pub prompt_queue: Arc<PromptQueue<Keyspace>>,
    /// Holdings that were kept over a restart, or will be kept over the next.
    pub snapshots: Arc<Snapshots>,
    /// The log that streams are published to, or come by.
    pub relay: Arc<Relay>,
}

impl From<StreamConfig> for StreamContext {
    /// Streams with these settings that share nothing with others: no snapshots, no log, content hashes as words.
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
    /// The memory that bodies may take while they come.
    pub(crate) fn room(&self) -> Room {
        Room::new(self.shared.clone(), self.config.limits.buffer_bytes)
    }
}
