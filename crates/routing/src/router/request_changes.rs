//! Requests as routers tell each other of them, and what is kept of those of others.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::policy::Placement;
use crate::predict::Leaf;
use crate::router::outcome::WorkerId;

/// A request that a router has sent to a worker, as it tells another router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentRequest {
    /// The number of the request among those of its router.
    pub number: u64,
    /// The worker it is at.
    pub worker: WorkerId,
    /// Tokens of its prompt.
    pub tokens: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Tokens that are expected in the worker's cache.
    pub cached: u32,
    /// Number of the session it belongs to.
    pub session: Option<u64>,
    /// Content hashes of its prompt's full blocks, as far as the router keeps them in mind.
    pub content_hashes: Vec<u64>,
}

/// The changes among the requests that a router has at workers. `Sent`: a request that was sent, as it is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestChanges<Sent = SentRequest> {
    /// Requests that were sent, in that order.
    pub sent: Vec<Sent>,
    /// Numbers of those that got their first token.
    pub begun: Vec<u64>,
    /// Numbers of those that are over.
    pub ended: Vec<u64>,
}

impl<Sent> RequestChanges<Sent> {
    /// Tells of each request that was sent in another way; those without one are left out.
    #[must_use]
    pub fn map<Other>(self, told: impl FnMut(Sent) -> Option<Other>) -> RequestChanges<Other> {
        RequestChanges { sent: self.sent.into_iter().filter_map(told).collect(), begun: self.begun, ended: self.ended }
    }

    /// True if nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.begun.is_empty() && self.ended.is_empty()
    }
}

/// The requests that another router has been told of: by number, and if their first token was told as well.
#[derive(Debug, Default)]
pub struct RequestReport {
    pub(super) begun: HashMap<u64, bool>,
}

/// Requests of other routers.
#[derive(Debug, Default)]
pub(super) struct PeerRequests {
    pub(super) requests: HashMap<(u64, u64), PeerRequest>,
    /// The routers that tell of their requests, and until when that counts.
    pub(super) until: HashMap<u64, f64>,
    /// Blocks that are in use at each worker on account of these requests alone.
    pub(super) used: HashMap<u32, f64>,
    pub(super) refused: u64,
}

/// A request of another router.
#[derive(Debug)]
pub(super) struct PeerRequest {
    pub(super) placed: Placement,
    pub(super) leaf: Option<Leaf>,
    pub(super) nameless: f64,
    pub(super) begun: bool,
    /// True if the policy keeps it as well.
    pub(super) is_kept: bool,
}

impl PeerRequests {
    /// True if a router tells of its requests.
    pub(super) fn tells(&self, peer: u64) -> bool {
        self.until.contains_key(&peer)
    }

    /// A router is heard of: the requests that it tells of count for longer. False: it tells of none.
    pub(super) fn is_heard(&mut self, peer: u64, until: f64) -> bool {
        self.until.get_mut(&peer).map(|its| *its = its.max(until)).is_some()
    }

    /// Blocks in use at a worker on account of other routers' requests.
    pub(super) fn used(&self, worker: u32) -> f64 {
        self.used.get(&worker).copied().unwrap_or_default()
    }

    /// A worker is gone, and the requests there.
    pub(super) fn left(&mut self, worker: u32) {
        self.requests.retain(|_, its| its.placed.worker != worker);
        self.used.remove(&worker);
    }
}
