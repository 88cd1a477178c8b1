//! Requests as routers tell each other of them, what is kept of those of others, and a request's share in its worker's row.

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
    /// Tokens that its answers are still expected to have.
    pub output_left: u32,
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

/// Requests of other routers at the same workers; the rows count them.
#[derive(Debug)]
pub(super) struct Peers {
    /// Requests by router and number.
    pub(super) requests: HashMap<(u64, u64), PeerRequest>,
    /// Time until which the requests of each router count.
    pub(super) until: HashMap<u64, f64>,
    /// Earliest of these times.
    pub(super) next: f64,
    /// Requests that were not kept, as there were too many.
    pub(super) refused: u64,
}

impl Default for Peers {
    fn default() -> Self {
        Self { requests: HashMap::new(), until: HashMap::new(), next: f64::INFINITY, refused: 0 }
    }
}

/// A request of another router.
#[derive(Debug)]
pub(super) struct PeerRequest {
    pub(super) placed: Placement,
    pub(super) share: Share,
    pub(super) leaf: Option<Leaf>,
    pub(super) nameless: f64,
    pub(super) begun: bool,
    /// True if the policy keeps it as well.
    pub(super) is_kept: bool,
}

/// The time at which a prompt that leaves the queue was computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ComputeTime {
    /// The prompt is computed now: its first token has come.
    Now,
    /// Some time after it was sent: the whole answer has come.
    Before { sent: f64 },
    /// If at all, nobody knows when.
    Unknown,
}

/// The amounts that a request adds to a row while it is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) tokens: f64,
    pub(super) uncached: f64,
    pub(super) generated: f64,
    pub(super) output_left: f64,
}

/// Leading blocks of a prompt that are on their way to the workers, and those that their requests use, by number of the
/// worker.
#[derive(Debug, Default)]
pub(super) struct ExpectedBlocks {
    pub(super) held: Vec<u32>,
    pub(super) used: Vec<u32>,
    /// Blocks of the prompt that can be taken from a cache.
    pub(super) usable: u32,
}

impl ExpectedBlocks {
    /// Sets both columns to 0, for so many workers.
    pub(super) fn clear(&mut self, workers: usize) {
        for column in [&mut self.held, &mut self.used] {
            column.clear();
            column.resize(workers, 0);
        }
    }
}
