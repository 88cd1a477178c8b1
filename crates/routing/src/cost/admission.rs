//! Forecast of admission: the time at which an engine will start to compute a prompt that is sent to it now.
//!
//! An engine serves prompts in the order of their arrival: a prompt starts when the prompt before it is computed and
//! the cache has room for its blocks. A running request frees its blocks when it ends, after the expected rest of its
//! answer. Blocks shared by several requests become free with the last of them. To approximate this, each request
//! counts for the same fraction of its blocks, chosen so that all together count for the number of blocks in use.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::cost::answers::Answers;
use crate::cost::demand::Demand;
use crate::cost::idle::Tail;
use crate::cost::slowness::Load;

/// Lower limit of the weight of a new sample in an engine's mean time between two tokens of a request.
const SLOWEST: f64 = 0.02;
/// Number of tokens that an answer must exceed for its mean time between tokens to be used as a sample.
const LEAST_TOKENS: f64 = 8.0;

/// Seconds for which a forecast for an engine is reused, unless a request starts or ends there meanwhile. A new
/// forecast takes microseconds if many requests run.
const HOLDS: f64 = 0.02;

/// Request at an engine that has not received its first token.
#[derive(Debug, Clone, Copy)]
struct QueuedRequest {
    number: u64,
    /// Number of the request's prompt tokens to compute. `prefill`: seconds that computing them was expected to take.
    uncached: f64,
    prefill: f64,
    blocks: f64,
    /// Largest number of tokens that may be generated for the request; None if the request sets no limit.
    most: Option<f64>,
    tail: Tail,
}

/// Request at an engine that has received its first token and has not ended.
#[derive(Debug, Clone, Copy)]
struct RunningRequest {
    number: u64,
    first_token: f64,
    prefill: f64,
    blocks: f64,
    /// Integrals over time of the engine's load (running requests and their blocks), as they were at the time of the
    /// request's first token.
    area: Area,
    most: Option<f64>,
    tail: Tail,
}

/// Integrals over time of the number of running requests at an engine and of the number of their blocks. The difference
/// between two times gives the mean load between them.
#[derive(Debug, Clone, Copy, Default)]
struct Area {
    at: f64,
    requests: f64,
    blocks: f64,
}

/// This router's requests at one worker, with the statistics of their speed.
#[derive(Debug, Default)]
pub(super) struct Engine {
    /// Requests at the worker without a first token, in the order in which they were sent.
    queue: VecDeque<QueuedRequest>,
    running: Vec<RunningRequest>,
    /// Number of blocks of all requests, in the queue and running. `first_tokens` (times of the first tokens) and
    /// `running_blocks` are sums over the running requests only.
    blocks: f64,
    first_tokens: f64,
    running_blocks: f64,
    area: Area,
    /// Mean time between two tokens of a request, in seconds; `samples`: number of answers in this mean.
    step: f64,
    samples: f64,
    pub(super) demand: Demand,
    last_end: f64,
    /// True if the first request of the queue could not start: the cache had no room for it, or the engine was at its
    /// limit of running requests.
    blocked: bool,
    /// Last forecast and the time at which it was made; None if a request was sent, started or ended since then.
    foreseen: RefCell<Option<(f64, Forecast)>>,
}

/// State of an engine's cache and speed, taken from the engine's row in the table of candidates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cache {
    /// Capacity of the engine's cache in blocks; infinite if unknown.
    pub(super) room: f64,
    /// Number of blocks of the cache that prompts use, including requests of other routers.
    pub(super) used: f64,
    pub(super) block_size: f64,
    /// Number of prompt tokens that the engine computes per second.
    pub(super) rate: f64,
    /// Seconds for which the prompt at the head of the queue could have been computed so far, if the cache had room for
    /// it.
    pub(super) elapsed: f64,
    /// Seconds that computing the prompts sent to the engine by other routers will take.
    pub(super) others: f64,
    /// Largest number of requests that the engine runs at once, minus the requests of other routers; infinite if
    /// unknown.
    pub(super) limit: f64,
}

