//! What a router answers.

use std::sync::Arc;

/// A worker and rank of a router's, by number: [`crate::Candidates::worker`]. It may come again when the worker is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

/// A request that was placed, or waits: never the same for two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Why a request went where it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// The policy chose, knowing who holds what.
    Policy,
    /// Its session is there.
    Session,
    /// Only one worker may take it.
    Only,
    /// The policy chose without knowing who holds what: nobody looked it up.
    NoIndex,
    /// The same: the prompt has no hashes, or no full block.
    NoTokens,
    /// The same: of no candidate can what the index says be trusted.
    NoTrust,
    /// The policy would have waited where nothing would end or none may wait, and had no opinion: the least loaded took it.
    Idle,
}

impl Why {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Policy, Self::Session, Self::Only, Self::NoIndex, Self::NoTokens, Self::NoTrust, Self::Idle];

    /// In a word, for headers and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Session => "session",
            Self::Only => "only",
            Self::NoIndex => "no_index",
            Self::NoTokens => "no_tokens",
            Self::NoTrust => "no_trust",
            Self::Idle => "idle",
        }
    }
}

/// Where a request goes. It is reserved there: say what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The request.
    pub id: RequestId,
    /// The worker and rank.
    pub worker: WorkerId,
    /// The worker's name.
    pub name: Arc<str>,
    /// The worker's data-parallel rank.
    pub rank: u32,
    /// Prompt tokens that are expected in its cache when the request gets there.
    pub cached_tokens: u32,
    /// Prompt tokens that it is expected to compute.
    pub uncached_tokens: u32,
    /// Of the cached ones, those that the index does not know of yet.
    pub predicted_tokens: u32,
    /// Why there.
    pub why: Why,
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// There is no worker that may take it.
    NoWorker,
    /// Everybody has enough to do, and as many wait as may.
    QueueFull,
    /// It waited as long as it may.
    QueueTimeout,
    /// As many wait as may, and one of higher priority came.
    Displaced,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NoWorker, Self::QueueFull, Self::QueueTimeout, Self::Displaced];

    /// In a word, for bodies and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoWorker => "no_worker",
            Self::QueueFull => "queue_full",
            Self::QueueTimeout => "queue_timeout",
            Self::Displaced => "displaced",
        }
    }

    /// The HTTP status that says so.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::QueueFull | Self::Displaced => 429,
            Self::NoWorker | Self::QueueTimeout => 503,
        }
    }
}

/// What became of a request to place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It goes there.
    Placed(Decision),
    /// It waits in the router; [`crate::Router::bind`] tells when it does not any more.
    Waits(RequestId),
    /// It goes nowhere.
    Refused(Refusal),
}

/// What an engine says of itself. What it does not say is `None`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    /// Requests in its queue.
    pub waiting: Option<f64>,
    /// Requests that it runs.
    pub running: Option<f64>,
    /// Share of its KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Blocks that its cache has room for.
    pub capacity_blocks: Option<f64>,
    /// Blocks that it holds, as the index says.
    pub held_blocks: Option<f64>,
}

/// What an engine said of a request that is over.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Prompt tokens that were in its cache.
    pub cached_tokens: Option<u32>,
    /// Tokens that it generated.
    pub output_tokens: Option<u32>,
}

/// A request that is over: what was expected of it and what was so.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// Where it was.
    pub worker: WorkerId,
    /// Prompt tokens that were expected in the cache.
    pub expected_cached: u32,
    /// Prompt tokens that were, as the engine says.
    pub cached: Option<u32>,
    /// Seconds from sending to the first token.
    pub ttft: Option<f64>,
}

/// Counts since the router was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests placed.
    pub placed: u64,
    /// Requests that waited in the router first.
    pub waited: u64,
    /// Requests refused, by reason, in the order of [`Refusal::ALL`].
    pub refused: [u64; 4],
    /// Placed, by reason, in the order of [`Why::ALL`].
    pub why: [u64; 7],
    /// Requests finished, failed, and given up because nothing was heard of them; taken along by a worker that left.
    pub finished: u64,
    /// See `finished`; those that were withdrawn while they waited are among them.
    pub failed: u64,
    /// Requests that failed while they waited in the router.
    pub withdrawn: u64,
    /// See `finished`.
    pub expired: u64,
    /// See `finished`.
    pub orphaned: u64,
    /// Rows that a policy chose and that are none: the least loaded took the request.
    pub bad_rows: u64,
    /// Prompt tokens that were expected in caches, of finished requests whose engine said how many were.
    pub expected_cached: u64,
    /// Prompt tokens that were, of the same.
    pub reported_cached: u64,
}
