//! The state that the policy `kvatlas` keeps of each worker, and what it foresees there.

use crate::candidates::Candidates;
use crate::cost::admission::{Cache, Engine, Start};
use crate::cost::answers::Answers;
use crate::cost::demand::Average;
use crate::cost::harm::{Outlook, foreign, least_queue, queue, to_compute};
use crate::cost::price::Prices;
use crate::cost::slowness::{Load, Slowness};
use crate::cost::weights::Weights;
use crate::policy::Placement;
use crate::request::Request;

/// Prompt tokens to compute that tell how load slows an engine, at least: below, other costs hide it. More count more, up
/// to the second number.
const LEAST_TOKENS: f64 = 1_024.0;
const MOST_TOKENS: f64 = 8_192.0;
/// Seconds for which the demand on workers is taken to stay as it is.
const RECENT: f64 = 0.1;
/// Below this share of a cache in use, room is taken to have no price.
const SCARCE: f64 = 0.25;

/// A record of what was sent, what has begun and what has ended.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// The router's requests at each worker, by its number.
    engines: Vec<Engine>,
    answers: Answers,
    slowness: Slowness,
    /// The slowness of steps by load, learnt from the time between the tokens of answers.
    steps: Slowness,
    averages: Averages,
}

impl Books {
    fn engine(&mut self, worker: u32) -> &mut Engine {
        let at = worker as usize;
        if self.engines.len() <= at {
            self.engines.resize_with(at + 1, Engine::default);
        }
        &mut self.engines[at]
    }

    pub(super) fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let depth = candidates.predicted_blocks[row].max(candidates.any_blocks[row]);
        let blocks = if request.content_hashes.is_empty() { 0.0 } else { f64::from(request.blocks()) };
        let share = own(request, candidates, row) / candidates.capacity_blocks[row];
        let rate = candidates.prefill_rate[row];
        let start = Start { load: load(candidates, row), sent: now, alone: candidates.waiting[row] == 0 };
        let engine = self.engine(candidates.worker[row]);
        engine.sent(request.number, f64::from(request.uncached(depth)), rate, blocks, start);
        engine.demand.comes(share, now);
    }

    pub(super) fn first_token(&mut self, placed: &Placement, now: f64) {
        let sample = self.engine(placed.worker).first_token(placed.number, now);
        if let Some((load, tokens, times)) = sample
            && tokens >= LEAST_TOKENS
        {
            self.slowness.add(load, tokens / MOST_TOKENS, times);
        }
    }

    pub(super) fn answered(&mut self, placed: &Placement, tokens: f64, now: f64) {
        self.answers.add(tokens);
        if let Some((load, times)) = self.engine(placed.worker).answered(placed.number, tokens, now) {
            self.steps.add(load, 1.0, times);
        }
    }

    pub(super) fn ended(&mut self, placed: &Placement, now: f64) {
        self.engine(placed.worker).ended(placed.number, now);
    }

    pub(super) fn left(&mut self, worker: u32) {
        *self.engine(worker) = Engine::default();
    }

    /// Takes note of what can only be seen while it is so.
    pub(super) fn look(&mut self, weights: &Weights, request: &Request<'_>, candidates: &Candidates, now: f64) {
        if !is_scarce(request, candidates) {
            return;
        }
        if !self.averages.are_of(candidates, now) {
            self.averages = self.average(candidates, now);
        }
        for row in 0..candidates.len() {
            let (used, room) = (candidates.used_blocks[row], candidates.capacity_blocks[row]);
            // Far from full, as nearly always.
            if candidates.waiting[row] == 0 || room.is_nan() || used < SCARCE * room {
                continue;
            }
            let Some(engine) = self.engines.get(candidates.worker[row] as usize) else { continue };
            let step = step(engine, candidates, row);
            if used + engine.grown(step, f64::from(request.block_size), now) > room {
                let cache = cache(weights, request, candidates, row, engine, now);
                self.engines[candidates.worker[row] as usize].look(&cache, step, now);
            }
        }
    }

    /// Returns what is the same for all of these candidates.
    pub(super) fn common(
        &self,
        weights: &Weights,
        request: &Request<'_>,
        candidates: &Candidates,
        now: f64,
    ) -> SharedForecast {
        let is_scarce = is_scarce(request, candidates);
        let prices = is_scarce.then(|| self.prices(candidates, now)).flatten();
        let usual = (weights.load > 0.0 && !self.slowness.is_flat()).then(|| {
            let all: f64 = (0..candidates.len()).map(|row| self.slowness.of(load(candidates, row))).sum();
            all / candidates.len() as f64
        });
        let answer = self.answers.mean();
        SharedForecast { is_scarce, prices, usual, answer, longer: self.steps.of_one_more() * answer }
    }

    fn average(&self, candidates: &Candidates, now: f64) -> Averages {
        let demands = candidates.worker.iter().zip(&candidates.age);
        let demands = demands.filter_map(|(&worker, age)| Some((&self.engines.get(worker as usize)?.demand, *age)));
        Averages { at: now, workers: group(candidates), average: Average::of(demands, now) }
    }

    /// Returns the prices of room at these candidates, if they are known.
    fn prices(&self, candidates: &Candidates, now: f64) -> Option<Prices> {
        let recent = self.averages.are_of(candidates, now);
        let mut average = if recent { self.averages.average } else { self.average(candidates, now).average }?;
        let engines = candidates.worker.iter().filter_map(|&worker| self.engines.get(worker as usize));
        let (there, ours): (u32, usize) = (candidates.requests.iter().sum(), engines.map(Engine::requests).sum());
        // What other routers send is like what this one sends.
        average.rate *= (f64::from(there) / ours.max(1) as f64).max(1.0);
        Some(Prices::new(&average))
    }

    /// Returns the best that may be foreseen at a row, without a look at its books.
    #[inline]
    pub(super) fn best(
        &self,
        weights: &Weights,
        common: &SharedForecast,
        candidates: &Candidates,
        row: usize,
    ) -> Outlook {
        let slowness = common
            .usual
            .map_or(1.0, |usual| 1.0 + weights.load * (self.slowness.of(load(candidates, row)) / usual - 1.0));
        Outlook {
            queue: least_queue(weights, candidates, row),
            room: 0.0,
            taken: 0.0,
            slowness,
            crowding: common.longer * candidates.step_time[row],
        }
    }

    /// Returns what is foreseen at a row.
    pub(super) fn outlook(
        &self,
        weights: &Weights,
        common: &SharedForecast,
        request: &Request<'_>,
        candidates: &Candidates,
        row: usize,
        now: f64,
    ) -> Outlook {
        let mut outlook = self.best(weights, common, candidates, row);
        let room = candidates.capacity_blocks[row];
        let engine = self.engines.get(candidates.worker[row] as usize).filter(|_| common.is_scarce && !room.is_nan());
        let Some(engine) = engine else {
            outlook.queue = queue(weights, candidates, row, candidates.head_elapsed[row]);
            return outlook;
        };
        let own = own(request, candidates, row);
        let step = step(engine, candidates, row);
        let used = candidates.used_blocks[row] + engine.grown(step, f64::from(request.block_size), now);
        if used + own > room && engine.requests() > 0 {
            let cache = cache(weights, request, candidates, row, engine, now);
            (outlook.queue, outlook.room) = engine.foresee(&cache, &self.answers, step, now, |forecast| {
                (forecast.computed, forecast.wait_for_room(own, room))
            });
        } else {
            let elapsed = engine.elapsed(candidates.head_elapsed[row], now);
            outlook.queue = queue(weights, candidates, row, elapsed);
        }
        if let Some(prices) = &common.prices {
            let prefill = to_compute(weights, request, candidates, row) / candidates.prefill_rate[row];
            outlook.taken = prices.of(used / room, own / room, prefill + common.answer * step);
        }
        outlook
    }
}

