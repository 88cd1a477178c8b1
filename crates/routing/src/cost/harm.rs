//! Cost of sending a request to a candidate: the sum of the delays that it is expected to cause, in seconds, term by
//! term.

use crate::candidates::{Candidates, PromptWay};
use crate::cost::Weights;
use crate::cost::late::REPORT_AGE;
use crate::request::Request;
use crate::transfers::LeastTransfer;

/// Delay of each request that is generating its answer, in seconds for each second of another prompt's prefill at its
/// engine.
const DECODES: f64 = 0.03;
/// Largest number of seconds of prefill that count as a delay of running requests. Without this limit, long prompts
/// would go to engines with few running requests, where other long prompts already are.
const MOST_DECODES: f64 = 1.0;
/// Number of prompt tokens that an engine computes in one step.
const CHUNK: f64 = 8_192.0;
/// Weight of a second of prefill as a delay of future requests, which cannot use that second.
const LATER: f64 = 0.2;
/// Relative increase of the weight `LATER` for each waiting prompt per candidate; `MOST_WAITING`: largest number of
/// waiting prompts per candidate that counts.
const LATER_WAITING: f64 = 0.5;
const MOST_WAITING: f64 = 6.0;
/// Weight of the prefill of a cold prompt (no engine holds any block of it) at the engine that has just received
/// another cold prompt, so that cold prompts are spread over engines.
const COLD: f64 = 0.1;
/// Weight of a request that an engine reports as waiting and that this router did not send, relative to the mean
/// waiting request of this router.
const FOREIGN: f64 = 0.5;
/// Weight of a second by which further requests with the same prompt, sent at about the same time, make an answer
/// longer.
const BURST: f64 = 0.3;
/// Weight of the eviction caused by a token copied from another engine, relative to a computed token, if each copied token
/// makes one token be computed again. The source engine keeps its copy as long as any other block, so a copied prompt
/// occupies twice the space, and more with each further copy.
const COPIED: f64 = 3.0;
/// Weight of a second of prefill of requests that are held in the router until the same engine is free.
const AIMED: f64 = 0.5;

/// Names of the summands of a candidate's cost, in the order of [`Harm::row`]; the last one is the sum.
pub(super) const NAMES: [&str; 9] = [
    "wait (s)",
    "wait for room (s)",
    "transfer (s)",
    "prefill (s)",
    "others delayed (s)",
    "later delayed (s)",
    "pushed out (s)",
    "room taken (s)",
    "cost (s)",
];

/// Part of the cost computation that is equal for all candidates of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene {
    /// Weight of a second of prefill as a delay of future requests.
    later: f64,
    /// Mean age, over the candidates, of each one's last cold prompt, in seconds; no engine held any block of a cold
    /// prompt. NaN if the present prompt is not cold.
    cold: f64,
    now: f64,
    block_size: f64,
    /// Weight of evictions by a token copied from another engine, relative to a computed one.
    copied: f64,
}

impl Scene {
    /// Creates the part. `undone`: expected number of tokens that are computed again because one is copied.
    pub(super) fn new(request: &Request<'_>, candidates: &Candidates, undone: f64, now: f64) -> Self {
        let rows = candidates.len() as f64;
        let waiting: u32 = candidates.waiting.iter().sum();
        let pressure = (f64::from(waiting) / rows).min(MOST_WAITING);
        let any: u32 =
            candidates.predicted_blocks.iter().zip(&candidates.any_blocks).map(|(a, b)| a | b).fold(0, |a, b| a | b);
        let cold = if any == 0 {
            let ages = candidates.last_cold.iter().map(|last| now - last).filter(|age| age.is_finite());
            let (sum, count) = ages.fold((0.0, 0.0), |(sum, count), age| (sum + age, count + 1.0));
            if count > 0.0 { sum / count } else { 0.0 }
        } else {
            f64::NAN
        };
        let later = LATER * (1.0 + LATER_WAITING * pressure);
        Self { later, cold, now, block_size: f64::from(request.block_size), copied: COPIED * undone }
    }
}

