//! Results of a router's calls: decisions, refusals, counts.

use std::sync::Arc;

use crate::transfers::PullResult;

/// Number of a worker's rank in a router, as in [`crate::Candidates::worker`]. The number may be reused after the
/// worker has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

/// Number of a request that was placed or waits, unique within a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Reason for the choice of a request's worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChoiceReason {
    /// Choice by the policy. If the policy uses an index, the blocks held by each worker were known.
    Policy,
    /// Choice of the worker that has the request's session.
    Session,
    /// Choice of the only worker that may take the request.
    Only,
    /// Choice by the policy without knowledge of the workers' blocks, because the prompt was not looked up in an index.
    NoIndex,
    /// Choice by the policy without knowledge of the workers' blocks, because the prompt has no hashes or no full
    /// block.
    NoTokens,
    /// Choice by the policy without knowledge of the workers' blocks, because the index is reliable for none of the
    /// candidates.
    NoTrust,
    /// Choice of the least loaded worker, because the policy wanted the request to wait, but no request is running
    /// whose end could free a worker, or no request may wait.
    Idle,
    /// Choice of another worker, because the policy's own code failed, or chose a worker that is no candidate.
    PolicyFailed,
}

impl ChoiceReason {
    /// All reasons for the choice of a worker.
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

    /// Name of the reason for a choice as one word, for HTTP headers and metrics.
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

/// Decision to send a request to a worker. The router counts the request at this worker until its end is reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Number of the request to which this decision belongs.
    pub id: RequestId,
    /// Number of the chosen worker's rank.
    pub worker: WorkerId,
    /// Name of the chosen worker.
    pub name: Arc<str>,
    /// Data-parallel rank of the chosen worker.
    pub rank: u32,
    /// Number of prompt tokens that are expected in the worker's cache when the request arrives.
    pub cached_tokens: u32,
    /// Number of prompt tokens that the worker is expected to compute.
    pub uncached_tokens: u32,
    /// Part of `cached_tokens` that the index does not show yet, as the prompts are still on their way.
    pub predicted_tokens: u32,
    /// Number of the prompt's blocks that the worker holds by the index, without any correction of the index; None if
    /// some of them are on other tiers than the device.
    pub held_blocks: Option<u32>,
    /// Reason for the choice of this worker, such as the policy or the session of the request.
    pub why: ChoiceReason,
    /// Plan to load or pull the part of the prompt that the worker does not hold on its device; None if the worker
    /// could neither load nor pull blocks.
    pub transfer: Option<Box<Transfer>>,
    /// Names of alternative workers for the request, sorted by the time at which they would have computed the prompt;
    /// at most as many as set by [`crate::Router::name_others`].
    pub others: Vec<Arc<str>>,
}

/// Way in which a worker gets the part of a prompt that it does not hold on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransferAction {
    /// Computing the whole missing part of the prompt, though the worker could load blocks.
    Compute,
    /// Loading blocks from the worker's own tiers, and computing the rest of the prompt.
    Load,
    /// Pulling blocks from another worker.
    Pull,
}

impl TransferAction {
    /// Name of the way in which the worker gets the blocks, as one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Load => "load",
            Self::Pull => "pull",
        }
    }
}

/// Plan to load or pull a part of a prompt instead of computing it.
#[derive(Debug, Clone, PartialEq)]
pub struct Transfer {
    /// Way in which the worker gets the part of the prompt that is not on its device.
    pub action: TransferAction,
    /// Number of prompt tokens that the worker is expected to load from its own tiers.
    pub load_tokens: u32,
    /// Worker from which blocks are pulled; None if none are pulled.
    pub pull: Option<PullSource>,
    /// Largest number of prompt tokens that the worker may load after those on its device, because loading more would
    /// take longer than computing; None for no limit.
    pub max_load_tokens: Option<u32>,
    /// Seconds that loading and pulling the blocks are expected to take.
    pub seconds: f64,
}

/// Worker from which a part of a prompt is pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullSource {
    /// Number of the source worker's rank.
    pub worker: WorkerId,
    /// Name of the source worker.
    pub name: Arc<str>,
    /// Data-parallel rank of the source worker.
    pub rank: u32,
    /// Number of prompt tokens that are expected to be pulled from the source worker.
    pub tokens: u32,
}

