//! Forecast of admission: when an engine will start with a prompt that is sent to it now.
//!
//! Engines serve first come, first served: a prompt starts when the one before it is computed and there is room for its
//! blocks. Running requests free their room at their end, after the expected rest of their answers. Blocks that several
//! requests share become free with the last of them; here each request counts for its part of all blocks in use.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::cost::answers::Answers;
use crate::cost::demand::Demand;
use crate::cost::idle::Tail;
use crate::cost::slowness::Load;

/// Least weight of a new sample of the time between tokens.
const SLOWEST: f64 = 0.02;
/// Number of tokens that an answer must have for a sample of the time between tokens.
const LEAST_TOKENS: f64 = 8.0;

/// Seconds for which a forecast is reused while nothing happens at the engine. With many running requests, it takes
/// microseconds.
const HOLDS: f64 = 0.02;

/// Request without a first token.
#[derive(Debug, Clone, Copy)]
struct QueuedRequest {
    number: u64,
    /// Number of tokens to compute; `prefill`: seconds that this was expected to take.
    uncached: f64,
    prefill: f64,
    blocks: f64,
    /// Largest number of tokens that the request may generate; None if it does not say.
    most: Option<f64>,
    tail: Tail,
}

/// Request with a first token.
#[derive(Debug, Clone, Copy)]
struct RunningRequest {
    number: u64,
    first_token: f64,
    prefill: f64,
    blocks: f64,
    /// [`Area`] of the engine at the request's first token.
    area: Area,
    most: Option<f64>,
    tail: Tail,
}

/// Running requests at an engine, and their blocks, integrated over time in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Area {
    at: f64,
    requests: f64,
    blocks: f64,
}

/// The router's requests at one worker, with the statistics of its steps.
#[derive(Debug, Default)]
pub(super) struct Engine {
    /// Requests without a first token, in the order in which they were sent.
    queue: VecDeque<QueuedRequest>,
    running: Vec<RunningRequest>,
    /// Blocks of all requests; `first_tokens` and `running_blocks` are sums over the running ones.
    blocks: f64,
    first_tokens: f64,
    running_blocks: f64,
    area: Area,
    /// Mean time between two tokens of a request, in seconds; `samples`: number of its samples.
    step: f64,
    samples: f64,
    pub(super) demand: Demand,
    last_end: f64,
    /// True if the first request of the queue was found to have no room.
    blocked: bool,
    /// The last forecast, and its time; None if something has happened since.
    foreseen: RefCell<Option<(f64, Forecast)>>,
}

/// State of an engine's cache and its speed, from a candidate's row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cache {
    /// Number of blocks that fit into the cache; infinite if unknown.
    pub(super) room: f64,
    /// Blocks in use by prompts, including other routers' requests.
    pub(super) used: f64,
    pub(super) block_size: f64,
    /// Prompt tokens computed per second.
    pub(super) rate: f64,
    /// Seconds since the prompt at the head of the queue got there, if there was room for it.
    pub(super) elapsed: f64,
    /// Seconds of prompts that other routers have sent to the engine.
    pub(super) others: f64,
    /// Largest number of requests that run at once, less those of other routers; infinite if unknown.
    pub(super) limit: f64,
}

/// Forecast of an engine's requests if no other comes.
#[derive(Debug, Clone, Default)]
pub(super) struct Forecast {
    /// Seconds until all present prompts are computed, if the first is not late; `begun`: seconds until the last of
    /// them starts.
    pub(super) computed: f64,
    begun: f64,
    /// Seconds until enough requests have ended for one more to run.
    turn: f64,
    /// Blocks in use when the last of the present prompts starts, including its own.
    used: f64,
    /// Requests that end later, in this order: seconds until the end, and number of blocks freed.
    ends: VecDeque<(f64, f64)>,
}

impl Engine {
    /// Adds a request that is sent to the engine.
    pub(super) fn sent(&mut self, number: u64, uncached: f64, rate: f64, blocks: f64, most: Option<f64>, tail: Tail) {
        *self.foreseen.get_mut() = None;
        self.queue.push_back(QueuedRequest { number, uncached, prefill: uncached / rate, blocks, most, tail });
        self.blocks += blocks;
    }

    /// Records the first token of a request.
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

    /// Integrates the running requests and their blocks until now.
    fn pass(&mut self, now: f64) {
        let passed = (now - self.area.at).max(0.0);
        self.area.at = now.max(self.area.at);
        self.area.requests += passed * self.running.len() as f64;
        self.area.blocks += passed * self.running_blocks;
    }

    /// Records that a running request has generated `tokens` tokens in all. Returns the mean load meanwhile, and the
    /// time between its tokens relative to the usual one; None if it has too few tokens.
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

    /// Removes a request that has ended. Returns the end of its prompt and the number of tokens of its answer, if it
    /// had a first one.
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

    /// Prompt tokens to compute for requests without a first token, without those expected in the cache.
    pub(super) fn queued_tokens(&self) -> f64 {
        self.queue.iter().map(|its| its.uncached).sum()
    }

    /// Number of requests at the worker.
    pub(super) fn requests(&self) -> usize {
        self.queue.len() + self.running.len()
    }

    /// Mean time between two tokens of a request, in seconds; 0 if unknown.
    pub(super) fn step(&self) -> f64 {
        self.step
    }

    /// Number of blocks that answers have filled so far.
    pub(super) fn grown(&self, step: f64, block_size: f64, now: f64) -> f64 {
        ((self.running.len() as f64 * now - self.first_tokens) / (step * block_size)).max(0.0)
    }

    /// Fraction of its blocks that each request counts for, as requests share blocks.
    fn part(&self, used: f64) -> f64 {
        if self.blocks > 0.0 { (used / self.blocks).min(1.0) } else { 1.0 }
    }

    /// True if there is no room for the first request of the queue.
    fn is_blocked(&self, cache: &Cache, step: f64, now: f64) -> bool {
        let Some(first) = self.queue.front() else { return false };
        let running: f64 = self.running.iter().map(|its| its.blocks).sum();
        (running + first.blocks) * self.part(cache.used) + self.grown(step, cache.block_size, now) > cache.room
            || self.running.len() as f64 >= cache.limit
    }

    /// Records whether there is room for the first request of the queue.
    pub(super) fn look(&mut self, cache: &Cache, step: f64, now: f64) {
        self.blocked = self.blocked || self.is_blocked(cache, step, now);
    }

    /// Seconds for which the prompt at the head could have been computed, given the seconds since it got there.
    pub(super) fn elapsed(&self, since_turn: f64, now: f64) -> f64 {
        if self.blocked { since_turn.min(now - self.last_end) } else { since_turn }
    }

    /// Calls `read` with a forecast for the engine, made now or a moment ago.
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

    /// Makes a forecast for the engine. `step`: seconds between two tokens of a request.
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

/// Ends requests until there is room for `blocks`; returns the seconds until then.
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
    /// Seconds, beyond those until all prompts before are computed, until there is room for one more request with `own`
    /// blocks that it shares with no other.
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

    /// Answers of 100 tokens at 0.1 s each: 10 s in all.
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
