//! What may share blocks: a model under a routing group, with one block size and one index.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use kvatlas_index::{BlockIndex, Config};

use crate::error::Error;
use crate::fleet::Stream;

/// One index and who is not to be trusted in it.
pub struct Keyspace {
    /// The model's name.
    pub model: Box<str>,
    /// The routing group.
    pub group: Box<str>,
    /// Tokens in a block.
    pub block_size: u32,
    /// Who holds what.
    pub index: BlockIndex,
    untrusted: ArcSwap<UntrustedStreams>,
}

/// Streams whose holdings may not be what the engine holds right now.
#[derive(Default)]
pub struct UntrustedStreams {
    /// Each once, by worker and rank.
    pub streams: Vec<Arc<Stream>>,
    ranks: HashSet<(Arc<str>, u32)>,
    upper_bounds: HashSet<(Arc<str>, u32)>,
}

impl UntrustedStreams {
    pub(crate) fn new<'a>(streams: Vec<Arc<Stream>>, upper_bounds: impl Iterator<Item = &'a Arc<Stream>>) -> Self {
        let ranks = |s: &Arc<Stream>| s.ranks().into_iter().map(|rank| (s.worker.clone(), rank)).collect::<Vec<_>>();
        let upper_bounds = upper_bounds.flat_map(ranks).collect();
        Self { ranks: streams.iter().flat_map(ranks).collect(), streams, upper_bounds }
    }

    /// Whether the depths of any rank, trusted or not, are upper bounds only.
    #[must_use]
    pub fn has_upper_bounds(&self) -> bool {
        !self.upper_bounds.is_empty()
    }

    /// Whether the depths of this rank are.
    #[must_use]
    pub fn is_upper_bound(&self, worker: &Arc<str>, rank: u32) -> bool {
        self.upper_bounds.contains(&(worker.clone(), rank))
    }

    /// Whether everybody is trusted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether what is known of this rank comes from one of the streams.
    #[must_use]
    pub fn contains(&self, worker: &Arc<str>, rank: u32) -> bool {
        !self.ranks.is_empty() && self.ranks.contains(&(worker.clone(), rank))
    }
}

impl Keyspace {
    pub(crate) fn new(model: &str, group: &str, block_size: u32) -> Result<Self, Error> {
        let config = Config { block_size, count_copies: true };
        let index = BlockIndex::new(config).map_err(|error| Error::invalid(error.code(), error.to_string()))?;
        Ok(Self { model: model.into(), group: group.into(), block_size, index, untrusted: ArcSwap::default() })
    }

    /// Who is not to be trusted now.
    pub fn untrusted(&self) -> Guard<Arc<UntrustedStreams>> {
        self.untrusted.load()
    }

    pub(crate) fn set_untrusted(&self, streams: UntrustedStreams) {
        self.untrusted.store(Arc::new(streams));
    }
}
