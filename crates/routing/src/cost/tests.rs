//! Tests of the policy `kvatlas` within a router.

use super::Kvatlas;
use crate::candidates::Candidates;
use crate::options::Options;
use crate::parts::draw::Draw;
use crate::policy::{Choice, Placement, Policy};
use crate::request::Request;
use crate::transfers::Ways;
use crate::{Config, Depth, Depths, Load, Outcome, Router, Usage};

/// Policy `kvatlas` that checks each choice against the costs of all candidates.
struct CheckedPolicy(Kvatlas);

impl CheckedPolicy {
    fn compare(
        &mut self,
        row: usize,
        request: &Request<'_>,
        candidates: &Candidates,
        ways: Option<&Ways<'_>>,
        now: f64,
    ) {
        self.0.assess_all(request, candidates, ways, now);
        let least = self.0.costs.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(self.0.costs[row] <= least + 1e-9, "{} s at row {row}, {least} s elsewhere", self.0.costs[row]);
    }
}

impl Policy for CheckedPolicy {
    fn name(&self) -> &'static str {
        "compared"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let choice = self.0.choose(request, candidates, now);
        if let Choice::Row(row) | Choice::WaitFor { row, .. } = choice {
            self.compare(row, request, candidates, None, now);
        }
        choice
    }

    fn weighs_transfers(&self) -> bool {
        true
    }

    fn choose_way(&mut self, request: &Request<'_>, candidates: &Candidates, ways: &Ways<'_>, now: f64) -> Choice {
        let choice = self.0.choose_way(request, candidates, ways, now);
        if let Choice::Row(row) | Choice::WaitFor { row, .. } = choice {
            self.compare(row, request, candidates, Some(ways), now);
        }
        choice
    }

    fn choose_way_now(
        &mut self,
        request: &Request<'_>,
        candidates: &Candidates,
        ways: &Ways<'_>,
        now: f64,
    ) -> Option<usize> {
        let row = self.0.choose_way_now(request, candidates, ways, now)?;
        self.compare(row, request, candidates, Some(ways), now);
        Some(row)
    }

    fn choose_now(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<usize> {
        let row = self.0.choose_now(request, candidates, now)?;
        self.compare(row, request, candidates, None, now);
        Some(row)
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        self.0.sent(request, candidates, row, now);
    }

    fn first_token(&mut self, placed: &Placement, now: f64) {
        self.0.first_token(placed, now);
    }

    fn answered(&mut self, placed: &Placement, tokens: f64, now: f64) {
        self.0.answered(placed, tokens, now);
    }

    fn ended(&mut self, placed: &Placement, now: f64) {
        self.0.ended(placed, now);
    }
}

