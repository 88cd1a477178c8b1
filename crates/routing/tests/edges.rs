//! Corners in which something could go wrong without anybody noticing.

use kvatlas_routing::{
    Config, Decision, Depth, Depths, Load, Options, Order, Outcome, Refusal, Request, RequestId, Router, Usage,
    WorkerId, by_name,
};

const RATE: f64 = 8_000.0;

fn router(config: Config) -> Router {
    let config = Config { prefill_rate: RATE, ..config };
    Router::new(config, by_name("kvatlas", Options::default(), 1).unwrap())
}

fn request(tokens: u32) -> Request<'static> {
    Request { tokens, block_size: 16, ..Request::default() }
}

fn placed(outcome: Outcome) -> Decision {
    match outcome {
        Outcome::Placed(decision) => decision,
        other => panic!("not placed: {other:?}"),
    }
}

fn waits(outcome: Outcome) -> RequestId {
    match outcome {
        Outcome::Waits(id) => id,
        other => panic!("does not wait: {other:?}"),
    }
}

fn hashes(blocks: u64) -> Vec<u64> {
    (1..=blocks).collect()
}

#[test]
fn nobody_overtakes_those_who_wait() {
    for order in [Order::Fcfs, Order::LeastWork] {
        let mut router = router(Config { order, ..Config::default() });
        router.add_worker("a", 0, 1.0, 0.0);
        placed(router.choose(&request(8_000), &Depths::unknown(), 0.0));
        let first = waits(router.choose(&request(8_000), &Depths::unknown(), 0.01));
        // The prompt there is worked off; as soon as little enough is left there is room for one.
        let mut bound = Vec::new();
        for millisecond in 450..550 {
            let now = f64::from(millisecond) * 1e-3;
            let outcome = router.choose(&request(8_000), &Depths::unknown(), now);
            assert!(matches!(outcome, Outcome::Waits(_)), "{order:?}: {outcome:?} at {now} though {first:?} waits");
            bound.extend(router.bind(now));
        }
        assert_eq!(bound.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [first]);
    }
}

#[test]
fn who_waits_keeps_its_turn_when_a_worker_joins() {
    let mut router = router(Config { order: Order::Fcfs, ..Config::default() });
    let a = router.add_worker("a", 0, 1.0, 0.0);
    let unknown = Depths::unknown();
    placed(router.choose_among(&request(80_000), &unknown, Some(&[a]), 0.0));
    let choose = |router: &mut Router| waits(router.choose_among(&request(80_000), &unknown, Some(&[a]), 0.1));
    let (first, second, third) = (choose(&mut router), choose(&mut router), choose(&mut router));
    let b = router.add_worker("b", 0, 1.0, 0.2);
    // They learn of it in any order, and one that waits no longer does not.
    router.fail(third, 0.2);
    assert!(!router.allow(third, Some(&[a, b])));
    for id in [second, first] {
        assert!(router.allow(id, Some(&[a, b])));
    }
    let bound = router.bind(0.3);
    assert_eq!(bound.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [first], "there is room for one");
    // The time that they have waited goes on, too.
    let late = 0.1 + Config::default().queue_timeout + 0.01;
    let bound = router.bind(late);
    assert!(matches!(&bound[..], [(id, Outcome::Placed(_))] if *id == second), "{bound:?}");
}

#[test]
fn who_failed_where_it_went_goes_on_waiting_where_it_was() {
    let mut router = router(Config::default());
    let (a, b) = (router.add_worker("a", 0, 1.0, 0.0), router.add_worker("b", 0, 1.0, 0.0));
    let (unknown, timeout) = (Depths::unknown(), Config::default().queue_timeout);
    for id in [a, b].repeat(20) {
        placed(router.choose_among(&Request { at_once: true, ..request(400_000) }, &unknown, Some(&[id]), 0.0));
    }
    let first = waits(router.choose_among(&request(80_000), &unknown, Some(&[b]), 1.0));
    let again = Request { waited: timeout - 10.0, ..request(80_000) };
    let again = waits(router.choose_among(&again, &unknown, Some(&[b]), 1.0));
    let bound = |router: &mut Router, now| router.bind(now).iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(bound(&mut router, 10.9), []);
    assert_eq!(bound(&mut router, 11.1), [again], "60 s in all");
    assert_eq!(bound(&mut router, 1.0 + timeout + 0.1), [first]);
    // It has waited long enough: it goes, whatever there is.
    let over = Request { waited: timeout, ..request(80_000) };
    placed(router.choose_among(&over, &unknown, Some(&[b]), 70.0));
}

