//! Loads and pulls of requests: decisions, costs that are learnt, and sources that fail.

use kvatlas_routing::{
    Config, Decision, Depth, Depths, Options, Outcome, PullResult, Request, Router, TransferAction, Usage, WorkerId,
    by_name,
};

const BLOCK: u32 = 16;

/// Workers of one group, a router over them, and the time.
struct Fleet {
    router: Router,
    ids: Vec<WorkerId>,
    now: f64,
    prompts: u64,
}

impl Fleet {
    /// Workers that compute 40,000 tokens a second, as is known of them from the start.
    fn new(workers: usize, config: Config) -> Self {
        let config = Config { prefill_rate: 40_000.0, queue_limit: 0, ..config };
        let mut router = Router::new(config, by_name("kvatlas", Options::default(), 1).unwrap());
        let ids: Vec<_> = (0..workers).map(|at| router.add_worker(&format!("w{at}"), 0, 1.0, 0.0)).collect();
        for id in &ids {
            router.set_pulls(*id, Some("group"), 0.0);
        }
        Self { router, ids, now: 100.0, prompts: 0 }
    }

    fn hear_all(&mut self) {
        for id in self.ids.clone() {
            self.router.heard(id, self.now);
        }
    }

    /// Places a prompt of `blocks` blocks; worker 0 has `pullable` of them in host memory. Only those of `allowed` may take
    /// it.
    fn place(&mut self, blocks: u32, pullable: u32, allowed: &[usize]) -> Decision {
        let mut depths = Depths::unknown();
        depths.begin();
        depths.set_loadable(0, pullable, pullable, pullable);
        self.place_with(blocks, &depths, allowed)
    }

    fn place_with(&mut self, blocks: u32, depths: &Depths, allowed: &[usize]) -> Decision {
        // No two prompts begin alike.
        self.prompts += 1;
        let hashes: Vec<u64> = (0..u64::from(blocks)).map(|block| self.prompts << 20 | block).collect();
        let request = Request {
            tokens: blocks * BLOCK + 1,
            block_size: BLOCK,
            content_hashes: &hashes,
            tells: true,
            ..Request::default()
        };
        let allowed: Vec<_> = allowed.iter().map(|at| self.ids[*at]).collect();
        match self.router.choose_among(&request, depths, Some(&allowed), self.now) {
            Outcome::Placed(decision) => decision,
            other => panic!("not placed: {other:?}"),
        }
    }

    /// The request has its first token after `first_token` seconds, and ends with `cached` tokens from the cache.
    fn end(&mut self, decision: &Decision, first_token: f64, cached: Option<u32>) {
        self.now += first_token;
        self.router.first_token(decision.id, self.now);
        self.router.finish(
            decision.id,
            Usage { cached_tokens: cached, output_tokens: Some(1), ..Usage::default() },
            self.now,
        );
        self.now += 0.01;
        self.hear_all();
    }

    fn pulled(&self, result: PullResult) -> u64 {
        self.router.counts().pulled[result as usize]
    }
}

fn source(decision: &Decision) -> Option<&str> {
    decision.transfer.as_ref()?.pull.as_ref().map(|pull| &*pull.name)
}

fn action(decision: &Decision) -> Option<TransferAction> {
    decision.transfer.as_ref().map(|transfer| transfer.action)
}

#[test]
fn a_prompt_is_pulled_where_that_is_cheaper_than_to_compute_it() {
    let mut fleet = Fleet::new(3, Config::default());
    fleet.hear_all();
    // 2.4 s to compute, 0.4 s to pull with a first connection.
    let decision = fleet.place(6_000, 5_000, &[1]);
    let transfer = decision.transfer.as_ref().unwrap();
    assert_eq!((action(&decision), source(&decision)), (Some(TransferAction::Pull), Some("w0")));
    assert_eq!(transfer.pull.as_ref().unwrap().tokens, 5_000 * BLOCK);
    assert_eq!((decision.cached_tokens, decision.uncached_tokens), (5_000 * BLOCK, 1_000 * BLOCK + 1));
    assert_eq!((transfer.load_tokens, transfer.max_load_tokens, decision.held_blocks), (0, None, None));
    let seconds = 0.0255 + 4.07e-6 * 80_000.0 + 0.13;
    assert!((transfer.seconds - seconds).abs() < 1e-9, "{}", transfer.seconds);
    // 320 tokens take 8 ms to compute.
    let decision = fleet.place(20, 20, &[2]);
    assert_eq!(action(&decision), None);
    assert_eq!(fleet.router.counts().pulls, 1);
}