/// Forecast for the requests at an engine, assuming that no further request arrives.
#[derive(Debug, Clone, Default)]
pub(super) struct Forecast {
    /// Seconds until all prompts now at the engine are computed, assuming that the first prompt is not late. `begun`:
    /// seconds until the last of these prompts starts.
    pub(super) computed: f64,
    begun: f64,
    /// Seconds until enough requests have ended for one more to run, within the engine's limit of running requests.
    turn: f64,
    /// Number of blocks in use when the last of the present prompts starts, including that prompt's blocks.
    used: f64,
    /// Ends of requests after the last of the present prompts starts, earliest first: seconds until the end, and number
    /// of blocks that it frees.
    ends: VecDeque<(f64, f64)>,
}

impl Engine {
    /// Adds a request that was sent to the engine, at the end of the engine's queue.
    pub(super) fn sent(&mut self, number: u64, uncached: f64, rate: f64, blocks: f64, most: Option<f64>, tail: Tail) {
        *self.foreseen.get_mut() = None;
        self.queue.push_back(QueuedRequest { number, uncached, prefill: uncached / rate, blocks, most, tail });
        self.blocks += blocks;
    }

    /// Records the first token of a request, which moves from the engine's queue to its running requests.
    pub(super) fn first_token(&mut self, number: u64, now: f64) {
        *self.foreseen.get_mut() = None;
        let Some(at) = self.queue.iter().position(|its| its.number == number) else { return };
        self.pass(now);
        let Some(its) = self.queue.remove(at) else { return };
        self.running.push(RunningRequest {
            number,
            first_token: now,
            prefill: its.prefill,
            blocks: its.blocks,
            area: self.area,
            most: its.most,
            tail: its.tail,
        });
        self.first_tokens += now;
        self.running_blocks += its.blocks;
        // Another one is at the head.
        self.blocked = false;
    }

    /// Extends the integrals over time of the number of the engine's running requests and of their blocks to the time
    /// `now`, in seconds.
    fn pass(&mut self, now: f64) {
        let passed = (now - self.area.at).max(0.0);
        self.area.at = now.max(self.area.at);
        self.area.requests += passed * self.running.len() as f64;
        self.area.blocks += passed * self.running_blocks;
    }

    /// Records that a running request has generated `tokens` tokens in total. Returns the engine's mean load since the
    /// first token, and the request's time between tokens relative to the engine's mean; None if the answer is too
    /// short for a sample.
    pub(super) fn answered(&mut self, number: u64, tokens: f64, block_size: f64, now: f64) -> Option<(Load, f64)> {
        self.pass(now);
        let its = self.running.iter().find(|its| its.number == number)?;
        let took = now - its.first_token;
        let seconds = took / (tokens - 1.0);
        if tokens > LEAST_TOKENS && seconds > 1e-6 {
            self.samples += 1.0;
            self.step += (seconds - self.step) * (1.0 / self.samples).max(SLOWEST);
            let requests = (self.area.requests - its.area.requests) / took;
            let tokens = (self.area.blocks - its.area.blocks) * block_size / took;
            return Some((Load { requests, tokens }, seconds / self.step));
        }
        None
    }

    /// Removes a request that has ended. If it had a first token, returns the end of its prompt (for comparison with
    /// later prompts) and the number of tokens of its answer, estimated from its duration.
    pub(super) fn ended(&mut self, number: u64, now: f64) -> Option<(Tail, f64)> {
        let mut ran = None;
        *self.foreseen.get_mut() = None;
        if let Some(at) = self.running.iter().position(|its| its.number == number) {
            self.pass(now);
            let its = self.running.swap_remove(at);
            self.running_blocks -= its.blocks;
            self.blocks -= its.blocks;
            self.first_tokens -= its.first_token;
            self.demand.goes(now - its.first_token + its.prefill, now);
            let tokens = if self.step > 0.0 { (now - its.first_token) / self.step } else { 0.0 };
            ran = Some((its.tail, tokens));
        } else if let Some(at) = self.queue.iter().position(|its| its.number == number) {
            let its = self.queue.remove(at);
            self.blocks -= its.map_or(0.0, |its| its.blocks);
            self.blocked &= at > 0;
        }
        if self.running.is_empty() {
            self.first_tokens = 0.0;
            self.running_blocks = 0.0;
        }
        self.last_end = now;
        ran
    }

    /// Number of prompt tokens to compute for requests without a first token; tokens expected in the cache are not
    /// counted.
    pub(super) fn queued_tokens(&self) -> f64 {
        self.queue.iter().map(|its| its.uncached).sum()
    }

