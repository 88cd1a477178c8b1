//! Messages by which routers report their requests to each other, the requests of other routers kept by this one, and
//! the load that a request adds to its worker.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::policy::Placement;
use crate::predict::Leaf;
use crate::router::outcome::WorkerId;

/// Request that a router has sent to a worker, in a report to another router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentRequest {
    /// Number that the sending router has given to the request.
    pub number: u64,
    /// Worker that has the request.
    pub worker: WorkerId,
    /// Number of tokens of the prompt.
    pub tokens: u32,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// Number of prompt tokens that are expected in the worker's cache.
    pub cached: u32,
    /// Session to which the request belongs, as a hash of its name; None if it belongs to none.
    pub session: Option<u64>,
    /// Number of tokens that the answers are still expected to have.
    pub output_left: u32,
    /// Content hashes of those full blocks of the prompt that the router stores.
    pub content_hashes: Vec<u64>,
}

/// Changes of the requests that a router has at workers. `Sent`: type in which new requests are reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestChanges<Sent = SentRequest> {
    /// Requests that were sent, in the order of sending.
    pub sent: Vec<Sent>,
    /// Numbers of the requests that have received their first token.
    pub begun: Vec<u64>,
    /// Numbers of the requests that have ended.
    pub ended: Vec<u64>,
}

impl<Sent> RequestChanges<Sent> {
    /// Converts each new request in these changes by the function `told`; requests for which it returns None are
    /// omitted.
    #[must_use]
    pub fn map<Other>(self, told: impl FnMut(Sent) -> Option<Other>) -> RequestChanges<Other> {
        RequestChanges { sent: self.sent.into_iter().filter_map(told).collect(), begun: self.begun, ended: self.ended }
    }

    /// True if the router's requests have not changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.begun.is_empty() && self.ended.is_empty()
    }
}

/// State of the reports to another router: the numbers of the reported requests, each with true if its first token was
/// reported as well.
#[derive(Debug, Default)]
pub struct RequestReport {
    pub(super) begun: HashMap<u64, bool>,
}

/// Requests that other routers have sent to the same workers; they count like this router's own requests.
#[derive(Debug)]
pub(super) struct Peers {
    /// Requests of other routers, by the router's number and the request's.
    pub(super) requests: HashMap<(u64, u64), PeerRequest>,
    /// Expiry time of each other router's requests, in seconds.
    pub(super) until: HashMap<u64, f64>,
    /// Earliest expiry time of any other router's requests, as in `until`, in seconds.
    pub(super) next: f64,
    /// Number of other routers' requests that were not kept because there were too many.
    pub(super) refused: u64,
}

impl Default for Peers {
    fn default() -> Self {
        Self { requests: HashMap::new(), until: HashMap::new(), next: f64::INFINITY, refused: 0 }
    }
}

/// Request that another router has sent to a worker.
#[derive(Debug)]
pub(super) struct PeerRequest {
    pub(super) placed: Placement,
    pub(super) share: Share,
    pub(super) leaf: Option<Leaf>,
    pub(super) nameless: f64,
    pub(super) begun: bool,
    /// True if the policy remembers the request of the other router as well.
    pub(super) is_kept: bool,
}

/// Time at which a prompt that leaves a worker's queue was computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ComputeTime {
    /// Present time, at which the prompt's first token has arrived.
    Now,
    /// Some time since the prompt was sent, as its whole answer has arrived at once.
    Before { sent: f64 },
    /// Time that is unknown, or a prompt that is never computed.
    Unknown,
}

/// Load that one request adds to its worker: tokens of its prompt, tokens to compute, tokens generated, and tokens
/// still to be generated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) tokens: f64,
    pub(super) uncached: f64,
    pub(super) generated: f64,
    pub(super) output_left: f64,
}

/// Number of a prompt's leading blocks that are on their way to each worker (`held`), and that requests at each worker
/// use (`used`), indexed by the worker's number.
#[derive(Debug, Default)]
pub(super) struct ExpectedBlocks {
    pub(super) held: Vec<u32>,
    pub(super) used: Vec<u32>,
    /// Largest number of the prompt's blocks that a cache can provide; at least one token is always computed.
    pub(super) usable: u32,
}

impl ExpectedBlocks {
    /// Sets the numbers of a prompt's blocks to 0 for each of `workers` workers.
    pub(super) fn clear(&mut self, workers: usize) {
        for column in [&mut self.held, &mut self.used] {
            column.clear();
            column.resize(workers, 0);
        }
    }
}
