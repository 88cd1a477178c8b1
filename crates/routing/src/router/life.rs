//! Events of a request after it was placed at a worker: first token, further tokens, and end.

use std::cmp::Reverse;

use crate::policy::Placement;
use crate::router::outcome::{FinishedRequest, RequestId, Usage, WorkerId};
use crate::router::request_changes::ComputeTime;
use crate::router::{Reservation, Router};
use crate::time::Time;

/// Smallest number of an answer's tokens over which the time between tokens is measured for one sample.
const STEPS: f64 = 8.0;
/// Lower limit of the weight of a new request in the mean number of generated tokens.
const OUTPUT_SHARE: f64 = 0.02;
/// Factor by which the sums `computed` (prompt tokens computed) and `gone` (prompt tokens evicted before reuse) shrink
/// with each request that ends.
const KEPT: f64 = 1.0 - 1.0 / 512.0;

impl Router {
    /// Records a request's first token: its prompt is computed. No effect if the request had one, or is not at a
    /// worker.
    pub fn first_token(&mut self, id: RequestId, now: f64) {
        self.has_first_token(id, true, now);
    }

    /// Records a request's first token. `computed`: true if the request's worker computed the prompt; a prompt computed
    /// elsewhere says nothing about the prompts waiting at this worker.
    pub(super) fn has_first_token(&mut self, id: RequestId, computed: bool, now: f64) {
        let now = self.at(now);
        let Some(its) = self.placed.get_mut(&id.0) else { return };
        if its.first_token.is_some() {
            return;
        }
        self.first_tokens += u64::from(computed);
        its.first_token = Some(now);
        its.heard = now;
        its.steps_since = now;
        its.deadline = now + self.config.idle_timeout;
        self.due.push(Reverse((Time(its.deadline), id.0)));
        if let Some(leaf) = its.leaf {
            self.on_the_way.until(leaf, id.0, now + self.config.announced_within);
        }
        let worker = its.worker;
        self.transfers.heard(worker, now);
        if let Some(moved) = &mut its.moved {
            moved.arrive(&mut self.transfers);
        }
        if !its.passed {
            // What is computed behind it does not wait for it, so nothing does.
            if let Some(late) = self.fleet.late_head(worker, now).filter(|head| computed && *head != id.0) {
                self.pass(late, now);
            }
            let Some(its) = self.placed.get(&id.0) else { return };
            let how = if computed { ComputeTime::Now } else { ComputeTime::Unknown };
            self.fleet.dequeue(worker, id.0, &its.share, how, now);
            self.policy.first_token(&its.placed(id), now);
        }
        self.room.came_to(worker);
    }

    /// Removes a prompt from its worker's queue before its first token is known, as it keeps no other prompt from being
    /// computed.
    fn pass(&mut self, number: u64, now: f64) {
        let Some(its) = self.placed.get_mut(&number).filter(|its| its.first_token.is_none() && !its.passed) else {
            return;
        };
        its.passed = true;
        self.fleet.dequeue(its.worker, number, &its.share, ComputeTime::Unknown, now);
        self.policy.first_token(&its.placed(RequestId(number)), now);
        self.room.came_to(its.worker);
    }

    /// Records that the answer of a request just placed will arrive all at once, so that its first token will not be
    /// reported. The prompt then counts as computed at the expected time; otherwise a request that generates for half a
    /// minute would look like a prompt that blocks the queue. The end of the request can only raise the estimate of the
    /// worker's speed.
    ///
    /// If first tokens are never reported, all requests are treated like this.
    pub fn comes_whole(&mut self, id: RequestId, now: f64) {
        let now = self.at(now);
        let Some(its) = self.placed.get_mut(&id.0) else { return };
        if let Some(moved) = &mut its.moved {
            moved.comes_whole();
        }
        if its.first_token.is_none() && !its.passed {
            let until = now + self.fleet.until_computed(its.worker, now);
            if self.unseen.len() > 4 * self.placed.len() + 1024 {
                // Many have ended before they should have been computed.
                self.unseen.retain(|Reverse((_, number))| self.placed.get(number).is_some_and(|its| !its.passed));
            }
            self.unseen.push(Reverse((Time(until), id.0)));
        }
    }