    /// Number of this router's requests at the worker.
    pub(super) fn requests(&self) -> usize {
        self.queue.len() + self.running.len()
    }

    /// Mean time between two tokens of a request at this engine, in seconds; 0 if unknown.
    pub(super) fn step(&self) -> f64 {
        self.step
    }

    /// Number of blocks that the answers of the running requests have filled so far.
    pub(super) fn grown(&self, step: f64, block_size: f64, now: f64) -> f64 {
        ((self.running.len() as f64 * now - self.first_tokens) / (step * block_size)).max(0.0)
    }

    /// Fraction of its blocks that each request counts for, as requests share blocks: blocks in use (`used`) divided by
    /// the sum of the requests' blocks, at most 1.
    fn part(&self, used: f64) -> f64 {
        if self.blocks > 0.0 { (used / self.blocks).min(1.0) } else { 1.0 }
    }

    /// True if the first request of the queue cannot start: its blocks do not fit into the cache, or the engine runs as
    /// many requests as it can.
    fn is_blocked(&self, cache: &Cache, step: f64, now: f64) -> bool {
        let Some(first) = self.queue.front() else { return false };
        let running: f64 = self.running.iter().map(|its| its.blocks).sum();
        (running + first.blocks) * self.part(cache.used) + self.grown(step, cache.block_size, now) > cache.room
            || self.running.len() as f64 >= cache.limit
    }

    /// Records whether the first request of the engine's queue cannot start for lack of room: cache space, or a place
    /// among the requests that run at once.
    pub(super) fn look(&mut self, cache: &Cache, step: f64, now: f64) {
        self.blocked = self.blocked || self.is_blocked(cache, step, now);
    }

    /// Seconds for which the prompt at the head of the engine's queue could have been computed so far. `since_turn`:
    /// seconds since the prompt became the first of the queue; if the cache had no room for it, only the time since the
    /// last end of a request counts.
    pub(super) fn elapsed(&self, since_turn: f64, now: f64) -> f64 {
        if self.blocked { since_turn.min(now - self.last_end) } else { since_turn }
    }

    /// Calls `read` with a forecast for the engine: a new one, or the last one if that is still valid.
    pub(super) fn foresee<T>(
        &self,
        cache: &Cache,
        answers: &Answers,
        step: f64,
        now: f64,
        read: impl FnOnce(&Forecast) -> T,
    ) -> T {
        let mut foreseen = self.foreseen.borrow_mut();
        if foreseen.as_ref().is_some_and(|(at, _)| now - at > HOLDS) {
            *foreseen = None;
        }
        read(&foreseen.get_or_insert_with(|| (now, self.forecast(cache, answers, step, now))).1)
    }

    /// Computes a forecast for the engine. `step`: seconds between two tokens of a request.
    fn forecast(&self, cache: &Cache, answers: &Answers, step: f64, now: f64) -> Forecast {
        let part = self.part(cache.used);
        let mut used = 0.0;
        let each = |its: &RunningRequest| {
            let tokens = (now - its.first_token) / step;
            let left = answers.left(tokens).min(its.most.map_or(f64::INFINITY, |most| (most - tokens).max(0.0)));
            (left * step, its.blocks * part + tokens / cache.block_size)
        };
        let mut ends: Vec<(f64, f64)> = self.running.iter().map(each).collect();
        ends.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        for (_, blocks) in &ends {
            used += blocks;
        }
        let mut ends = VecDeque::from(ends);
        let (mut begun, mut computed) = (0.0_f64, cache.others);
        let elapsed = if self.is_blocked(cache, step, now) { 0.0 } else { cache.elapsed };
        let lasts = answers.mean() * step;
        // Among many running requests one ends soon, though each is expected to run for long.
        let turn = |before: usize| ((before + 1) as f64 - cache.limit).max(0.0) * lasts / cache.limit;
        for (nth, its) in self.queue.iter().enumerate() {
            let blocks = its.blocks * part;
            begun = begun
                .max(until_room(&mut ends, &mut used, blocks, cache.room))
                .max(turn(self.running.len() + nth))
                .max(computed);
            let mut seconds = its.uncached / cache.rate;
            if nth == 0 {
                seconds = (seconds - elapsed).max(0.0);
            }
            used += blocks;
            computed = begun + seconds;
            // A prompt that is computed for another engine leaves at once.
            let end = computed + its.most.map_or(lasts, |most| lasts.min((most - 1.0).max(0.0) * step));
            let at = ends.partition_point(|its| its.0 <= end);
            ends.insert(at, (end, blocks));
        }
        Forecast { computed, begun, turn: turn(self.requests()), used, ends }
    }
}