/// Forecast for a request at one candidate: seconds of queueing (`queue`), further seconds until the cache has room for
/// its blocks (`room`), and seconds by which future requests will wait longer for room because of it (`taken`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Outlook {
    pub(super) queue: f64,
    pub(super) room: f64,
    /// Seconds until the request would start, as far as they are a reason to hold it in the router; a wait for the
    /// engine's limit of running requests is included only if the cache lacks room too.
    pub(super) starts: f64,
    pub(super) taken: f64,
    /// Seconds to recompute blocks that this request would evict and that the next request of their session probably
    /// needs soon.
    pub(super) lost: f64,
    /// Seconds by which each request waiting at the engine makes the answer longer, if all of them start at once.
    pub(super) sibling: f64,
    /// Seconds by which the later requests of a new session and the sessions already at the engine will delay each
    /// other.
    pub(super) settles: f64,
    /// Mean number of requests that an engine runs.
    pub(super) usual: f64,
}

/// Split of a prompt at one candidate: the tokens to compute, and the tokens loaded from storage or pulled from another
/// engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromptParts {
    /// Number of the prompt's tokens that the engine must compute.
    pub(super) uncached: f64,
    /// Seconds that the loads and pulls of the prompt's blocks take at the candidate.
    pub(super) seconds: f64,
    /// Number of the prompt's tokens whose blocks are pulled from another engine.
    copied: f64,
}

impl PromptParts {
    /// Split of a prompt at a candidate (tokens to compute, load and pull) if no block is loaded or pulled.
    #[inline(always)]
    pub(super) fn computed(request: &Request<'_>, all: &Candidates, row: usize) -> Self {
        let reached = all.predicted_blocks[row].max(all.any_blocks[row]);
        Self { uncached: f64::from(request.uncached(reached)), seconds: 0.0, copied: 0.0 }
    }

    #[inline]
    pub(super) fn of(way: &PromptWay, request: &Request<'_>) -> Self {
        let size = f64::from(request.block_size);
        // No way reaches further than a cache can: one token at least is computed.
        let uncached = f64::from(request.tokens) - f64::from(way.reached) * size;
        Self { uncached, seconds: way.seconds, copied: f64::from(way.pulled()) * size }
    }

    /// Split of a prompt (tokens to compute, load and pull) that gives a lower bound on the cost, over all ways in
    /// which the candidate's engine can get the prompt's blocks. `least`: bounds on these ways.
    #[inline(always)]
    pub(super) fn at_least(
        least: &LeastTransfer,
        weights: &Weights,
        scene: &Scene,
        request: &Request<'_>,
        all: &Candidates,
        row: usize,
    ) -> Self {
        let size = f64::from(request.block_size);
        let (copied, saved) = (f64::from(least.pulled) * size, f64::from(least.reached - least.device) * size);
        let uncached = f64::from(request.tokens) - f64::from(least.reached) * size;
        let parts = Self { uncached, seconds: least.seconds, copied };
        // Saved tokens count as prefill and as evictions, and may be evicted as often as a copy.
        let worth = saved * (1.0 - scene.copied * weights.evict);
        if least.is_way || worth * all.weight[row] > least.seconds * all.prefill_rate[row] {
            parts
        } else {
            // It may be better to compute all: the least of both.
            Self { seconds: 0.0, copied: 0.0, ..parts }
        }
    }
}

/// Cost of one candidate, split into its summands, in seconds each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Harm {
    pub(super) wait: f64,
    pub(super) room: f64,
    /// Seconds by which loads and pulls take longer than the request waits for the engine.
    pub(super) transfer: f64,
    pub(super) prefill: f64,
    pub(super) others: f64,
    /// Delay of waiting requests whose prompts the engine computes in the same step as this request's prompt, in
    /// seconds; included in the delay of other requests.
    beside: f64,
    pub(super) later: f64,
    pub(super) evict: f64,
    pub(super) taken: f64,
    /// Seconds until the request would start, as far as they are a reason to hold it in the router.
    pub(super) starts: f64,
    /// Seconds to recompute blocks that this request would evict and that the next request of their session probably
    /// needs soon.
    pub(super) lost: f64,
    /// Delay that the later requests of a new session will cause, in seconds; included in `others`.
    pub(super) settles: f64,
}

