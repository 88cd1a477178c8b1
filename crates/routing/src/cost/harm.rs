//! Cost of a candidate: the expected harm in seconds, term by term.

use crate::candidates::{Candidates, PromptWay};
use crate::cost::Weights;
use crate::cost::late::REPORT_AGE;
use crate::request::Request;
use crate::transfers::LeastTransfer;

/// Weight of a second of prefill for each request that generates at the engine meanwhile.
const DECODES: f64 = 0.03;
/// Largest number of seconds of prefill that count as a delay of running requests: longer prompts should not go to
/// engines with few running requests, where others like them are.
const MOST_DECODES: f64 = 1.0;
/// Prompt tokens that an engine computes in one step.
const CHUNK: f64 = 8_192.0;
/// Weight of a second of prefill that is not available to future requests.
const LATER: f64 = 0.2;
/// Increase of `LATER` for each waiting prompt, on average over the candidates, as a share; `MOST_WAITING`: largest
/// number of waiting prompts that count.
const LATER_WAITING: f64 = 0.5;
const MOST_WAITING: f64 = 6.0;
/// Weight of the prefill of a prompt with no block held by any engine, at the engine where the last prompt of this kind
/// was placed.
const COLD: f64 = 0.1;
/// Weight of a request that an engine reports as waiting beyond those of this router, relative to an average one of
/// these.
const FOREIGN: f64 = 0.5;
/// Weight of a second by which further requests behind the same prompt make an answer longer.
const BURST: f64 = 0.3;
/// Weight of evictions by a token copied from another engine, relative to a computed one, where a copy makes one token be
/// computed again: the source keeps its copy as long as any other block, so a prompt that moves takes twice the room,
/// and again with each move.
const COPIED: f64 = 3.0;
/// Weight of a second of prefill of requests that wait in the router for the same engine.
const AIMED: f64 = 0.5;

/// Names of the terms; the last one is the sum.
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

/// Part of a decision that is the same for all candidates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene {
    /// Weight of a second of prefill for future requests.
    later: f64,
    /// Mean seconds, over the candidates that had one, since their last prompt with no block held by any engine; `NAN`
    /// if an engine holds blocks of this one.
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

/// Forecast for a request at one row: seconds until its turn comes (`queue`), further seconds until there is room
/// (`room`), and seconds by which future requests will wait longer for room because of this one (`taken`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Outlook {
    pub(super) queue: f64,
    pub(super) room: f64,
    /// Seconds until the request would start, without a limit of running requests: as far as they are a reason to wait
    /// in the router.
    pub(super) starts: f64,
    pub(super) taken: f64,
    /// Seconds to recompute evicted blocks that a next turn will probably need soon.
    pub(super) lost: f64,
    /// Seconds by which each request that waits there makes the answer longer, if all of them start at once.
    pub(super) sibling: f64,
    /// Seconds by which a new session and the sessions at the engine will delay each other.
    pub(super) settles: f64,
    /// Number of requests that an engine usually runs.
    pub(super) usual: f64,
}

/// Parts of a prompt: tokens that a row's worker computes, and tokens that it loads or pulls.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromptParts {
    /// Number of tokens to compute.
    pub(super) uncached: f64,
    /// Seconds of loads and pulls.
    pub(super) seconds: f64,
    /// Number of tokens pulled from another engine.
    copied: f64,
}

impl PromptParts {
    /// Parts if no transfers are considered.
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

    /// Parts for a lower bound on the harm of all ways of a row.
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

/// Terms of the cost of one row, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Harm {
    pub(super) wait: f64,
    pub(super) room: f64,
    /// Seconds by which loads and pulls take longer than the wait.
    pub(super) transfer: f64,
    pub(super) prefill: f64,
    pub(super) others: f64,
    /// Part of the delay of others that the request causes in its own step.
    beside: f64,
    pub(super) later: f64,
    pub(super) evict: f64,
    pub(super) taken: f64,
    /// Seconds until the request would start.
    pub(super) starts: f64,
    /// Seconds to recompute evicted blocks that a next turn will probably need soon.
    pub(super) lost: f64,
    /// Part of the delay of others that later requests of a new session will cause.
    pub(super) settles: f64,
}

impl Harm {
    /// Computes the terms of a row, which is below the number of candidates. `MOVES`: whether blocks may be loaded or
    /// pulled.
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

    /// Lower bound of the sum: the part that grows with each time in the outlook.
    #[inline]
    pub(super) fn at_least(&self) -> f64 {
        self.wait + self.room + self.transfer + self.prefill + self.others + self.later + self.evict + self.taken
    }

    pub(super) fn row(&self) -> [f64; NAMES.len()] {
        let others = self.others + self.beside;
        [self.wait, self.room, self.transfer, self.prefill, others, self.later, self.evict, self.taken, self.sum()]
    }
}

/// Seconds of the prompts before a request, if the first of them was computed for `elapsed` seconds already. Its
/// lateness is left out.
#[inline]
pub(super) fn queue(all: &Candidates, row: usize, elapsed: f64) -> f64 {
    let rate = all.prefill_rate[row];
    let head = all.head_tokens[row] / rate;
    all.queued_tokens[row] / rate - elapsed.min(head) + foreign(all, row)
}

/// Lower bound of the seconds of the prompts before a request: with the first of them about to be completed. `token`:
/// seconds to compute one token.
#[inline(always)]
pub(super) fn least_queue(all: &Candidates, row: usize, token: f64) -> f64 {
    (all.queued_tokens[row] - all.head_tokens[row]) * token + foreign(all, row)
}

/// Seconds of prompts that an engine reports as waiting and that did not come from this router. They count as long as
/// its own ones.
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