#[test]
fn those_who_wait_for_one_worker_do_not_keep_others_waiting() {
    for (order, priority) in [(Order::Fcfs, 0), (Order::LeastWork, 0), (Order::LeastWork, 5)] {
        let mut router = router(Config { order, ..Config::default() });
        let a = router.add_worker("a", 0, 1.0, 0.0);
        let b = router.add_worker("b", 0, 1.0, 0.0);
        let unknown = Depths::unknown();
        let on_a = placed(router.choose_among(&request(80_000), &unknown, Some(&[a]), 0.0));
        let on_b = placed(router.choose_among(&request(80_000), &unknown, Some(&[b]), 0.0));
        for _ in 0..200 {
            waits(router.choose_among(&Request { priority, ..request(80_000) }, &unknown, Some(&[a]), 0.1));
        }
        let other = waits(router.choose_among(&request(80_000), &unknown, Some(&[b]), 0.2));
        // A first token would prove how fast both are, and make room at both.
        router.fail(on_b.id, 0.5);
        let bound = router.bind(0.5);
        assert_eq!(bound.len(), 1, "{order:?}");
        assert_eq!(bound[0].0, other);
        assert_eq!(on_a.worker, a);
    }
}

#[test]
fn a_worker_that_takes_over_a_number_holds_nothing_of_what_the_other_held() {
    let mut router = router(Config::default());
    let a = router.add_worker("a", 0, 1.0, 0.0);
    let b = router.add_worker("b", 0, 1.0, 0.0);
    for worker in [a, b] {
        placed(router.choose_among(&request(80_000), &Depths::unknown(), Some(&[worker]), 0.0));
    }
    let hashes = hashes(250);
    let mut depths = Depths::unknown();
    depths.set(a.0, Depth { device: 250, ..Depth::default() });
    let request = Request { content_hashes: &hashes, ..request(4_000) };
    let id = waits(router.choose(&request, &depths, 0.1));
    router.remove_worker(a, 0.2);
    let c = router.add_worker("c", 0, 1.0, 0.2);
    assert_eq!(a, c, "the number is taken again");
    let bound = router.bind(0.2);
    let (its, outcome) = bound.into_iter().next().unwrap();
    assert_eq!(its, id);
    assert_eq!(placed(outcome).cached_tokens, 0);
}

#[test]
fn a_capacity_of_nothing_is_not_known() {
    let mut router = router(Config::default());
    let a = router.add_worker("a", 0, 1.0, 0.0);
    let b = router.add_worker("b", 0, 1.0, 0.0);
    for capacity in [0.0, f64::NAN, -1.0] {
        let load = Load { capacity_blocks: Some(capacity), held_blocks: Some(0.0), ..Load::default() };
        router.report(b, &load, 0.0);
        let busy = placed(router.choose_among(&request(1_000), &Depths::unknown(), Some(&[a]), 0.0));
        let decision = placed(router.choose(&request(1_000), &Depths::unknown(), 0.0));
        assert_eq!(decision.worker, b, "the other one is busy; capacity {capacity}");
        router.fail(busy.id, 0.0);
        router.fail(decision.id, 0.0);
    }
}