#[test]
fn the_cheapest_is_found_without_a_close_look_at_all() {
    let mut pulled = 0;
    for seed in 0..40 {
        // In every second fleet, engines have other tiers, and pull from each other in two groups.
        let moves = seed % 4 >= 2;
        let mut draw = Draw::new(seed);
        let mut below = |most: u64| draw.below(most as usize) as u64;
        let quick = |slow: f64| if seed % 8 < 4 { slow / 100.0 } else { slow };
        let slow = Config::default();
        let config = Config {
            queue_limit: if seed % 2 == 0 { 0 } else { 100 },
            pull_setup: quick(slow.pull_setup),
            pull_floor: quick(slow.pull_floor),
            ..slow
        };
        let policy = CheckedPolicy(Kvatlas::new(&mut Options::default(), seed).unwrap());
        let mut router = Router::new(config, Box::new(policy));
        let workers: Vec<_> = (0..12).map(|nth| router.add_worker(&format!("{nth}"), 0, 1.0, 0.0)).collect();
        for worker in &workers[1..] {
            let capacity_blocks = Some(500.0 + below(2_000) as f64);
            router.report(*worker, &Load { capacity_blocks, ..Load::default() }, 0.0);
        }
        for (nth, worker) in workers.iter().enumerate().filter(|(nth, _)| moves && nth % 6 != 5) {
            router.set_pulls(*worker, Some(if nth % 3 == 0 { "one" } else { "other" }), 0.0);
        }
        let (mut open, mut now) = (Vec::new(), 0.0);
        for _ in 0..600 {
            now += below(100) as f64 / 1e3;
            for worker in &workers {
                router.heard(*worker, now);
            }
            let family = below(20);
            let prompt: Vec<u64> = (0..10 + below(400)).map(|block| family << 32 | block).collect();
            let request = Request {
                tokens: prompt.len() as u32 * 16,
                block_size: 16,
                content_hashes: &prompt,
                tells: below(8) > 0,
                ..Request::default()
            };
            let mut depths = Depths::default();
            depths.begin();
            for worker in &workers {
                let mut depth = || below(prompt.len() as u64 + 1) as u32;
                let (device, host, any) = (depth(), depth(), depth());
                if below(3) == 0 {
                    depths.set(worker.0, Depth { device, host: device, any: device });
                }
                if moves && below(4) == 0 {
                    depths.set_loadable(worker.0, host, any, host);
                }
            }
            let outcome = router.choose_or_wait(&request, &depths, None, now);
            let bound = router.bind(now).into_iter().map(|(_, outcome)| outcome);
            for outcome in std::iter::once(outcome).chain(bound) {
                if let Outcome::Placed(decision) = outcome {
                    let expected = decision.cached_tokens;
                    pulled += usize::from(decision.transfer.is_some_and(|transfer| transfer.pull.is_some()));
                    open.push((decision.id, expected));
                }
            }
            if open.len() > 8 {
                let at = below(open.len() as u64) as usize;
                router.first_token(open[at].0, now);
                let (ended, expected) = open.swap_remove(below(open.len() as u64) as usize);
                let cached_tokens = (below(4) > 0).then_some(expected);
                let usage = Usage { output_tokens: Some(below(500) as u32), cached_tokens, ..Usage::default() };
                router.finish(ended, usage, now);
            }
        }
    }
    assert!(pulled > 100, "{pulled} requests pull");
}

/// Outcomes of two requests on one engine with room for three prompts: first a prompt of another client, then the next
/// prompt of a conversation. That conversation's client has always sent the next prompt as soon as it had the answer.
/// It has just received an answer; two other requests run.
fn goes_and_next_turn() -> [Outcome; 2] {
    let policy = Kvatlas::new(&mut Options::default(), 0).unwrap();
    let mut router = Router::new(Config::default(), Box::new(policy));
    let worker = router.add_worker("a", 0, 1.0, 0.0);
    router.report(worker, &Load { capacity_blocks: Some(310.0), ..Load::default() }, 0.0);
    let ask = |router: &mut Router, family: u64, now: f64| {
        let chain: Vec<u64> = (0..100).map(|block| family << 32 | block).collect();
        let request = Request { tokens: 51_201, block_size: 512, content_hashes: &chain, ..Request::default() };
        router.choose(&request, &Depths::unknown(), now)
    };
    let begin = |router: &mut Router, family: u64, now: f64| {
        let Outcome::Placed(decision) = ask(router, family, now) else { panic!("{family} waits at {now}") };
        router.first_token(decision.id, now + 6.0);
        decision.id
    };
    for turn in 0..40 {
        let now = 20.0 * f64::from(turn);
        let id = begin(&mut router, 1, now);
        router.finish(id, Usage { output_tokens: Some(100), ..Usage::default() }, now + 20.0);
    }
    let last = begin(&mut router, 1, 800.0);
    begin(&mut router, 2, 807.0);
    begin(&mut router, 3, 814.0);
    router.finish(last, Usage { output_tokens: Some(100), ..Usage::default() }, 821.0);
    [ask(&mut router, 4, 821.0), ask(&mut router, 1, 821.0)]
}

#[test]
fn room_is_kept_for_a_next_turn_that_comes_at_once() {
    let outcomes = goes_and_next_turn();
    assert!(matches!(outcomes, [Outcome::Waits(_), Outcome::Placed(_)]), "{outcomes:?}");
}