/// The part of a forecast that is the same for all candidates of a decision.
#[derive(Debug)]
pub(super) struct SharedForecast {
    /// True if some cache is so full that room may matter.
    is_scarce: bool,
    /// The prices of room. `None`: it has none.
    prices: Option<Prices>,
    /// The slowness of the candidates at computing prompts, on average. `None`: load makes no difference, as far as is
    /// known.
    usual: Option<f64>,
    /// Tokens of an answer.
    answer: f64,
    /// Steps by which one more request makes an answer longer.
    longer: f64,
}

/// The demand on some workers, on average, as it was a moment ago.
#[derive(Debug, Default)]
struct Averages {
    at: f64,
    workers: Group,
    average: Option<Average>,
}

/// Some workers: their number, the first and the last. Enough to tell those of one model from those of another.
type Group = (usize, Option<u32>, Option<u32>);

fn group(candidates: &Candidates) -> Group {
    let workers = &candidates.worker;
    (workers.len(), workers.first().copied(), workers.last().copied())
}

impl Averages {
    fn are_of(&self, candidates: &Candidates, now: f64) -> bool {
        now - self.at < RECENT && self.workers == group(candidates)
    }
}

/// True if a cache is so full, or would be, that room may matter.
fn is_scarce(request: &Request<'_>, candidates: &Candidates) -> bool {
    let blocks = f64::from(request.blocks());
    let fills = candidates.used_blocks.iter().zip(&candidates.capacity_blocks);
    fills.fold(false, |scarce, (used, room)| scarce | (used + blocks > SCARCE * room))
}

/// Blocks of a request that no other at the row uses: none, if nobody knows what it shares.
#[inline]
fn own(request: &Request<'_>, candidates: &Candidates, row: usize) -> f64 {
    if request.content_hashes.is_empty() {
        return 0.0;
    }
    f64::from(request.blocks().saturating_sub(candidates.shared_blocks[row]))
}

/// Returns what runs at a row.
#[inline]
fn load(candidates: &Candidates, row: usize) -> Load {
    Load {
        requests: f64::from(candidates.requests[row] - candidates.waiting[row]),
        tokens: candidates.context_tokens[row] - candidates.queued_prompt_tokens[row],
    }
}

/// Seconds between two tokens of a request at a row.
#[inline]
fn step(engine: &Engine, candidates: &Candidates, row: usize) -> f64 {
    if engine.step() > 0.0 { engine.step() } else { candidates.step_time[row].max(1e-6) }
}

fn cache(
    weights: &Weights,
    request: &Request<'_>,
    candidates: &Candidates,
    row: usize,
    engine: &Engine,
    now: f64,
) -> Cache {
    let rate = candidates.prefill_rate[row];
    let others = (candidates.queued_tokens[row] - engine.queued_tokens()).max(0.0) / rate;
    Cache {
        room: candidates.capacity_blocks[row],
        used: candidates.used_blocks[row],
        block_size: f64::from(request.block_size),
        rate,
        elapsed: engine.elapsed(candidates.head_elapsed[row], now),
        others: others + foreign(weights, candidates, row),
        overdue: weights.overdue,
    }
}