#[test]
fn a_block_size_of_nothing_does_no_harm() {
    let mut router = router(Config { block_size: 0, ..Config::default() });
    let a = router.add_worker("a", 0, 1.0, 0.0);
    router.report(a, &Load { capacity_blocks: Some(10.0), held_blocks: Some(5.0), ..Load::default() }, 0.0);
    for tokens in [0, 1, 2, 17] {
        let request = Request { tokens, max_tokens: Some(0), ..Request::default() };
        let terms = router.explain(&request, &Depths::unknown(), None, 0.0).terms.unwrap();
        assert!(terms.values.iter().all(|value| value.is_finite()), "{terms:?}");
        let decision = placed(router.choose(&request, &Depths::unknown(), 0.0));
        assert_eq!(decision.cached_tokens + decision.uncached_tokens, tokens);
        router.first_token(decision.id, 0.1);
        router.finish(decision.id, Usage { output_tokens: Some(0), cached_tokens: Some(9), ..Usage::default() }, 0.2);
    }
    assert!(router.rows().prefill_rate[0].is_finite());
}

#[test]
fn an_output_that_nobody_tells_teaches_nothing() {
    let mut router = router(Config { output_tokens: 200.0, ..Config::default() });
    router.add_worker("a", 0, 1.0, 0.0);
    for round in 0..50 {
        let now = f64::from(round);
        let decision = placed(router.choose(&request(100), &Depths::unknown(), now));
        router.first_token(decision.id, now + 0.1);
        router.finish(decision.id, Usage::default(), now + 0.5);
    }
    assert_eq!(router.mean_output(), 200.0);
}

#[test]
fn what_was_just_sent_counts_where_the_index_cannot_be_trusted() {
    let mut router = router(Config { queue_limit: 0, ..Config::default() });
    let a = router.add_worker("a", 0, 1.0, 0.0);
    router.set_trusted(a, false);
    let hashes = hashes(100);
    let request = Request { content_hashes: &hashes, ..request(1_600) };
    let mut depths = Depths::unknown();
    depths.set(a.0, Depth { device: 100, ..Depth::default() });
    assert_eq!(placed(router.choose(&request, &depths, 0.0)).cached_tokens, 0);
    for _ in 0..3 {
        let decision = placed(router.choose(&request, &depths, 0.1));
        assert_eq!(decision.cached_tokens, 1_584, "it was sent a moment ago");
        router.fail(decision.id, 0.1);
        placed(router.choose(&request, &depths, 0.1));
    }
}

#[test]
fn nobody_waits_for_others_while_a_new_worker_is_idle() {
    let mut router = router(Config { warm_seconds: 1e6, ..Config::default() });
    let unknown = Depths::unknown();
    router.add_worker("a", 0, 1.0, 0.0);
    placed(router.choose(&request(80_000), &unknown, 0.0));
    let b = router.add_worker("b", 0, 1.0, 1.0);
    let mut now = 1.0;
    for _ in 0..5 {
        let decision = placed(router.choose(&request(800), &unknown, now));
        assert_eq!(decision.worker, b);
        now += 0.1;
        router.first_token(decision.id, now);
        router.finish(decision.id, Usage { output_tokens: Some(1), ..Usage::default() }, now);
    }
}

#[test]
fn a_session_stays_with_a_worker_that_is_new() {
    let mut router = router(Config { warm_seconds: 1e6, session_ttl: 100.0, ..Config::default() });
    let unknown = Depths::unknown();
    router.add_worker("a", 0, 1.0, 0.0);
    placed(router.choose(&request(800), &unknown, 0.0));
    let b = router.add_worker("b", 0, 1.0, 0.0);
    let mine = Request { session: Some(7), ..request(800) };
    assert_eq!(placed(router.choose(&mine, &unknown, 0.0)).worker, b);
    for _ in 0..10 {
        assert_eq!(placed(router.choose(&mine, &unknown, 0.0)).worker, b);
    }
}

