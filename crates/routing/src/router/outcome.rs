//! The answers of a router.

use std::sync::Arc;

use crate::transfers::PullResult;

/// The number of a worker and rank in a router: [`crate::Candidates::worker`]. It may be used again after the worker
/// has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

/// The number of a request that was placed or waits. No two requests have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The reason why a request went where it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChoiceReason {
    /// The policy chose. If it uses an index, it knew what each worker holds.
    Policy,
    /// The request's session is at this worker.
    Session,
    /// Only one worker may take the request.
    Only,
    /// The policy chose without knowing who holds what, because the prompt was not looked up in an index.
    NoIndex,
    /// The policy chose without knowing who holds what, because the prompt has no hashes or no full block.
    NoTokens,
    /// The policy chose without knowing who holds what, because the index can be trusted for none of the candidates.
    NoTrust,
    /// The policy wanted to wait, but no request is running that could end, or no request may wait. The least loaded
    /// worker takes the request.
    Idle,
    /// The policy's own code failed, or chose a worker that is no candidate. Another one takes the request.
    PolicyFailed,
}

impl ChoiceReason {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Policy,
        Self::Session,
        Self::Only,
        Self::NoIndex,
        Self::NoTokens,
        Self::NoTrust,
        Self::Idle,
        Self::PolicyFailed,
    ];

    /// The reason as one word, for headers and metrics.
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
            Self::PolicyFailed => "policy_failed",
        }
    }
}

/// A decision where a request goes. The router counts it there until it is told what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The request.
    pub id: RequestId,
    /// The worker and rank.
    pub worker: WorkerId,
    /// The worker's name.
    pub name: Arc<str>,
    /// The worker's data-parallel rank.
    pub rank: u32,
    /// Prompt tokens that are expected in the worker's cache when the request arrives.
    pub cached_tokens: u32,
    /// Prompt tokens that the worker is expected to compute.
    pub uncached_tokens: u32,
    /// The part of `cached_tokens` that the index does not show yet.
    pub predicted_tokens: u32,
    /// Blocks of the prompt that can be taken from the worker's cache by what the index says, whether that is believed or
    /// not; none where a part of them is on other tiers than the device.
    pub held_blocks: Option<u32>,
    /// The reason why the request goes there.
    pub why: ChoiceReason,
    /// Treatment of the part of the prompt that the worker does not hold on its device; none if there is nothing that it
    /// could load or pull.
    pub transfer: Option<Box<Transfer>>,
    /// Names of other workers that could take the request, those that would begin to generate first in front; at most as
    /// many as [`crate::Router::name_others`] asks for.
    pub others: Vec<Arc<str>>,
}

/// Treatment of the part of a prompt that a worker does not hold on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransferAction {
    /// The worker computes all of it, though it could load a part.
    Compute,
    /// The worker loads a part from tiers of its own, and computes the rest.
    Load,
    /// The worker pulls a part from another one.
    Pull,
}

impl TransferAction {
    /// The action in a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Load => "load",
            Self::Pull => "pull",
        }
    }
}

/// Transfer of a part of a prompt to a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Transfer {
    /// The action.
    pub action: TransferAction,
    /// Prompt tokens that it is expected to load from tiers of its own.
    pub load_tokens: u32,
    /// The worker that it pulls from.
    pub pull: Option<PullSource>,
    /// Largest number of prompt tokens that it may load after those on its device, as loading more takes longer than
    /// computing it; none if it may load all.
    pub max_load_tokens: Option<u32>,
    /// Seconds that loading and pulling are expected to take.
    pub seconds: f64,
}

/// The worker that a part of a prompt is pulled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullSource {
    /// The worker and rank.
    pub worker: WorkerId,
    /// The worker's name.
    pub name: Arc<str>,
    /// The worker's data-parallel rank.
    pub rank: u32,
    /// Prompt tokens that are expected from it.
    pub tokens: u32,
}

/// The reason why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No worker may take the request.
    NoWorker,
    /// All workers are fully loaded, and the queue is full.
    QueueFull,
    /// The queue is full, and a request of higher priority took this one's place.
    Displaced,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::NoWorker, Self::QueueFull, Self::Displaced];

    /// The reason as one word, for bodies and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoWorker => "no_worker",
            Self::QueueFull => "queue_full",
            Self::Displaced => "displaced",
        }
    }

    /// The HTTP status for this refusal.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::QueueFull | Self::Displaced => 429,
            Self::NoWorker => 503,
        }
    }
}

/// The outcome for a request to place.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The request goes to this worker.
    Placed(Decision),
    /// The request waits in the router; [`crate::Router::bind`] tells when it no longer does.
    Waits(RequestId),
    /// The request was refused.
    Refused(Refusal),
}

/// An engine's own figures. `None` is what it does not report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    /// Requests in its queue.
    pub waiting: Option<f64>,
    /// Requests that are running.
    pub running: Option<f64>,
    /// Share of its KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Blocks that its cache has room for.
    pub capacity_blocks: Option<f64>,
    /// Blocks that it holds, according to the index.
    pub held_blocks: Option<f64>,
}

/// The usage that an engine reported for a request that has ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Prompt tokens that were in its cache.
    pub cached_tokens: Option<u32>,
    /// Tokens that it generated.
    pub output_tokens: Option<u32>,
    /// Prompt tokens that it computed, by its own count.
    pub computed_tokens: Option<u32>,
}

/// A request that has ended: what was expected, and what happened.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRequest {
    /// The worker that had it.
    pub worker: WorkerId,
    /// Prompt tokens that were expected in the cache.
    pub expected_cached: u32,
    /// Prompt tokens that were in the cache, as the engine reports.
    pub cached: Option<u32>,
    /// Seconds from sending to the first token.
    pub ttft: Option<f64>,
}

/// Counts since the router was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests placed.
    pub placed: u64,
    /// Requests that waited in the router first.
    pub waited: u64,
    /// Requests refused, by reason, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    /// Requests placed, by reason, in the order of [`ChoiceReason::ALL`].
    pub why: [u64; ChoiceReason::ALL.len()],
    /// Requests that finished.
    pub finished: u64,
    /// Requests that failed, including those withdrawn while they waited.
    pub failed: u64,
    /// Requests that failed while they waited in the router.
    pub withdrawn: u64,
    /// Requests that were given up because nothing more was reported about them.
    pub expired: u64,
    /// Requests that were at a worker when it was removed.
    pub orphaned: u64,
    /// Times that a policy chose a row that does not exist. The request went to the least loaded worker.
    pub bad_rows: u64,
    /// Measurements of workers' speed that were left out of what is learnt, as they are far from all others.
    pub left_out_samples: u64,
    /// Prompt tokens that were expected in caches, over finished requests whose engine reported how many were.
    pub expected_cached: u64,
    /// Prompt tokens that were in caches, over the same requests.
    pub reported_cached: u64,
    /// Requests sent whose worker was told to pull from another one.
    pub pulls: u64,
    /// Pulls that are over, by result, in the order of [`PullResult::ALL`].
    pub pulled: [u64; PullResult::ALL.len()],
}