/// Reason for the refusal of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Refusal because no worker may take the request, for instance as all are drained.
    NoWorker,
    /// Refusal because all workers are fully loaded and the router's queue is full.
    QueueFull,
    /// Refusal because the router's queue is full, and a request of higher priority took this request's place.
    Displaced,
}

impl Refusal {
    /// All reasons for the refusal of a request.
    pub const ALL: [Self; 3] = [Self::NoWorker, Self::QueueFull, Self::Displaced];

    /// Name of the reason for a refusal as one word, for response bodies and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoWorker => "no_worker",
            Self::QueueFull => "queue_full",
            Self::Displaced => "displaced",
        }
    }

    /// HTTP status code of a response that refuses a request for this reason.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::QueueFull | Self::Displaced => 429,
            Self::NoWorker => 503,
        }
    }
}

/// Outcome of placing a request: a worker, a wait in the router, or a refusal.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Assignment of the request to a worker.
    Placed(Decision),
    /// Waiting in the router, until [`crate::Router::bind`] returns the final outcome.
    Waits(RequestId),
    /// Refusal of the request.
    Refused(Refusal),
}

/// Load that an engine reports about itself; each value is None if not reported.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    /// Number of requests that wait in the engine's queue.
    pub waiting: Option<f64>,
    /// Number of requests that the engine is running.
    pub running: Option<f64>,
    /// Share of the engine's KV cache in use, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Capacity of the engine's cache in blocks.
    pub capacity_blocks: Option<f64>,
    /// Number of blocks that the engine holds, according to the index.
    pub held_blocks: Option<f64>,
}

/// Token counts that an engine reported for a request that has ended; each is None if not reported.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Number of prompt tokens that the engine found in its cache.
    pub cached_tokens: Option<u32>,
    /// Number of tokens that the engine generated for the request.
    pub output_tokens: Option<u32>,
    /// Number of prompt tokens that the engine computed, by its own count.
    pub computed_tokens: Option<u32>,
}

/// Expected and actual values of a request that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRequest {
    /// Worker that served the request.
    pub worker: WorkerId,
    /// Number of prompt tokens that were expected in the worker's cache.
    pub expected_cached: u32,
    /// Number of prompt tokens that were in the worker's cache; None if the engine did not report it.
    pub cached: Option<u32>,
    /// Seconds from sending the request to its first token; None if the request had no first token.
    pub ttft: Option<f64>,
}

/// Counts of requests and events since the router was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of requests that were placed at a worker.
    pub placed: u64,
    /// Number of requests that had to wait in the router.
    pub waited: u64,
    /// Number of requests that were refused, by reason, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    /// Number of requests placed, by the reason for the choice, in the order of [`ChoiceReason::ALL`].
    pub why: [u64; ChoiceReason::ALL.len()],
    /// Number of requests that ended successfully.
    pub finished: u64,
    /// Number of requests that failed, including those withdrawn while they waited.
    pub failed: u64,
    /// Number of requests that were withdrawn or failed while they waited in the router.
    pub withdrawn: u64,
    /// Number of requests that were abandoned because nothing was reported about them for too long.
    pub expired: u64,
    /// Number of requests that were at a worker when the worker was removed from the fleet.
    pub orphaned: u64,
    /// Number of times that a policy chose a candidate that does not exist. The request then went to the least loaded
    /// worker.
    pub bad_rows: u64,
    /// Number of measurements of workers' speed that were ignored as outliers.
    pub left_out_samples: u64,
    /// Number of prompt tokens that were expected in caches, summed over finished requests whose engine reported the
    /// actual number.
    pub expected_cached: u64,
    /// Number of prompt tokens that were in caches by the engines' reports, summed over the same requests as
    /// `expected_cached`.
    pub reported_cached: u64,
    /// Number of requests whose worker was instructed to pull blocks from another worker.
    pub pulls: u64,
    /// Number of completed pulls of blocks, by result, in the order of [`PullResult::ALL`].
    pub pulled: [u64; PullResult::ALL.len()],
}