#[test]
fn one_stall_at_the_start_is_not_how_fast_engines_are() {
    let mut router = router(Config::default());
    let workers: Vec<WorkerId> = (0..4).map(|at| router.add_worker(&format!("w{at}"), 0, 1.0, 0.0)).collect();
    let mut now = 0.0;
    // The first prompt finds an engine that still compiles its kernels.
    for (round, seconds) in [100.0, 0.1, 0.1, 0.1, 0.1, 0.1].into_iter().enumerate() {
        let worker = workers[round % 4];
        let decision = placed(router.choose_among(&request(800), &Depths::unknown(), Some(&[worker]), now));
        now += seconds;
        router.first_token(decision.id, now);
        router.finish(decision.id, Usage { output_tokens: Some(1), ..Usage::default() }, now);
    }
    for worker in 0..4 {
        let rate = router.rows().prefill_rate[worker];
        assert!(rate > RATE / 2.5 && rate < RATE * 2.5, "worker {worker}: {rate}");
    }
}

#[test]
fn answers_that_come_as_a_whole_do_not_look_like_prompts_that_wait() {
    for told in [true, false] {
        let mut router = router(Config::default());
        router.add_worker("a", 0, 1.0, 0.0);
        if !told {
            // Nobody ever tells first tokens here.
            let first = placed(router.choose(&request(400), &Depths::unknown(), 0.0));
            router.finish(first.id, Usage { output_tokens: Some(300), ..Usage::default() }, 9.0);
        }
        let mut ids = Vec::new();
        // An engine generates many answers at a time: what is computed in 50 ms is no reason to wait for 30 s.
        for number in 0..50 {
            let now = 10.0 + f64::from(number) * 0.2;
            let decision = placed(router.choose(&request(400), &Depths::unknown(), now));
            if told {
                router.comes_whole(decision.id, now);
            }
            ids.push(decision.id);
        }
        assert_eq!((router.rows().requests[0], router.rows().waiting[0]), (50, 1));
        router.first_token(ids[0], 40.0);
        for (nth, id) in ids.into_iter().enumerate() {
            match nth % 2 {
                0 => {
                    assert!(router.finish(id, Usage { output_tokens: Some(300), ..Usage::default() }, 40.0).is_some())
                }
                _ => assert!(router.fail(id, 40.0)),
            }
        }
        let rows = router.rows();
        assert_eq!((rows.requests[0], rows.waiting[0], rows.queued_tokens[0], rows.head_tokens[0]), (0, 0, 0.0, 0.0));
        assert_eq!((rows.queued_prompt_tokens[0], rows.context_tokens[0]), (0.0, 0.0));
    }
}

#[test]
fn a_full_queue_keeps_those_of_the_highest_priority() {
    let mut router = router(Config { queue_limit: 2, ..Config::default() });
    let a = router.add_worker("a", 0, 1.0, 0.0);
    let b = router.add_worker("b", 0, 1.0, 0.0);
    let unknown = Depths::unknown();
    for worker in [a, b] {
        placed(router.choose_among(&request(80_000), &unknown, Some(&[worker]), 0.0));
    }
    let of = |priority| Request { priority, ..request(4_000) };
    let low = waits(router.choose_among(&of(-1), &unknown, Some(&[a]), 0.1));
    let high = waits(router.choose_among(&of(3), &unknown, Some(&[b]), 0.1));
    // None is of lower priority than the last two.
    for priority in [-2, -1] {
        let outcome = router.choose(&of(priority), &unknown, 0.2);
        assert_eq!(outcome, Outcome::Refused(Refusal::QueueFull));
    }
    let next = waits(router.choose(&of(0), &unknown, 0.2));
    assert_eq!(router.bind(0.2), [(low, Outcome::Refused(Refusal::Displaced))]);
    let last = waits(router.choose(&of(5), &unknown, 0.2));
    assert_eq!(router.bind(0.2), [(next, Outcome::Refused(Refusal::Displaced))]);
    assert_eq!(router.waiting(), 2);
    assert_eq!(router.counts().refused, [0, 2, 2]);
    assert_ne!(high, last);
    // It is over for those that were displaced.
    assert!(!router.fail(low, 0.3) && router.fail(high, 0.3) && router.fail(last, 0.3));
}

