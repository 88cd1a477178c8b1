//! Data that the policy `kvatlas` keeps about each worker, and forecasts computed from them.

use crate::candidates::{Candidates, PromptWay};
use crate::cost::Weights;
use crate::cost::admission::{Cache, Engine};
use crate::cost::again::Again;
use crate::cost::answers::Answers;
use crate::cost::demand::{Average, Prices};
use crate::cost::harm::{Outlook, PromptParts, foreign, least_queue, queue};
use crate::cost::idle::{IdlePrompts, Tail};
use crate::cost::late::{Delay, held};
use crate::cost::limit::RunningLimit;
use crate::cost::sessions::Sessions;
use crate::cost::slowness::Slowness;
use crate::policy::Placement;
use crate::request::Request;

/// Seconds for which computed averages of the demand on workers are reused.
const RECENT: f64 = 0.1;
/// Share of a cache in use below which its free space is taken to cost nothing.
const SCARCE: f64 = 0.25;

/// Data of the policy `kvatlas`: its requests at each worker, and statistics learnt from them.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// This router's requests at each worker, indexed by the worker's number.
    engines: Vec<Engine>,
    answers: Answers,
    /// Slowdown of an engine's steps (each makes one token of every running answer) by its load, learnt from answers'
    /// speeds.
    steps: Slowness,
    averages: Averages,
    idle: IdlePrompts,
    sessions: Sessions,
    again: Again,
    /// Estimated limit of the requests that each worker runs at once, indexed by the worker's number.
    limits: Vec<RunningLimit>,
    /// Number of tokens in a block.
    block_size: f64,
}

impl Books {
    fn engine(&mut self, worker: u32) -> &mut Engine {
        let at = worker as usize;
        if self.engines.len() <= at {
            self.engines.resize_with(at + 1, Engine::default);
        }
        &mut self.engines[at]
    }