#[test]
fn who_has_it_in_host_memory_loads_it_and_pulls_from_nobody() {
    let mut fleet = Fleet::new(2, Config::default());
    fleet.hear_all();
    let mut depths = Depths::unknown();
    depths.begin();
    depths.set(1, Depth { device: 100, host: 100, any: 100 });
    depths.set_loadable(1, 4_000, 5_000, 4_000);
    depths.set_loadable(0, 5_000, 5_000, 5_000);
    let decision = fleet.place_with(6_000, &depths, &[1]);
    let transfer = decision.transfer.as_ref().unwrap();
    // The last thousand come from a pool.
    assert_eq!((transfer.action, transfer.load_tokens), (TransferAction::Load, 4_900 * BLOCK));
    let seconds = 0.013 + 2.3e-6 * 3_900.0 * 16.0 + 0.025 + 13.4e-6 * 16_000.0;
    assert!((transfer.seconds - seconds).abs() < 1e-9, "{}", transfer.seconds);
    assert_eq!((transfer.max_load_tokens, decision.cached_tokens), (None, 5_000 * BLOCK));
}

#[test]
fn who_would_load_what_is_cheaper_to_compute_is_kept_from_it() {
    let config = Config { far_token: 1e-3, ..Config::default() };
    let mut fleet = Fleet::new(1, config);
    let mut depths = Depths::unknown();
    depths.begin();
    depths.set(0, Depth { device: 100, host: 100, any: 100 });
    depths.set_loadable(0, 4_000, 5_000, 4_000);
    let decision = fleet.place_with(6_000, &depths, &[0]);
    let transfer = decision.transfer.as_ref().unwrap();
    assert_eq!((transfer.action, transfer.load_tokens), (TransferAction::Load, 3_900 * BLOCK));
    assert_eq!((transfer.max_load_tokens, decision.cached_tokens), (Some(3_900 * BLOCK), 4_000 * BLOCK));
    depths.begin();
    depths.set_loadable(0, 0, 5_000, 0);
    let decision = fleet.place_with(6_000, &depths, &[0]);
    let transfer = decision.transfer.as_ref().unwrap();
    assert_eq!((transfer.action, transfer.max_load_tokens), (TransferAction::Compute, Some(0)));
    assert_eq!(decision.uncached_tokens, 6_000 * BLOCK + 1);
}

#[test]
fn who_cannot_be_told_loads_all_and_pulls_nothing() {
    let mut fleet = Fleet::new(2, Config { far_token: 1e-3, ..Config::default() });
    fleet.hear_all();
    fleet.router.set_pulls(fleet.ids[1], None, fleet.now);
    let mut depths = Depths::unknown();
    depths.begin();
    depths.set_loadable(1, 100, 200, 100);
    depths.set_loadable(0, 0, 0, 6_000);
    let decision = fleet.place_with(6_000, &depths, &[1]);
    let transfer = decision.transfer.as_ref().unwrap();
    assert_eq!((transfer.action, transfer.load_tokens), (TransferAction::Load, 200 * BLOCK));
    assert_eq!((transfer.max_load_tokens, decision.cached_tokens), (None, 200 * BLOCK));
}

#[test]
fn costs_are_learnt_from_first_tokens_and_decide_then() {
    // The floor is 65 times the one that is expected before any sample.
    let (floor, token) = (1.66, 6.1e-6);
    let mut fleet = Fleet::new(2, Config { pair_out: 0.0, ..Config::default() });
    fleet.hear_all();
    let mut pulls = 0;
    for at in 0..20 {
        let blocks = 5_000 + 500 * (at * 7 % 10);
        let decision = fleet.place(blocks, blocks, &[1]);
        let cached = decision.cached_tokens;
        let takes = if source(&decision).is_some() {
            pulls += 1;
            floor + token * f64::from(cached)
        } else {
            f64::from(blocks * BLOCK) / 40_000.0
        };
        fleet.end(&decision, takes, Some(cached));
    }
    let costs = fleet.router.transfer_costs(fleet.now);
    let cost = costs.iter().find(|cost| cost.kind == "pull").unwrap();
    assert_eq!((cost.worker, cost.source), (fleet.ids[1], Some(fleet.ids[0])));
    assert!(pulls >= 10 && cost.samples >= 9, "{pulls} {cost:?}");
    let learnt = cost.line.seconds(100_000.0) / (floor + token * 100_000.0);
    assert!((learnt - 1.0).abs() < 0.1, "{cost:?}");
    // 1.2 s to compute, 1.9 s to pull.
    let decision = fleet.place(3_000, 3_000, &[1]);
    assert_eq!(source(&decision), None);
    let decision = fleet.place(9_000, 9_000, &[1]);
    assert_eq!(source(&decision), Some("w0"));
    assert_eq!(fleet.pulled(PullResult::Brought), pulls);
}