    /// Removes prompts from their workers' queues whose expected time of computation has passed and whose first tokens
    /// are not reported.
    fn pass_unseen(&mut self, now: f64) {
        while let Some(&Reverse((time, number))) = self.unseen.peek()
            && time.0 <= now
        {
            self.unseen.pop();
            self.pass(number, now);
        }
    }

    /// Records `tokens` more generated tokens of a request, summed over all its answers, without the first token.
    pub fn progress(&mut self, id: RequestId, tokens: u32, now: f64) {
        let now = self.at(now);
        let Some(its) = self.placed.get_mut(&id.0) else { return };
        its.heard = now;
        self.transfers.heard(its.worker, now);
        let tokens = f64::from(tokens);
        let less = its.share.output_left.min(tokens);
        its.share.output_left -= less;
        its.share.generated += tokens;
        self.fleet.add_tokens(its.worker, tokens, less);
        its.steps += tokens;
        if its.first_token.is_some() && its.steps >= STEPS * its.answers {
            self.fleet.learn_step(its.worker, (now - its.steps_since) * its.answers / its.steps);
            its.steps = 0.0;
            its.steps_since = now;
        }
    }

    /// Ends a request that succeeded. None if it had ended before.
    pub fn finish(&mut self, id: RequestId, usage: Usage, now: f64) -> Option<FinishedRequest> {
        let now = self.at(now);
        let generated = self.placed.get(&id.0).map(|its| (its.share.generated, its.first_token.is_some()))?;
        if !generated.1 && usage.output_tokens != Some(0) {
            // An answer that was not streamed: the time of its first token is unknown.
            self.released_unseen(id, now);
        }
        if let Some(unheard) = &mut self.unheard {
            let output = usage.output_tokens.map_or(generated.0, f64::from) as usize;
            unheard.ended(id.0, output / self.config.block_size.max(1) as usize, now);
        }
        // A caller that reports neither tokens nor their number teaches nothing.
        let told = (generated.0 > 0.0).then_some(generated.0 + 1.0);
        let output = usage.output_tokens.map(f64::from).or(told);
        if let (Some(its), Some(output)) = (self.placed.get(&id.0), output) {
            self.policy.answered(&its.placed(id), output / its.answers, now);
        }
        let its = self.release(id.0, now)?;
        if let (Some(first), Some(output), true) = (its.first_token, usage.output_tokens, its.share.generated == 0.0) {
            let steps = f64::from(output) / its.answers - 1.0;
            if steps >= STEPS {
                self.fleet.learn_step(its.worker, (now - first) / steps);
            }
        }
        if let Some(computed) = usage.computed_tokens {
            let took = its.first_token.unwrap_or(now) - its.sent;
            self.fleet.learn_told(its.worker, f64::from(computed), took);
        }
        if let Some(output) = output {
            self.outputs += 1.0;
            self.mean_output += (output / its.answers - self.mean_output) * (1.0 / self.outputs).max(OUTPUT_SHARE);
        }
        Some(self.count_finished(&its, usage))
    }

    /// Counts a request that succeeded, and compares the cached tokens that its engine reported with the expected ones.
    /// Returns the expected and actual values.
    pub(super) fn count_finished(&mut self, its: &Reservation, usage: Usage) -> FinishedRequest {
        self.counts.finished += 1;
        self.note_transfer(its, usage.cached_tokens);
        if let Some(cached) = usage.cached_tokens {
            self.counts.expected_cached += u64::from(its.cached);
            self.counts.reported_cached += u64::from(cached);
            self.computed = self.computed * KEPT + f64::from(its.uncached);
            self.gone = self.gone * KEPT + f64::from(its.cached.saturating_sub(cached));
        }
        FinishedRequest {
            worker: WorkerId(its.worker),
            expected_cached: its.cached,
            cached: usage.cached_tokens,
            ttft: its.first_token.map(|first| first - its.sent),
        }
    }