    /// Records that a request was sent, by this router or another one, to the worker of the candidate in row `row` of
    /// the table `candidates`.
    pub(super) fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let depth = candidates.reached(row);
        let blocks = if request.content_hashes.is_empty() { 0.0 } else { f64::from(request.blocks()) };
        let share = own(request, candidates, row) / candidates.capacity_blocks[row];
        let rate = candidates.prefill_rate[row];
        let most = request.max_tokens.map(f64::from);
        // Where there is room for more requests of this size, the blocks that this one leaves are not evicted.
        let may_matter = candidates.used_blocks[row] + blocks > SCARCE * candidates.capacity_blocks[row];
        let tail = if may_matter { Tail::of(request) } else { Tail::default() };
        self.block_size = f64::from(request.block_size.max(1));
        self.idle.sent(request, now - request.waited);
        if let Some(session) = request.session {
            self.sessions.sent(session, candidates.worker[row], f64::from(request.uncached(depth)) / rate, now);
        }
        let held = candidates.predicted_blocks.iter().chain(&candidates.any_blocks).copied().max().unwrap_or(0);
        let copied = candidates.way(row).map_or(0, PromptWay::pulled);
        self.again.sent(request.content_hashes, depth as usize, held as usize, copied);
        let engine = self.engine(candidates.worker[row]);
        engine.sent(request.number, f64::from(request.uncached(depth)), rate, blocks, most, tail);
        engine.demand.comes(share, now);
    }

    pub(super) fn first_token(&mut self, placed: &Placement, now: f64) {
        if let Some(limit) = self.limits.get_mut(placed.worker as usize) {
            limit.begin();
        }
        self.engine(placed.worker).first_token(placed.number, now);
    }

    /// Share, from 0 to 1, of the computed blocks that had been computed before and were evicted since.
    pub(super) fn undone(&self) -> f64 {
        self.again.share()
    }

    /// Expected number of blocks that are computed again because a block is copied.
    pub(super) fn undone_by_copy(&self) -> f64 {
        self.again.undone_by_one()
    }

    pub(super) fn answered(&mut self, placed: &Placement, tokens: f64, now: f64) {
        self.answers.add(tokens);
        let size = self.block_size;
        if let Some((load, times)) = self.engine(placed.worker).answered(placed.number, tokens, size, now) {
            self.steps.add(load, times);
        }
    }

    pub(super) fn ended(&mut self, placed: &Placement, now: f64) {
        if let Some((tail, tokens)) = self.engine(placed.worker).ended(placed.number, now) {
            self.idle.ended(placed.worker, tail, f64::from(placed.freed) + tokens / self.block_size, now);
        }
    }

    pub(super) fn left(&mut self, worker: u32) {
        *self.engine(worker) = Engine::default();
        self.idle.left(worker);
        self.sessions.left(worker);
        if let Some(limit) = self.limits.get_mut(worker as usize) {
            *limit = RunningLimit::default();
        }
    }

    /// Records the state at the time of a decision: the engines' latest reports, and the queues whose first prompt
    /// lacks room.
    pub(super) fn look(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) {
        self.look_at_reports(candidates, now);
        if !is_scarce(request, candidates) {
            return;
        }
        if !self.averages.are_of(candidates, now) {
            self.averages = self.average(candidates, now);
        }
        self.idle.asked(request, now);
        for row in 0..candidates.len() {
            let (used, room) = (candidates.used_blocks[row], candidates.capacity_blocks[row]);
            // Far from full, as nearly always.
            if candidates.waiting[row] == 0 || room.is_nan() || used < SCARCE * room {
                continue;
            }
            let Some(engine) = self.engines.get(candidates.worker[row] as usize) else { continue };
            let step = step(engine, candidates, row);
            let is_full = f64::from(candidates.requests[row]) >= self.limit(candidates, row);
            if is_full || used + engine.grown(step, f64::from(request.block_size), now) > room {
                let cache = cache(request, candidates, row, engine, self.limit(candidates, row), now);
                self.engines[candidates.worker[row] as usize].look(&cache, step, now);
            }
        }
    }

    /// Records the numbers of running requests that engines report while other requests wait there.
    fn look_at_reports(&mut self, candidates: &Candidates, now: f64) {
        // Rows are in order of their worker.
        let workers = candidates.worker.last().map_or(0, |last| *last as usize + 1);
        if workers > self.limits.len() {
            self.limits.resize_with(workers, RunningLimit::default);
        }
        let reports = candidates.reported_running.iter().zip(&candidates.reported_waiting);
        for (row, ((&running, &waiting), &worker)) in reports.zip(&candidates.worker).enumerate() {
            let limit = &mut self.limits[worker as usize];
            if limit.is_touched(running, waiting) {
                limit.report(running, waiting, candidates.reported_kv_usage[row], now - candidates.reported_age[row]);
            }
        }
    }

    /// Largest number of requests that the engine of a candidate, given by its row in the table, can run at once;
    /// infinite if unknown.
    #[inline]
    fn limit(&self, candidates: &Candidates, row: usize) -> f64 {
        self.limits.get(candidates.worker[row] as usize).map_or(f64::INFINITY, RunningLimit::get)
    }

    /// Delay expected at a candidate's engine because the prompt at the head of its queue is late: the prompt could
    /// have been computed for `elapsed` seconds already, and has no first token.
    #[inline]
    pub(super) fn late(&self, candidates: &Candidates, row: usize, elapsed: f64) -> Delay {
        if elapsed * candidates.prefill_rate[row] <= candidates.head_tokens[row] {
            return Delay::default();
        }
        let is_at_limit = candidates.reported_running[row] >= self.limit(candidates, row);
        Delay::of(candidates, row, elapsed, self.block_size, is_at_limit)
    }

    /// Computes the part of the forecasts (waiting times, effects on other requests) that is equal for all candidates
    /// of a decision.
    pub(super) fn common(
        &self,
        weights: &Weights,
        request: &Request<'_>,
        candidates: &Candidates,
        now: f64,
    ) -> SharedForecast {
        let is_scarce = is_scarce(request, candidates);
        let prices = is_scarce.then(|| self.prices(candidates, now)).flatten();
        let answer = request.max_tokens.map_or(f64::INFINITY, f64::from).min(self.answers.mean());
        SharedForecast {
            is_scarce,
            prices,
            answer,
            longer: self.steps.of_one_more() * answer,
            usual_requests: self.steps.usual_requests(),
            settle: self.settle(weights, request),
            hold: weights.hold,
            prefill: self.sessions.prefill(),
        }
    }

    /// Number of requests that a new session is expected to send after this one, times the weight `settle`. 0 for a
    /// request without a session or of a known session.
    fn settle(&self, weights: &Weights, request: &Request<'_>) -> f64 {
        match request.session {
            Some(session) if weights.settle > 0.0 && !self.sessions.knows(session) => {
                weights.settle * self.sessions.to_come()
            }
            _ => 0.0,
        }
    }

    fn average(&self, candidates: &Candidates, now: f64) -> Averages {
        let demands = candidates.worker.iter().zip(&candidates.age);
        let demands = demands.filter_map(|(&worker, age)| Some((&self.engines.get(worker as usize)?.demand, *age)));
        Averages { at: now, workers: group(candidates), average: Average::of(demands, now) }
    }

    /// Prices of cache space at these candidates, in seconds by which later requests wait longer; None if nothing is
    /// known yet.
    fn prices(&self, candidates: &Candidates, now: f64) -> Option<Prices> {
        let recent = self.averages.are_of(candidates, now);
        let mut average = if recent { self.averages.average } else { self.average(candidates, now).average }?;
        let engines = candidates.worker.iter().filter_map(|&worker| self.engines.get(worker as usize));
        let (there, ours): (u32, usize) = (candidates.requests.iter().sum(), engines.map(Engine::requests).sum());
        // Requests of other routers are assumed to be like those of this router.
        average.rate *= (f64::from(there) / ours.max(1) as f64).max(1.0);
        Some(Prices::new(&average))
    }

    /// Lower bound of the forecast for a candidate: with the shortest possible queue, and without a wait for cache
    /// space.
    #[inline(always)]
    pub(super) fn best(&self, common: &SharedForecast, candidates: &Candidates, row: usize) -> Outlook {
        let queue = least_queue(candidates, row, 1.0 / candidates.prefill_rate[row]);
        Outlook {
            queue,
            room: 0.0,
            starts: queue,
            taken: 0.0,
            sibling: common.longer * candidates.step_time[row],
            lost: 0.0,
            usual: common.usual_requests,
            settles: if common.settle > 0.0 {
                let step = candidates.step_time[row];
                let each = 0.5 * common.prefill + common.longer * step;
                let duty = self.sessions.duty(common.prefill + self.answers.mean() * step);
                common.settle * each * duty * self.sessions.living(candidates.worker[row])
            } else {
                0.0
            },
        }
    }

    /// Forecast for a request at the engine of a candidate, given by its row in the table: its waiting time and its
    /// effects on other requests.
    pub(super) fn outlook(
        &self,
        common: &SharedForecast,
        request: &Request<'_>,
        candidates: &Candidates,
        row: usize,
        parts: &PromptParts,
        now: f64,
    ) -> Outlook {
        let mut outlook = self.best(common, candidates, row);
        let room = candidates.capacity_blocks[row];
        let limit = self.limit(candidates, row);
        let is_full = f64::from(candidates.requests[row]) >= limit;
        let engine =
            self.engines.get(candidates.worker[row] as usize).filter(|_| is_full || common.is_scarce && !room.is_nan());
        let Some(engine) = engine else {
            let elapsed = candidates.head_elapsed[row];
            let (queue, late) = (queue(candidates, row, elapsed), self.late(candidates, row, elapsed));
            outlook.queue = queue + late.cost;
            outlook.starts = held(candidates, row, queue, elapsed) + late.held;
            return outlook;
        };
        let elapsed = engine.elapsed(candidates.head_elapsed[row], now);
        let late = self.late(candidates, row, elapsed);
        let own = own(request, candidates, row);
        let step = step(engine, candidates, row);
        let used = candidates.used_blocks[row] + engine.grown(step, f64::from(request.block_size), now);
        let lacks_room = used + own > room && engine.requests() > 0;
        if is_full || lacks_room {
            let cache = cache(request, candidates, row, engine, limit, now);
            (outlook.queue, outlook.room, outlook.starts) =
                engine.foresee(&cache, &self.answers, step, now, |forecast| {
                    let room = forecast.wait_for_room(own, cache.room);
                    (forecast.computed + late.cost, room, forecast.computed + late.held + room)
                });
        }
        if !lacks_room {
            // In the queue of an engine at its limit the request keeps its turn: no later request with less to compute
            // overtakes it.
            let queue = queue(candidates, row, elapsed);
            outlook.starts = held(candidates, row, queue, elapsed) + late.held;
            outlook.queue = if is_full { outlook.queue } else { queue + late.cost };
        }
        let worker = candidates.worker[row];
        let over = used + own + self.idle.blocks(worker) - room;
        if over > 0.0 && own > 0.0 {
            let each = f64::from(request.block_size) / candidates.prefill_rate[row];
            let lost = each * self.idle.loss(worker, request, over.min(own), common.hold, now);
            // To wait so long for them costs as much.
            outlook.lost = (lost - common.hold).max(0.0);
        }
        if let Some(prices) = &common.prices {
            let prefill = parts.seconds + parts.uncached / candidates.prefill_rate[row];
            outlook.taken = prices.of(used / room, own / room, prefill + common.answer * step);
        }
        outlook
    }
}