#[test]
fn loads_are_learnt_for_each_worker() {
    let mut fleet = Fleet::new(2, Config::default());
    for at in 0..16 {
        let worker = at % 2;
        let mut depths = Depths::unknown();
        depths.begin();
        let blocks = 2_000 + 400 * (at as u32 / 2);
        depths.set_loadable(worker as u32, blocks, blocks, 0);
        let decision = fleet.place_with(blocks, &depths, &[worker]);
        assert_eq!(action(&decision), Some(TransferAction::Load));
        let token = [2e-6, 12e-6][worker];
        fleet.end(&decision, 0.05 + token * f64::from(decision.cached_tokens), Some(decision.cached_tokens));
    }
    for (at, token) in [2e-6, 12e-6].into_iter().enumerate() {
        let costs = fleet.router.transfer_costs(fleet.now);
        let cost = costs.iter().find(|cost| cost.kind == "host" && cost.worker == fleet.ids[at]).unwrap();
        let learnt = cost.line.seconds(50_000.0) / (0.05 + token * 50_000.0);
        assert!((learnt - 1.0).abs() < 0.1, "{cost:?}");
    }
}

#[test]
fn nobody_pulls_from_a_source_that_was_not_heard_of_a_moment_ago() {
    let mut fleet = Fleet::new(3, Config::default());
    fleet.hear_all();
    fleet.now += 0.9;
    let placed = fleet.place(6_000, 6_000, &[1]);
    assert_eq!(source(&placed), Some("w0"));
    fleet.now += 0.2;
    let placed = fleet.place(6_000, 6_000, &[2]);
    assert_eq!(source(&placed), None);
    fleet.router.heard(fleet.ids[0], fleet.now);
    let placed = fleet.place(6_000, 6_000, &[2]);
    assert_eq!(source(&placed), Some("w0"));
}

#[test]
fn nobody_pulls_from_itself_from_another_group_or_from_one_that_is_not_trusted() {
    let mut fleet = Fleet::new(2, Config::default());
    fleet.hear_all();
    let mut depths = Depths::unknown();
    depths.begin();
    depths.set_loadable(0, 0, 0, 6_000);
    let placed = fleet.place_with(6_000, &depths, &[0]);
    assert_eq!(action(&placed), None);
    let (first, second) = (fleet.ids[0], fleet.ids[1]);
    for (group, expected) in [(Some("other"), None), (None, None), (Some("group"), Some("w0"))] {
        fleet.router.set_pulls(second, group, fleet.now);
        let placed = fleet.place(6_000, 6_000, &[1]);
        assert_eq!(source(&placed), expected, "{group:?}");
        fleet.router.fail(placed.id, fleet.now);
    }
    fleet.router.set_trusted(first, false);
    let placed = fleet.place(6_000, 6_000, &[1]);
    assert_eq!(source(&placed), None);
}