/// Removes the earliest of the given ends of requests, and frees their blocks, until `blocks` more blocks fit into the
/// cache of `room` blocks. Returns the seconds until then.
fn until_room(ends: &mut VecDeque<(f64, f64)>, used: &mut f64, blocks: f64, room: f64) -> f64 {
    let mut until = 0.0_f64;
    while *used + blocks > room
        && let Some((end, freed)) = ends.pop_front()
    {
        until = until.max(end);
        *used -= freed;
    }
    until
}

impl Forecast {
    /// Seconds from the end of all earlier prompts' computation until the cache has room for one more request, with
    /// `own` blocks that no other request shares.
    pub(super) fn wait_for_room(&self, own: f64, room: f64) -> f64 {
        let (mut used, mut until) = (self.used, self.begun.max(self.turn));
        for (end, freed) in &self.ends {
            if used + own <= room {
                break;
            }
            until = until.max(*end);
            used -= freed;
        }
        (until - self.computed).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distribution of answer lengths with 100 tokens each: 10 s at 0.1 s a token.
    fn answers() -> Answers {
        let mut answers = Answers::default();
        for _ in 0..2_048 {
            answers.add(100.0);
        }
        answers
    }

    fn cache(used: f64) -> Cache {
        Cache { room: 100.0, used, block_size: 1e9, rate: 1_000.0, elapsed: 0.0, others: 0.0, limit: f64::INFINITY }
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-6, "{a} is not {b}");
    }

    #[test]
    fn a_prompt_waits_until_enough_have_ended() {
        let (mut engine, answers) = (Engine::default(), answers());
        for (number, first) in [(1, 0.0), (2, 5.0)] {
            engine.sent(number, 0.0, 1e3, 40.0, None, Tail::default());
            engine.first_token(number, first);
        }
        // At 5 s, 80 of 100 blocks: the first ends in 5 s (a little more, as it may turn out longer), the second in 10 s.
        let forecast = engine.forecast(&cache(80.0), &answers, 0.1, 5.0);
        let (first, second) = (answers.left(50.0) * 0.1, answers.left(0.0) * 0.1);
        close(second, 10.0);
        assert!(first > 5.0 && first < 5.1, "{first}");
        close(forecast.wait_for_room(19.0, 100.0), 0.0);
        close(forecast.wait_for_room(30.0, 100.0), first);
        close(forecast.wait_for_room(61.0, 100.0), second);
        // More blocks than there is room for: when no request runs any more.
        close(forecast.wait_for_room(500.0, 100.0), second);
    }

    #[test]
    fn the_load_of_an_answer_is_what_ran_while_it_came() {
        let mut engine = Engine::default();
        for (number, first) in [(1, 0.0), (2, 5.0)] {
            engine.sent(number, 0.0, 1e3, 40.0, None, Tail::default());
            engine.first_token(number, first);
        }
        // One for 5 s, two for another 5 s.
        let (load, times) = engine.answered(1, 101.0, 16.0, 10.0).unwrap();
        close(load.requests, 1.5);
        close(load.tokens, 1.5 * 40.0 * 16.0);
        close(times, 1.0);
        engine.ended(1, 10.0);
        let (load, _) = engine.answered(2, 101.0, 16.0, 15.0).unwrap();
        close(load.requests, 1.5);
    }