/// Part of the forecasts (waiting times, effects on other requests) that is equal for all candidates of a decision.
#[derive(Debug)]
pub(super) struct SharedForecast {
    /// True if the cache of any candidate is nearly full, so that the request may have to wait for space.
    is_scarce: bool,
    /// Prices of cache space at the candidates, in seconds; None if space costs nothing or its price is unknown.
    prices: Option<Prices>,
    /// Expected number of tokens of the request's answer.
    answer: f64,
    /// Extension of an answer by one more running request, as a number of steps (a step is the time between two
    /// tokens).
    longer: f64,
    /// Mean number of requests that an engine runs.
    usual_requests: f64,
    /// Number of requests that a new session is expected to send after this one, times the weight `settle`. 0 for a
    /// request without a session or of a known session.
    settle: f64,
    /// Mean time to compute the prompt of a session's later request, in seconds.
    prefill: f64,
    /// Seconds of waiting at an engine up to which a request is not held in the router: the weight `hold` of the
    /// policy.
    hold: f64,
}

/// Mean demand on a group of workers, with the time at which it was computed.
#[derive(Debug, Default)]
struct Averages {
    at: f64,
    workers: Group,
    average: Option<Average>,
}

/// Identification of a group of workers: how many they are, the first and the last number. This is enough to
/// distinguish the workers of different models.
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