#[test]
fn a_pull_without_a_first_token_takes_its_pair_out_while_it_still_waits() {
    let mut fleet = Fleet::new(4, Config::default());
    fleet.hear_all();
    let frozen = fleet.place(6_000, 6_000, &[1]);
    assert_eq!(source(&frozen), Some("w0"));
    // It is up to date, but does not answer: after 2 s no other waits for it any more, though the first still does.
    for _ in 0..30 {
        fleet.now += 0.1;
        fleet.hear_all();
        fleet.router.expire(fleet.now);
    }
    for consumer in [1, 2, 3] {
        let decision = fleet.place(6_000, 6_000, &[consumer]);
        assert_eq!(source(&decision), None, "{consumer}");
    }
    // The consumer may not be able to pull from other sources either.
    let mut depths = Depths::unknown();
    depths.begin();
    depths.set_loadable(3, 0, 0, 6_000);
    let placed = fleet.place_with(6_000, &depths, &[1]);
    assert_eq!(source(&placed), None);
    let placed = fleet.place_with(6_000, &depths, &[2]);
    assert_eq!(source(&placed), Some("w3"));
    // In the end the prompt was computed.
    fleet.end(&frozen, 27.0, Some(0));
    assert_eq!((fleet.pulled(PullResult::Late), fleet.pulled(PullResult::Nothing)), (1, 0));
    let out = |fleet: &mut Fleet| {
        let costs = fleet.router.transfer_costs(fleet.now);
        costs.iter().find(|cost| cost.worker == WorkerId(1) && cost.source == Some(WorkerId(0))).unwrap().out
    };
    assert!(out(&mut fleet) > 290.0);
    fleet.now += 301.0;
    fleet.hear_all();
    assert_eq!(out(&mut fleet), 0.0);
    let placed = fleet.place(6_000, 6_000, &[1]);
    assert_eq!(source(&placed), Some("w0"));
}

#[test]
fn a_pull_that_was_only_slow_is_forgiven() {
    let mut fleet = Fleet::new(3, Config::default());
    fleet.hear_all();
    let slow = fleet.place(6_000, 6_000, &[1]);
    fleet.now += 6.0;
    fleet.hear_all();
    fleet.router.expire(fleet.now);
    let placed = fleet.place(6_000, 6_000, &[2]);
    assert_eq!(source(&placed), None);
    fleet.end(&slow, 0.0, Some(slow.cached_tokens));
    for consumer in [1, 2] {
        let placed = fleet.place(6_000, 6_000, &[consumer]);
        assert_eq!(source(&placed), Some("w0"));
    }
}

#[test]
fn an_answer_that_comes_as_a_whole_is_not_late() {
    let mut fleet = Fleet::new(3, Config::default());
    fleet.hear_all();
    let whole = fleet.place(6_000, 6_000, &[1]);
    fleet.router.comes_whole(whole.id, fleet.now);
    fleet.now += 20.0;
    fleet.hear_all();
    fleet.router.expire(fleet.now);
    let placed = fleet.place(6_000, 6_000, &[2]);
    assert_eq!(source(&placed), Some("w0"));
    fleet.router.finish(
        whole.id,
        Usage { cached_tokens: Some(96_000), output_tokens: Some(500), ..Usage::default() },
        fleet.now,
    );
    assert_eq!((fleet.pulled(PullResult::Brought), fleet.pulled(PullResult::Late)), (1, 0));
}

#[test]
fn a_pair_that_brings_less_than_was_expected_is_out() {
    let mut fleet = Fleet::new(3, Config::default());
    fleet.hear_all();
    // A pair that brings nothing is excluded at once.
    let decision = fleet.place(6_000, 6_000, &[1]);
    fleet.end(&decision, 2.4, Some(0));
    let placed = fleet.place(6_000, 6_000, &[1]);
    assert_eq!(source(&placed), None);
    // One that brings a part is excluded the second time in a row: once, the rest may just have been evicted.
    for expected in [Some("w0"), Some("w0"), None] {
        let decision = fleet.place(6_000, 6_000, &[2]);
        assert_eq!(source(&decision), expected);
        fleet.end(&decision, 1.0, Some(3_000 * BLOCK));
    }
    assert_eq!((fleet.pulled(PullResult::Nothing), fleet.pulled(PullResult::Short)), (1, 2));
}

#[test]
fn a_consumer_has_few_sources() {
    let mut fleet = Fleet::new(4, Config { pull_sources: 2, ..Config::default() });
    fleet.hear_all();
    for (from, expected) in [(0, Some("w0")), (1, Some("w1")), (2, None), (0, Some("w0"))] {
        let mut depths = Depths::unknown();
        depths.begin();
        depths.set_loadable(from, 0, 0, 6_000);
        let decision = fleet.place_with(6_000, &depths, &[3]);
        assert_eq!(source(&decision), expected);
        fleet.end(&decision, 0.5, Some(6_000 * BLOCK));
    }
    // Once a connection is closed, another source takes its place.
    fleet.now += 200.0;
    for (after, from, expected) in [(0.0, 1, Some("w1")), (200.0, 2, Some("w2")), (0.0, 0, None), (0.0, 1, Some("w1"))]
    {
        fleet.now += after;
        fleet.hear_all();
        let mut depths = Depths::unknown();
        depths.begin();
        depths.set_loadable(from, 0, 0, 6_000);
        let decision = fleet.place_with(6_000, &depths, &[3]);
        assert_eq!(source(&decision), expected, "{from}");
        fleet.end(&decision, 0.5, Some(6_000 * BLOCK));
    }
}

