//! The cost of a candidate: seconds of expected harm, term by term.

use crate::candidates::Candidates;
use crate::cost::weights::Weights;
use crate::request::Request;

/// What the terms are called, the sum last.
pub(super) const NAMES: [&str; 7] =
    ["wait (s)", "room (s)", "prefill (s)", "others delayed (s)", "later delayed (s)", "pushed out (s)", "cost (s)"];

/// What of a decision is the same for all candidates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene {
    /// What a second of prefill takes from others to come.
    later: f64,
    /// Seconds since the last prompt that nobody held anything of, on average over the candidates that had one; `NAN` if
    /// somebody holds something of this one.
    cold: f64,
    now: f64,
    block_size: f64,
}

impl Scene {
    pub(super) fn new(weights: &Weights, request: &Request<'_>, candidates: &Candidates, now: f64) -> Self {
        let rows = candidates.len() as f64;
        let waiting: u32 = candidates.waiting.iter().sum();
        let pressure = (f64::from(waiting) / rows).min(weights.later_most);
        let any: u32 =
            candidates.predicted_blocks.iter().zip(&candidates.any_blocks).map(|(a, b)| a | b).fold(0, |a, b| a | b);
        let cold = if any == 0 {
            let ages = candidates.last_cold.iter().map(|last| now - last).filter(|age| age.is_finite());
            let (sum, count) = ages.fold((0.0, 0.0), |(sum, count), age| (sum + age, count + 1.0));
            if count > 0.0 { sum / count } else { 0.0 }
        } else {
            f64::NAN
        };
        let later = weights.later + weights.later_waiting * pressure;
        Self { later, cold, now, block_size: f64::from(request.block_size) }
    }
}

/// The terms of one row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Harm {
    pub(super) wait: f64,
    pub(super) room: f64,
    pub(super) prefill: f64,
    pub(super) others: f64,
    pub(super) later: f64,
    pub(super) evict: f64,
}

impl Harm {
    /// `row` is below the number of candidates.
    #[inline]
    pub(super) fn of(weights: &Weights, scene: &Scene, request: &Request<'_>, all: &Candidates, row: usize) -> Self {
        let rate = all.prefill_rate[row];
        let uncached = to_compute(weights, request, all, row);
        let prefill = uncached / rate;
        let running = f64::from(all.requests[row] - all.waiting[row]);
        let mut later = scene.later * prefill;
        if !scene.cold.is_nan() {
            // 1 right after one, 1/2 when the last one is as old as on average.
            let ago = scene.now - all.last_cold[row];
            later += weights.cold * prefill * scene.cold / (scene.cold + ago).max(f64::MIN_POSITIVE);
        }
        let free = (all.capacity_blocks[row] - all.held_blocks[row]) * scene.block_size;
        // Not known: it is full, as caches are after a while.
        let pushed = if free > 0.0 { (uncached - free).max(0.0) } else { uncached };
        let filled = (all.context_tokens[row] + uncached) / (all.capacity_blocks[row] * scene.block_size);
        let crowd = if filled.is_nan() { 0.0 } else { filled * weights.crowd };
        let wait = queue(weights, all, row);
        // An engine fills its steps: prompts before it that would have a step to themselves share it with this one.
        let same_step = (weights.chunk / rate - wait).max(0.0).min(prefill);
        let beside = same_step * f64::from(all.waiting[row]) * weights.beside;
        Self {
            wait: wait * weights.wait / all.weight[row],
            room: room(all, row, scene.block_size, uncached) * weights.room + crowd,
            prefill: prefill * weights.prefill,
            others: prefill.min(weights.decodes_most) * running * weights.decodes + beside,
            later,
            evict: pushed / rate * weights.evict,
        }
    }

    #[inline]
    pub(super) fn sum(&self) -> f64 {
        self.wait + self.room + self.prefill + self.others + self.later + self.evict
    }

    pub(super) fn row(&self) -> [f64; 7] {
        [self.wait, self.room, self.prefill, self.others, self.later, self.evict, self.sum()]
    }
}

/// Tokens to compute, those to be fetched from slower tiers counting in part.
#[inline]
fn to_compute(weights: &Weights, request: &Request<'_>, all: &Candidates, row: usize) -> f64 {
    let near = request.uncached(all.predicted_blocks[row]);
    if all.any_blocks[row] <= all.predicted_blocks[row] {
        return f64::from(near);
    }
    let host = request.uncached(all.host_blocks[row].max(all.predicted_blocks[row]));
    let far = request.uncached(all.any_blocks[row]);
    f64::from(far) + weights.far * f64::from(host - far) + weights.host * f64::from(near - host)
}

/// Seconds of prompts before this one.
#[inline]
pub(super) fn queue(weights: &Weights, all: &Candidates, row: usize) -> f64 {
    let rate = all.prefill_rate[row];
    let (head, elapsed) = (all.head_tokens[row] / rate, all.head_elapsed[row]);
    let mut seconds = all.queued_tokens[row] / rate - elapsed.min(head) + weights.overdue * (elapsed - head).max(0.0);
    let foreign = all.reported_waiting[row] - f64::from(all.waiting[row]);
    if foreign > 0.0 && all.reported_age[row] < weights.report_age {
        // Others send there too. Their prompts are taken for as long as ours.
        let each = if all.waiting[row] > 0 { all.queued_tokens[row] / f64::from(all.waiting[row]) } else { 1_000.0 };
        seconds += weights.foreign * foreign * each / rate;
    }
    seconds
}

/// Seconds until running requests have left enough room.
#[inline]
fn room(all: &Candidates, row: usize, block_size: f64, tokens: f64) -> f64 {
    let over = all.context_tokens[row] + tokens - all.capacity_blocks[row] * block_size;
    // Comparisons with what is not known are false.
    if over > 0.0 && all.context_tokens[row] > 0.0 {
        let requests = f64::from(all.requests[row].max(1));
        let each_lasts = all.output_tokens_left[row] / requests * all.step_time[row];
        (over / all.context_tokens[row]).min(1.0) * each_lasts
    } else {
        0.0
    }
}
