//! Outcomes of a router's calls: decisions, refusals, counts.

use std::sync::Arc;

use crate::transfers::PullResult;

/// Number of a worker and rank in a router: [`crate::Candidates::worker`]. It may be used again after the worker has
/// left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

/// Number of a request that was placed or waits; unique within a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Reason for the choice of a request's worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChoiceReason {
    /// The policy chose. If it uses an index, it knew the blocks that each worker holds.
    Policy,
    /// The session of the request is at this worker.
    Session,
    /// Only one worker may take the request.
    Only,
    /// The policy chose without knowing the workers' blocks, because the prompt was not looked up in an index.
    NoIndex,
    /// The policy chose without knowing the workers' blocks, because the prompt has no hashes or no full block.
    NoTokens,
    /// The policy chose without knowing the workers' blocks, because the index is reliable for none of the candidates.
    NoTrust,
    /// The policy wanted to wait, but no request is running that could end, or no request may wait. The least loaded
    /// worker takes the request.
    Idle,
    /// The policy's own code failed, or chose a worker that is no candidate. Another one takes the request.
    PolicyFailed,
}

impl ChoiceReason {
    /// All reasons.
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

    /// Name of the reason as one word, for headers and metrics.
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

/// Decision for a worker. The router counts the request there until its end is reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Number of the request.
    pub id: RequestId,
    /// Number of the worker and rank.
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
    /// Number of the prompt's blocks that the worker's cache has by the index, ignoring any doubts about the index;
    /// None if some of them are on other tiers than the device.
    pub held_blocks: Option<u32>,
    /// Reason for the choice.
    pub why: ChoiceReason,
    /// Treatment of the part of the prompt that the worker does not hold on its device; None if the worker could
    /// neither load nor pull blocks.
    pub transfer: Option<Box<Transfer>>,
    /// Names of other workers that could take the request, sorted by the time at which they would start to generate; at
    /// most as many as set by [`crate::Router::name_others`].
    pub others: Vec<Arc<str>>,
}

/// Treatment of the part of a prompt that a worker does not hold on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransferAction {
    /// The worker computes the whole part, though it could load blocks.
    Compute,
    /// The worker loads blocks from its own tiers, and computes the rest.
    Load,
    /// The worker pulls blocks from another worker.
    Pull,
}

impl TransferAction {
    /// Name of the action, as one word.
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
    /// Treatment of the part that is not on the device.
    pub action: TransferAction,
    /// Prompt tokens that the worker is expected to load from its own tiers.
    pub load_tokens: u32,
    /// Worker that blocks are pulled from; None if none are.
    pub pull: Option<PullSource>,
    /// Largest number of prompt tokens that the worker may load after those on its device, as loading more takes longer
    /// than computing; None for no limit.
    pub max_load_tokens: Option<u32>,
    /// Seconds that loading and pulling are expected to take.
    pub seconds: f64,
}

/// Worker that a part of a prompt is pulled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullSource {
    /// Number of the worker and rank.
    pub worker: WorkerId,
    /// The worker's name.
    pub name: Arc<str>,
    /// The worker's data-parallel rank.
    pub rank: u32,
    /// Prompt tokens that are expected to be pulled.
    pub tokens: u32,
}

/// Reason for the refusal of a request.
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
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::NoWorker, Self::QueueFull, Self::Displaced];

    /// Name of the reason as one word, for bodies and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoWorker => "no_worker",
            Self::QueueFull => "queue_full",
            Self::Displaced => "displaced",
        }
    }

    /// HTTP status for the refusal.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::QueueFull | Self::Displaced => 429,
            Self::NoWorker => 503,
        }
    }
}

/// Outcome of placing a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The request goes to a worker.
    Placed(Decision),
    /// The request waits in the router, until [`crate::Router::bind`] returns its outcome.
    Waits(RequestId),
    /// The request was refused.
    Refused(Refusal),
}

/// Figures that an engine reports about itself. `None`: not reported.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    /// Requests in the engine's queue.
    pub waiting: Option<f64>,
    /// Requests that the engine is running.
    pub running: Option<f64>,
    /// Share of the engine's KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Number of blocks that fit into the engine's cache.
    pub capacity_blocks: Option<f64>,
    /// Number of blocks that the engine holds, according to the index.
    pub held_blocks: Option<f64>,
}

/// Usage that an engine reported for a request that has ended. `None`: not reported.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Prompt tokens that were in the engine's cache.
    pub cached_tokens: Option<u32>,
    /// Number of generated tokens.
    pub output_tokens: Option<u32>,
    /// Prompt tokens that the engine computed, by its own count.
    pub computed_tokens: Option<u32>,
}

/// Request that has ended: expected and actual values.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRequest {
    /// Worker that had the request.
    pub worker: WorkerId,
    /// Prompt tokens that were expected in the cache.
    pub expected_cached: u32,
    /// Prompt tokens that were in the cache; None if the engine did not report them.
    pub cached: Option<u32>,
    /// Seconds from sending to the first token; None without one.
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