#[test]
fn of_two_sources_the_one_with_less_to_send_is_taken() {
    let mut fleet = Fleet::new(4, Config::default());
    fleet.hear_all();
    let mut depths = Depths::unknown();
    depths.begin();
    depths.set_loadable(0, 0, 0, 6_000);
    depths.set_loadable(1, 0, 0, 6_000);
    let first = fleet.place_with(6_000, &depths, &[2]);
    fleet.now += 0.01;
    let second = fleet.place_with(6_000, &depths, &[3]);
    assert_eq!((source(&first), source(&second)), (Some("w0"), Some("w1")));
    // Tokens that have arrived no longer count for the source.
    fleet.end(&first, 0.5, Some(96_000));
    fleet.end(&second, 0.0, Some(96_000));
    let third = fleet.place_with(6_000, &depths, &[2]);
    assert_eq!(source(&third), Some("w0"));
}

#[test]
fn a_source_that_left_is_named_by_nobody() {
    let mut fleet = Fleet::new(2, Config::default());
    fleet.hear_all();
    let decision = fleet.place(6_000, 6_000, &[1]);
    fleet.router.remove_worker(fleet.ids[0], fleet.now);
    // Another worker gets its number.
    let id = fleet.router.add_worker("new", 0, 1.0, fleet.now);
    assert_eq!(id, fleet.ids[0]);
    fleet.end(&decision, 0.5, Some(96_000));
    let placed = fleet.place(6_000, 6_000, &[1]);
    assert_eq!(source(&placed), None);
    assert!(fleet.router.transfer_costs(fleet.now).is_empty());
}

#[test]
fn a_prompt_that_is_pulled_keeps_no_other_from_being_computed() {
    let mut fleet = Fleet::new(2, Config { pull_floor: 3.0, ..Config::default() });
    fleet.hear_all();
    let pulled = fleet.place(12_000, 12_000, &[1]);
    assert_eq!(source(&pulled), Some("w0"));
    // For the 3.9 s that the pull takes the worker is idle, and late with nothing.
    fleet.now += 3.0;
    let rows = fleet.router.candidates(fleet.now);
    assert_eq!((rows.head_elapsed[1], rows.queued_tokens[1]), (0.0, 1.0));
    let rate = rows.prefill_rate[1];
    let other = fleet.place(400, 0, &[1]);
    fleet.now += 0.16;
    fleet.router.first_token(other.id, fleet.now);
    fleet.end(&pulled, 0.9, Some(192_000));
    // The prefill rate is learnt from neither: the two overlapped.
    let rates = [rate, fleet.router.candidates(fleet.now).prefill_rate[1]];
    assert!((rates[1] / rates[0] - 1.0).abs() < 0.2, "{rates:?}");
}

#[test]
fn other_policies_get_depths_as_before() {
    let config = Config { prefill_rate: 40_000.0, ..Config::default() };
    let mut router = Router::new(config, by_name("least-loaded", Options::default(), 1).unwrap());
    let a = router.add_worker("a", 0, 1.0, 0.0);
    router.set_pulls(a, Some("group"), 0.0);
    let mut depths = Depths::unknown();
    depths.begin();
    depths.set_loadable(a.0, 300, 400, 300);
    let hashes: Vec<u64> = (0..500).collect();
    let request = Request { tokens: 8_001, block_size: BLOCK, content_hashes: &hashes, ..Request::default() };
    let Outcome::Placed(decision) = router.choose(&request, &depths, 0.0) else { unreachable!() };
    assert_eq!((decision.cached_tokens, decision.transfer), (400 * BLOCK, None));
}

#[test]
fn options_that_there_were_say_what_took_their_place() {
    for (name, instead) in [("host", "host_floor"), ("far", "far_token")] {
        let options = Options::from_json(&format!("{{\"{name}\": 0.2}}")).unwrap();
        let error = by_name("kvatlas", options, 1).err().unwrap();
        assert!(error.code == "bad_option" && error.message.contains(instead), "{error:?}");
    }
}