    /// Ends a request that failed, so that its blocks do not count as cached, or removes a waiting request. Returns
    /// false if it had ended before.
    pub fn fail(&mut self, id: RequestId, now: f64) -> bool {
        let now = self.at(now);
        if self.withdraw(id.0) {
            self.counts.failed += 1;
            self.counts.withdrawn += 1;
            return true;
        }
        let Some(leaf) = self.placed.get(&id.0).map(|its| its.leaf) else { return false };
        if let Some(leaf) = leaf {
            self.on_the_way.forget(leaf, id.0);
        }
        self.give_up(id.0, now);
        self.counts.failed += 1;
        true
    }

    /// Abandons requests about which nothing was reported for too long; returns their number. Also called by
    /// [`Router::choose`].
    pub fn expire(&mut self, now: f64) -> usize {
        let now = self.at(now);
        self.expire_until(now)
    }

    pub(super) fn expire_until(&mut self, now: f64) -> usize {
        self.pass_unseen(now);
        self.end_peers(now);
        self.look_at_late_pulls(now);
        let mut given_up = 0;
        while let Some(&Reverse((time, number))) = self.due.peek()
            && time.0 <= now
        {
            self.due.pop();
            let Some(its) = self.placed.get_mut(&number) else { continue };
            let deadline = if its.first_token.is_some() { its.heard + self.config.idle_timeout } else { its.deadline };
            if deadline > now {
                its.deadline = deadline;
                self.due.push(Reverse((Time(deadline), number)));
                continue;
            }
            if let Some(leaf) = its.leaf {
                self.on_the_way.forget(leaf, number);
            }
            self.give_up(number, now);
            self.counts.expired += 1;
            given_up += 1;
        }
        self.on_the_way.expire(now);
        self.sessions.expire(now);
        given_up
    }

    /// Removes a request from all data of the router; None if it is unknown.
    pub(super) fn release(&mut self, number: u64, now: f64) -> Option<Reservation> {
        let mut its = self.placed.remove(&number)?;
        if let Some(moved) = &mut its.moved {
            moved.arrive(&mut self.transfers);
        }
        if let Some(unheard) = &mut self.unheard {
            // What finished well is not with it any more.
            unheard.failed(number, now);
        }
        if its.first_token.is_none() && !its.passed {
            self.fleet.dequeue(its.worker, number, &its.share, ComputeTime::Unknown, now);
        }
        self.fleet.end(its.worker, &its.share);
        let freed = its.leaf.map_or(0, |leaf| self.on_the_way.release(leaf, its.worker));
        self.fleet.add_used(its.worker, -(f64::from(freed) + its.nameless));
        self.policy.ended(&Placement { freed, ..its.placed(RequestId(number)) }, now);
        self.room.came_to(its.worker);
        Some(its)
    }

    /// Records the first token of a request whose whole answer arrived at once, so that the time of the token is
    /// unknown.
    fn released_unseen(&mut self, id: RequestId, now: f64) {
        let Some(its) = self.placed.get_mut(&id.0) else { return };
        let how = ComputeTime::Before { sent: its.sent };
        if let Some(leaf) = its.leaf {
            self.on_the_way.until(leaf, id.0, now + self.config.announced_within);
        }
        if !its.passed {
            its.passed = true;
            self.fleet.dequeue(its.worker, id.0, &its.share, how, now);
            self.policy.first_token(&its.placed(id), now);
        }
    }
}