#[test]
fn those_who_wait_are_placed_one_at_a_time_by_what_is_held_then() {
    let mut router = router(Config::default());
    let a = router.add_worker("a", 0, 1.0, 0.0);
    let b = router.add_worker("b", 0, 1.0, 0.0);
    let unknown = Depths::unknown();
    let busy = [a, b].map(|worker| placed(router.choose_among(&request(80_000), &unknown, Some(&[worker]), 0.0)));
    let prompts: Vec<Vec<u64>> = (0..3).map(|prompt| (0..250).map(|block| prompt * 1000 + block).collect()).collect();
    let asks = |prompt: usize| Request { content_hashes: &prompts[prompt], ..request(4_000) };
    let ids: Vec<_> = (0..3).map(|at| waits(router.choose_or_wait(&asks(at), &unknown, None, 0.1))).collect();
    assert!(router.next_in_turn(0.1).is_empty(), "there is no room");
    for decision in &busy {
        router.finish(decision.id, Usage::default(), 0.5);
    }
    assert_eq!(router.next_in_turn(0.5), ids);
    // Meanwhile b has come to hold the last one.
    let look_up = |request: &Request<'_>, depths: &mut Depths| {
        depths.begin();
        if request.number == ids[2].0 {
            depths.set(b.0, Depth { device: 249, ..Depth::default() });
        }
    };
    let bound = router.bind_up_to(1, 0.5, look_up);
    let [(id, outcome)] = &bound[..] else { panic!("{bound:?}") };
    assert_eq!(*id, ids[2], "it is the least work now");
    let decision = placed(outcome.clone());
    assert_eq!((decision.worker, decision.cached_tokens), (b, 249 * 16));
    // A request that comes now does not overtake those who wait, and places nobody.
    let late = waits(router.choose_or_wait(&asks(2), &unknown, None, 0.5));
    assert_eq!(router.waiting(), 3);
    let mut told = Vec::new();
    while let [(id, Outcome::Placed(_))] = &router.bind_up_to(1, 0.5, look_up)[..] {
        told.push(*id);
    }
    assert!(
        told.contains(&ids[0]) && !told.contains(&ids[2]) && told.len() + router.waiting() == 3,
        "{told:?} {late:?}"
    );
}

#[test]
fn whoever_keeps_what_a_request_goes_on_from_takes_it_while_it_is_drained() {
    let mut router = router(Config::default());
    let (kept, other) = (router.add_worker("a", 0, 1.0, 0.0), router.add_worker("b", 0, 1.0, 0.0));
    assert!(router.drain_worker(kept));
    let unknown = Depths::unknown();
    assert_eq!(placed(router.choose(&request(4_000), &unknown, 0.0)).worker, other);
    let decision = router.place_at_keeper(&request(4_000), &unknown, kept, 0.1).expect("it is there");
    assert_eq!((decision.worker, decision.uncached_tokens), (kept, 4_000));
    assert_eq!(router.in_flight(), 2);
    assert!(router.finish(decision.id, Usage::default(), 0.2).is_some());
    assert_eq!(router.in_flight(), 1);
    // It is drained as before, and nobody else's requests wait for it or go there.
    assert_eq!(router.choose_among(&request(100), &unknown, Some(&[kept]), 0.3), Outcome::Refused(Refusal::NoWorker));
    router.remove_worker(kept, 0.4);
    assert!(router.place_at_keeper(&request(100), &unknown, kept, 0.5).is_none());
}

#[test]
fn a_request_that_is_placed_again_and_again_is_refused_once() {
    let mut router = router(Config::default());
    let refused = |router: &Router| router.counts().refused[Refusal::NoWorker as usize];
    for _ in 0..5 {
        let outcome = router.choose_or_wait(&request(100), &Depths::unknown(), None, 0.0);
        assert_eq!(outcome, Outcome::Refused(Refusal::NoWorker));
        assert_eq!(refused(&router), 1);
        router.tries_again(Refusal::NoWorker);
        assert_eq!(refused(&router), 0);
    }
    router.tries_again(Refusal::NoWorker);
    router.gave_up(Refusal::NoWorker);
    assert_eq!(refused(&router), 1);
}