    #[test]
    fn an_engine_at_its_limit_begins_with_a_prompt_as_others_end() {
        let (mut engine, answers) = (Engine::default(), answers());
        for number in 0..4 {
            engine.sent(number, 0.0, 1e3, 10.0, None, Tail::default());
            engine.first_token(number, 0.0);
        }
        let wait = |engine: &Engine, limit: f64| {
            let forecast = engine.forecast(&Cache { limit, ..cache(40.0) }, &answers, 0.1, 0.0);
            forecast.computed + forecast.wait_for_room(10.0, 100.0)
        };
        // Of four that take 10 s each, one ends each 2.5 s.
        close(wait(&engine, f64::INFINITY), 0.0);
        close(wait(&engine, 5.0), 0.0);
        close(wait(&engine, 4.0), 2.5);
        engine.sent(4, 1_000.0, 1e3, 10.0, None, Tail::default());
        close(wait(&engine, f64::INFINITY), 1.0);
        close(wait(&engine, 4.0), 5.0);
        assert!(engine.is_blocked(&Cache { limit: 4.0, ..cache(50.0) }, 0.1, 0.0));
        assert!(!engine.is_blocked(&Cache { limit: 5.0, ..cache(50.0) }, 0.1, 0.0));
    }

    #[test]
    fn prompts_that_are_computed_for_other_engines_leave_at_once() {
        let wait = |most: Option<f64>| {
            let (mut engine, answers) = (Engine::default(), answers());
            engine.sent(1, 1_000.0, 1e3, 80.0, most, Tail::default());
            let waits = engine.forecast(&cache(80.0), &answers, 0.1, 0.0);
            engine.first_token(1, 1.0);
            let runs = engine.forecast(&cache(80.0), &answers, 0.1, 1.0);
            close(waits.computed, 1.0);
            [waits.wait_for_room(50.0, 100.0), runs.wait_for_room(50.0, 100.0)]
        };
        let close_all = |is: [f64; 2], should: [f64; 2]| is.iter().zip(should).for_each(|(a, b)| close(*a, b));
        close_all(wait(None), [10.0, 10.0]);
        close_all(wait(Some(1_000.0)), [10.0, 10.0]);
        // One token, which the prompt ends with; four more tokens.
        close_all(wait(Some(1.0)), [0.0, 0.1]);
        close_all(wait(Some(5.0)), [0.4, 0.5]);
    }

    #[test]
    fn what_is_shared_is_free_when_the_last_has_ended() {
        let (mut engine, answers) = (Engine::default(), answers());
        // Ten of 40 blocks, 36 of which they share: 76 in use, 7.6 each.
        for number in 0..10 {
            engine.sent(number, 0.0, 1e3, 40.0, None, Tail::default());
            engine.first_token(number, number as f64);
        }
        let forecast = engine.forecast(&cache(76.0), &answers, 0.1, 9.0);
        close(forecast.wait_for_room(23.0, 100.0), 0.0);
        // 26 of its own: one must end.
        close(forecast.wait_for_room(26.0, 100.0), answers.left(90.0) * 0.1);
    }

    #[test]
    fn prompts_wait_behind_one_that_has_no_room() {
        let (mut engine, answers) = (Engine::default(), answers());
        engine.sent(1, 0.0, 1e3, 80.0, None, Tail::default());
        engine.first_token(1, 0.0);
        engine.sent(2, 2_000.0, 1e3, 50.0, None, Tail::default());
        engine.sent(3, 1_000.0, 1e3, 5.0, None, Tail::default());
        let here = cache(135.0);
        engine.look(&here, 0.1, 3.0);
        let left = answers.left(30.0) * 0.1;
        // The second prompt cannot begin before the first has ended: the 3 s before count for nothing.
        let elapsed = engine.elapsed(3.0, 3.0);
        close(elapsed, 3.0);
        let forecast = engine.forecast(&Cache { elapsed, ..here }, &answers, 0.1, 3.0);
        close(forecast.computed, left + 2.0 + 1.0);
        // A small one begins right after those before it, though it would have had room at once.
        close(forecast.wait_for_room(1.0, 100.0), 0.0);
        // After the end of the first, the second's turn is since then.
        engine.answered(1, 41.0, 16.0, 4.0);
        close(engine.step(), 0.1);
        engine.ended(1, 4.0);
        close(engine.elapsed(4.5, 4.5), 0.5);
        let forecast = engine.forecast(&Cache { elapsed: 0.5, ..cache(55.0) }, &answers, 0.1, 4.5);
        close(forecast.computed, 1.5 + 1.0);
        engine.first_token(2, 6.0);
        close(engine.elapsed(1.0, 7.0), 1.0);
        engine.ended(2, 7.0);
        engine.ended(3, 7.0);
        assert_eq!((engine.requests(), engine.blocks, engine.grown(0.1, 1.0, 9.0)), (0, 0.0, 0.0));
    }
}