impl Reservation {
    fn placed(&self, id: RequestId) -> Placement {
        Placement { number: id.0, worker: self.worker, uncached: self.uncached, freed: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Depths, Options, Outcome, Request, by_name};

    #[test]
    fn whole_answers_prove_speed_and_never_slowness() {
        let learnt = |seconds: f64| {
            let mut router = Router::new(Config::default(), by_name("random", Options::default(), 0).unwrap());
            router.add_worker("a", 0, 1.0, 0.0);
            let start = router.candidates(0.0).prefill_rate[0];
            for number in 0..50 {
                let now = f64::from(number);
                let request = Request { tokens: 1000, ..Request::default() };
                let Outcome::Placed(one) = router.choose(&request, &Depths::unknown(), now) else { unreachable!() };
                router.comes_whole(one.id, now);
                router.finish(one.id, Usage { output_tokens: Some(9), ..Usage::default() }, now + seconds);
            }
            router.candidates(60.0).prefill_rate[0] / start
        };
        assert!(learnt(0.002) > 4.0, "{}", learnt(0.002));
        assert!((learnt(0.9) - 1.0).abs() < 1e-9, "{}", learnt(0.9));
    }

    /// Checks that workers without a finished request count as being as fast as the fleet; otherwise all requests would
    /// go to the first engine that has answered one.
    #[test]
    fn who_has_not_worked_yet_counts_as_the_fleet_from_the_first_answer_on() {
        let mut router = Router::new(Config::default(), by_name("random", Options::default(), 0).unwrap());
        for name in ["a", "b"] {
            router.add_worker(name, 0, 1.0, 0.0);
        }
        let request = Request { tokens: 4000, ..Request::default() };
        let Outcome::Placed(one) = router.choose(&request, &Depths::unknown(), 0.0) else { unreachable!() };
        router.first_token(one.id, 0.01);
        let rates = router.candidates(0.02).prefill_rate.to_vec();
        assert!((rates[0] / rates[1] - 1.0).abs() < 1e-9, "{rates:?}");
    }

    #[test]
    fn a_whole_answer_that_ends_late_says_nothing_of_others() {
        let mut router = Router::new(Config::default(), by_name("random", Options::default(), 0).unwrap());
        router.add_worker("a", 0, 1.0, 0.0);
        let send = |router: &mut Router| {
            let request = Request { tokens: 8000, ..Request::default() };
            let Outcome::Placed(one) = router.choose(&request, &Depths::unknown(), 0.0) else { unreachable!() };
            one.id
        };
        let (whole, streamed) = (send(&mut router), send(&mut router));
        router.comes_whole(whole, 0.0);
        let start = router.candidates(0.0).prefill_rate[0];
        // What was computed before the other's first token is not counted after it.
        router.first_token(streamed, 0.5);
        let before = router.candidates(0.5).prefill_rate[0];
        router.finish(whole, Usage { output_tokens: Some(9), ..Usage::default() }, 0.502);
        assert!(before > 0.0 && start > 0.0);
        assert_eq!(router.candidates(0.502).prefill_rate[0], before);
    }

    #[test]
    fn deadlines_of_what_has_ended_do_not_pile_up() {
        let config = Config { queue_limit: 0, ..Config::default() };
        let mut router = Router::new(config, by_name("random", Options::default(), 0).unwrap());
        router.add_worker("a", 0, 1.0, 0.0);
        for number in 0..20_000 {
            let now = f64::from(number) * 1e-3;
            let request = Request { tokens: 10, ..Request::default() };
            let Outcome::Placed(decision) = router.choose(&request, &Depths::unknown(), now) else { unreachable!() };
            if number % 2 == 0 {
                router.first_token(decision.id, now);
            } else {
                router.comes_whole(decision.id, now);
            }
            router.finish(decision.id, Usage::default(), now);
            assert!(router.due.len() < 2_048, "{}", router.due.len());
            assert!(router.unseen.len() < 2_048, "{}", router.unseen.len());
        }
        // One that is still there is still given up.
        let Outcome::Placed(_) = router.choose(&Request::default(), &Depths::unknown(), 20.0) else { unreachable!() };
        assert_eq!(router.expire(20.0 + router.config.first_token_timeout), 1);
    }
}