/// True if the cache of any candidate is nearly full, or would be with this request, so that free space matters.
fn is_scarce(request: &Request<'_>, candidates: &Candidates) -> bool {
    let blocks = f64::from(request.blocks());
    let fills = candidates.used_blocks.iter().zip(&candidates.capacity_blocks);
    fills.fold(false, |scarce, (used, room)| scarce | (used + blocks > SCARCE * room))
}

/// Number of a request's blocks that no other request at the candidate's engine uses; 0 for a request without hashes,
/// as the number of shared blocks is unknown then.
#[inline]
fn own(request: &Request<'_>, candidates: &Candidates, row: usize) -> f64 {
    if request.content_hashes.is_empty() {
        return 0.0;
    }
    f64::from(request.blocks().saturating_sub(candidates.shared_blocks[row]))
}

/// Seconds between two tokens of a request at the candidate's engine.
#[inline]
fn step(engine: &Engine, candidates: &Candidates, row: usize) -> f64 {
    if engine.step() > 0.0 { engine.step() } else { candidates.step_time[row].max(1e-6) }
}

fn cache(request: &Request<'_>, candidates: &Candidates, row: usize, engine: &Engine, limit: f64, now: f64) -> Cache {
    let (rate, room) = (candidates.prefill_rate[row], candidates.capacity_blocks[row]);
    let others = (candidates.queued_tokens[row] - engine.queued_tokens()).max(0.0) / rate;
    let elsewhere = (f64::from(candidates.requests[row]) - engine.requests() as f64).max(0.0);
    Cache {
        room: if room.is_nan() { f64::INFINITY } else { room },
        used: candidates.used_blocks[row],
        block_size: f64::from(request.block_size),
        rate,
        elapsed: engine.elapsed(candidates.head_elapsed[row], now),
        others: others + foreign(candidates, row),
        limit: (limit - elsewhere).max(1.0),
    }
}