/// Sends `prompts` identical prompts at once to four engines that hold none of their blocks. Returns the number that
/// each engine gets.
fn copies_of(prompts: u32, tokens: u32) -> Vec<u32> {
    let policy = Kvatlas::new(&mut Options::from_json(r#"{"hold": 0}"#).unwrap(), 0).unwrap();
    let mut router = Router::new(Config::default(), Box::new(policy));
    for name in ["a", "b", "c", "d"] {
        router.add_worker(name, 0, 1.0, 0.0);
    }
    let chain: Vec<u64> = (0..u64::from(tokens / 16)).collect();
    let request = Request { tokens, content_hashes: &chain, ..Request::default() };
    for _ in 0..prompts {
        let outcome = router.choose(&request, &Depths::unknown(), 0.0);
        assert!(matches!(outcome, Outcome::Placed(_)), "{outcome:?}");
    }
    router.rows().requests.clone()
}

#[test]
fn a_prompt_on_its_way_is_computed_by_another_as_well_if_too_many_wait_for_it() {
    let engines = |taken: &[u32]| taken.iter().filter(|taken| **taken > 0).count();
    // The total time for which the prompts wait for each other is less than the time to compute one.
    assert_eq!(engines(&copies_of(16, 8_000)), 1);
    let taken = copies_of(160, 8_000);
    assert!(taken.iter().all(|taken| (15..=60).contains(taken)), "{taken:?}");
    // The longer the prompt takes to compute, the more requests wait for it.
    assert!(engines(&copies_of(160, 8_000)) > engines(&copies_of(160, 80_000)));
}

/// Checks the choice for sessions with a common beginning: they go to the engine that holds the beginning, until the
/// delay that all their expected requests would cause there exceeds the cost of computing the beginning once more
/// elsewhere.
#[test]
fn a_new_session_does_not_always_begin_where_its_first_prompt_is_cheapest() {
    let mut router = Router::new(
        Config { step_time: 0.03, ..Config::default() },
        Box::new(Kvatlas::new(&mut Options::default(), 1).unwrap()),
    );
    let workers: Vec<_> = (0..4).map(|nth| router.add_worker(&format!("{nth}"), 0, 1.0, 0.0)).collect();
    for worker in &workers {
        let load = Load { capacity_blocks: Some(24_576.0), ..Load::default() };
        router.report(*worker, &load, 0.0);
    }
    // A beginning of 16,000 tokens, held by every engine that has served a session.
    let (mut held, mut requests, mut homes) = ([0_u32; 4], [0_u32; 4], std::collections::HashMap::new());
    let mut open: Vec<(f64, crate::RequestId)> = Vec::new();
    for nth in 0..6_400_u64 {
        let now = nth as f64 * 0.35;
        // 32 sessions at a time, of twenty requests each.
        let slot = nth % 32;
        let session = slot * 1_000 + (nth / 32 + slot) / 20;
        open.retain(|(until, id)| {
            if *until <= now {
                router.finish(*id, Usage { output_tokens: Some(150), ..Usage::default() }, *until);
            }
            *until > now
        });
        let prompt: Vec<u64> = (0..1_000).chain((0..60).map(|block| (session + 1) << 32 | block)).collect();
        let request = Request {
            tokens: prompt.len() as u32 * 16,
            content_hashes: &prompt,
            session: Some(session),
            ..Request::default()
        };
        let mut depths = Depths::default();
        depths.begin();
        for (worker, blocks) in workers.iter().zip(&held) {
            let blocks = if homes.get(&session) == Some(&worker.0) { 1_059 } else { *blocks };
            depths.set(worker.0, Depth { device: blocks, host: blocks, any: blocks });
        }
        let Outcome::Placed(decision) = router.choose(&request, &depths, now) else { continue };
        let at = decision.worker.0 as usize;
        router.first_token(decision.id, now + f64::from(decision.uncached_tokens) / 8_000.0);
        open.push((now + 6.0, decision.id));
        (held[at], requests[at]) = (1_000, requests[at] + 1);
        homes.insert(session, decision.worker.0);
    }
    assert!(requests.iter().filter(|count| **count > 1_500).count() > 1, "{requests:?}");
}