impl Harm {
    /// Computes the terms (summands) of the cost of sending the request to the candidate in row `row` of the table of
    /// candidates. `MOVES`: true if blocks may be loaded or pulled.
    // Most rows are ruled out by a sum alone: inlined, it stays in registers, which is a fifth of a decision among many.
    #[inline(always)]
    pub(super) fn of<const MOVES: bool>(
        weights: &Weights,
        scene: &Scene,
        all: &Candidates,
        row: usize,
        parts: &PromptParts,
        outlook: &Outlook,
    ) -> Self {
        // Of all divisions only these two: they take longer than all the rest.
        let (token, turn) = (1.0 / all.prefill_rate[row], 1.0 / all.weight[row]);
        let PromptParts { uncached, seconds: moving, copied } = *parts;
        let prefill = uncached * token;
        let running = f64::from(all.requests[row] - all.waiting[row]);
        let mut later = scene.later * prefill;
        if !scene.cold.is_nan() {
            // 1 right after one, 1/2 when the last one is as old as on average.
            let ago = scene.now - all.last_cold[row];
            later += COLD * prefill * scene.cold / (scene.cold + ago).max(f64::MIN_POSITIVE);
        }
        let free = (all.capacity_blocks[row] - all.held_blocks[row]) * scene.block_size;
        // Unknown free room: the cache counts as full, as caches are after a while.
        let pushed = if free > 0.0 { (uncached - free).max(0.0) } else { uncached };
        // Pulled blocks take room in host memory, which a free device says nothing of; loaded blocks were there before.
        let pushed = if MOVES { pushed + scene.copied * copied } else { pushed };
        // An engine fills its steps: short prompts before this one share a step with it.
        let same_step = (CHUNK * token - outlook.queue).max(0.0).min(prefill);
        // Those that follow a prompt on its way hardly have to compute anything, but all of them will run together.
        let follows = all.predicted_blocks[row] > all.device_blocks[row];
        // As far as more run there than usual: other engines will soon be as busy.
        let more = (f64::from(all.requests[row]) - outlook.usual).clamp(0.0, f64::from(all.waiting[row]));
        let behind = if follows { BURST * outlook.sibling * more } else { 0.0 };
        let beside = same_step * f64::from(all.waiting[row]);
        let settles = if follows { 0.0 } else { outlook.settles };
        Self {
            wait: (outlook.queue + AIMED * all.held_tokens[row] * token) * turn,
            room: outlook.room * turn,
            // Blocks are loaded and pulled while it waits.
            transfer: if MOVES { (moving - outlook.queue - outlook.room).max(0.0) * turn } else { 0.0 },
            prefill,
            others: prefill.min(MOST_DECODES) * running * DECODES + behind + settles,
            beside,
            later,
            evict: pushed * token * weights.evict + outlook.lost,
            lost: outlook.lost,
            taken: outlook.taken * weights.price,
            starts: outlook.starts,
            settles,
        }
    }

    #[inline]
    pub(super) fn sum(&self) -> f64 {
        self.at_least() + self.beside
    }

    /// Lower bound of the candidate's cost: the sum of all terms except `beside`, the delay of prompts computed in the
    /// same step. Unlike the whole cost, this sum never shrinks if a time in the forecast grows.
    #[inline]
    pub(super) fn at_least(&self) -> f64 {
        self.wait + self.room + self.transfer + self.prefill + self.others + self.later + self.evict + self.taken
    }

    pub(super) fn row(&self) -> [f64; NAMES.len()] {
        let others = self.others + self.beside;
        [self.wait, self.room, self.transfer, self.prefill, others, self.later, self.evict, self.taken, self.sum()]
    }
}

/// Seconds of computation queued at an engine before a new request. The first prompt of the queue has been computed for
/// `elapsed` seconds already; if it takes longer than expected, the excess does not count.
#[inline]
pub(super) fn queue(all: &Candidates, row: usize, elapsed: f64) -> f64 {
    let rate = all.prefill_rate[row];
    let head = all.head_tokens[row] / rate;
    all.queued_tokens[row] / rate - elapsed.min(head) + foreign(all, row)
}

/// Lower bound of the seconds of computation queued before a new request: assumes that the first prompt of the queue is
/// about to be completed. `token`: seconds to compute one token.
#[inline(always)]
pub(super) fn least_queue(all: &Candidates, row: usize, token: f64) -> f64 {
    (all.queued_tokens[row] - all.head_tokens[row]) * token + foreign(all, row)
}

/// Estimated seconds to compute the prompts that an engine reports as waiting and that this router did not send. Their
/// mean length is taken to be the mean of this router's waiting prompts.
#[inline(always)]
pub(super) fn foreign(all: &Candidates, row: usize) -> f64 {
    let foreign = all.reported_waiting[row] - f64::from(all.waiting[row]);
    if foreign > 0.0 && all.reported_age[row] < REPORT_AGE {
        let each = if all.waiting[row] > 0 { all.queued_tokens[row] / f64::from(all.waiting[row]) } else { 1_000.0 };
        FOREIGN * foreign * each / all.prefill_rate[row]
    } else {
        0.0
    }
}
