//! Requests as routers report them to each other, those of other routers as kept here, and the part of a worker's row
//! that one request causes.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::policy::Placement;
use crate::predict::Leaf;
use crate::router::outcome::WorkerId;

/// Request that a router has sent to a worker, as reported to another router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentRequest {
    /// Number of the request at its router.
    pub number: u64,
    /// Worker that has the request.
    pub worker: WorkerId,
    /// Number of tokens of the prompt.
    pub tokens: u32,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// Prompt tokens that are expected in the worker's cache.
    pub cached: u32,
    /// Session of the request, as a hash of its name; None if it has none.
    pub session: Option<u64>,
    /// Tokens that the answers are still expected to have.
    pub output_left: u32,
    /// Content hashes of the prompt's full blocks, as far as the router stores them.
    pub content_hashes: Vec<u64>,
}

/// Changes of the requests that a router has at workers. `Sent`: form in which new requests are reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestChanges<Sent = SentRequest> {
    /// Requests that were sent, in the order of sending.
    pub sent: Vec<Sent>,
    /// Numbers of the requests that got their first token.
    pub begun: Vec<u64>,
    /// Numbers of the requests that have ended.
    pub ended: Vec<u64>,
}

impl<Sent> RequestChanges<Sent> {
    /// Converts the requests that were sent by `told`; those for which it returns None are left out.
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

/// Requests that were reported to another router, by number; true if their first token was reported as well.
#[derive(Debug, Default)]
pub struct RequestReport {
    pub(super) begun: HashMap<u64, bool>,
}

/// Requests of other routers at the same workers, whose rows count them.
#[derive(Debug)]
pub(super) struct Peers {
    /// Requests by router and number.
    pub(super) requests: HashMap<(u64, u64), PeerRequest>,
    /// Time until which the requests of each router count.
    pub(super) until: HashMap<u64, f64>,
    /// Earliest time in `until`.
    pub(super) next: f64,
    /// Number of requests that were not kept, as there were too many.
    pub(super) refused: u64,
}

impl Default for Peers {
    fn default() -> Self {
        Self { requests: HashMap::new(), until: HashMap::new(), next: f64::INFINITY, refused: 0 }
    }
}

/// Request of another router.
#[derive(Debug)]
pub(super) struct PeerRequest {
    pub(super) placed: Placement,
    pub(super) share: Share,
    pub(super) leaf: Option<Leaf>,
    pub(super) nameless: f64,
    pub(super) begun: bool,
    /// True if the policy keeps the request as well.
    pub(super) is_kept: bool,
}

/// Time at which a prompt that leaves the queue was computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ComputeTime {
    /// Now: the prompt's first token has come.
    Now,
    /// Some time after the prompt was sent: the whole answer has come.
    Before { sent: f64 },
    /// Unknown, or never.
    Unknown,
}

/// Amounts that a request adds to its worker's row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) tokens: f64,
    pub(super) uncached: f64,
    pub(super) generated: f64,
    pub(super) output_left: f64,
}

/// Leading blocks of a prompt that are on their way to each worker (`held`), and those that requests there use
/// (`used`), by the worker's number.
#[derive(Debug, Default)]
pub(super) struct ExpectedBlocks {
    pub(super) held: Vec<u32>,
    pub(super) used: Vec<u32>,
    /// Number of the prompt's blocks that can be taken from a cache.
    pub(super) usable: u32,
}

impl ExpectedBlocks {
    /// Sets both columns to 0, for this number of workers.
    pub(super) fn clear(&mut self, workers: usize) {
        for column in [&mut self.held, &mut self.used] {
            column.clear();
            column.resize(workers, 0);
        }
    }
}
