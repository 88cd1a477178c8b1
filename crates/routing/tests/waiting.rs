//! Requests that wait in the router for one engine although another is free.

use kvatlas_routing::{
    Config, Decision, Depth, Depths, Load, Options, Outcome, Request, RequestId, Router, Usage, WorkerId, by_name,
};

const RATE: f64 = 4_000.0;
const ROOM: f64 = 1_000.0;

/// Two engines of 1,000 blocks. `a` runs a request of 900 blocks since 0 s, `b` does nothing.
struct Fleet {
    router: Router,
    a: WorkerId,
    b: WorkerId,
    running: RequestId,
}

fn fleet(config: Config) -> Fleet {
    // An answer takes 1 s.
    let config = Config { prefill_rate: RATE, step_time: 0.004, ..config };
    let mut router = Router::new(config, by_name("kvatlas", Options::default(), 1).unwrap());
    let [a, b] = ["a", "b"].map(|name| router.add_worker(name, 0, 1.0, 0.0));
    for worker in [a, b] {
        router.report(worker, &Load { capacity_blocks: Some(ROOM), ..Load::default() }, 0.0);
    }
    let prompt: Vec<u64> = (0..900).collect();
    let Outcome::Placed(decision) = router.choose_among(&asks(&prompt), &Depths::unknown(), Some(&[a]), 0.0) else {
        panic!("it is placed")
    };
    router.first_token(decision.id, 3.6);
    Fleet { router, a, b, running: decision.id }
}

fn asks(hashes: &[u64]) -> Request<'_> {
    Request { tokens: hashes.len() as u32 * 16, block_size: 16, content_hashes: hashes, ..Request::default() }
}

fn prompt(nth: u64, blocks: u64) -> Vec<u64> {
    (0..blocks).map(|block| (nth + 1) << 32 | block).collect()
}

fn held(worker: WorkerId, blocks: u32) -> Depths {
    let mut depths = Depths::default();
    depths.begin();
    depths.set(worker.0, Depth { device: blocks, host: blocks, any: blocks });
    depths
}

fn waits(outcome: Outcome) -> RequestId {
    match outcome {
        Outcome::Waits(id) => id,
        other => panic!("does not wait: {other:?}"),
    }
}

fn placed(outcome: Outcome) -> Decision {
    match outcome {
        Outcome::Placed(decision) => decision,
        other => panic!("not placed: {other:?}"),
    }
}

#[test]
fn a_request_waits_for_room_where_its_prefix_is_and_keeps_nobody_else_waiting() {
    let Fleet { mut router, a, b, running } = fleet(Config::default());
    let (long, short) = (prompt(0, 600), prompt(1, 40));
    let warm = waits(router.choose_or_wait(&asks(&long), &held(a, 599), None, 4.0));
    assert_eq!(router.rows().held_tokens, [16.0, 0.0]);
    // Whoever goes elsewhere does not have to wait for it, not even for a look at it.
    let other = placed(router.choose_or_wait(&asks(&short), &Depths::unknown(), None, 4.1));
    assert_eq!(other.worker, b);
    router.finish(running, Usage::default(), 4.5);
    let bound = router.bind_with(4.5, |_, depths| *depths = held(a, 599));
    let [(id, outcome)] = &bound[..] else { panic!("{bound:?}") };
    assert_eq!((*id, placed(outcome.clone()).worker), (warm, a));
    assert_eq!((router.waiting(), router.rows().held_tokens.clone()), (0, vec![0.0; 2]));
}

#[test]
fn it_is_looked_up_again_only_when_that_may_change_something() {
    let Fleet { mut router, a, b, .. } = fleet(Config::default());
    let (long, short) = (prompt(0, 600), prompt(1, 40));
    let warm = waits(router.choose_or_wait(&asks(&long), &held(a, 599), None, 4.0));
    let other = placed(router.choose_among(&asks(&short), &Depths::unknown(), Some(&[b]), 4.01));
    let mut looked = 0;
    let mut bind = |router: &mut Router, now: f64| {
        let bound = router.bind_with(now, |_, depths| {
            looked += 1;
            *depths = held(a, 599);
        });
        assert!(bound.is_empty(), "{bound:?}");
        looked
    };
    // What happens at b is no reason to ask.
    router.first_token(other.id, 4.17);
    assert_eq!((router.next_in_turn(4.17), bind(&mut router, 4.17)), (vec![], 0));
    router.finish(other.id, Usage::default(), 4.2);
    assert_eq!(bind(&mut router, 4.2), 0);
    // After a while it is asked about: b may be the better choice by then.
    assert_eq!((router.next_in_turn(4.3), bind(&mut router, 4.3)), (vec![warm], 1));
    assert_eq!(bind(&mut router, 4.35), 1);
    // And when something ends at a, although not enough.
    let small = placed(router.choose_among(&asks(&short), &Depths::unknown(), Some(&[a]), 4.36));
    router.fail(small.id, 4.37);
    assert_eq!((router.next_in_turn(4.37), bind(&mut router, 4.37)), (vec![warm], 2));
}

#[test]
fn it_waits_at_most_for_the_queue_timeout_while_another_engine_is_free() {
    for (config, within) in [
        // Computing the prompt at b costs some 4 s.
        (Config::default(), 16.0),
        (Config { queue_timeout: 2.0, ..Config::default() }, 2.1),
    ] {
        let Fleet { mut router, a, running, .. } = fleet(config);
        // Answers are long, so nobody expects room soon.
        router.progress(running, 1, 3.9);
        let long = prompt(0, 600);
        let warm = waits(router.choose_or_wait(&asks(&long), &held(a, 599), None, 4.0));
        let mut now = 4.0;
        let outcome = loop {
            now += 0.05;
            let mut bound = router.bind_with(now, |_, depths| *depths = held(a, 599));
            match bound.pop() {
                Some((id, outcome)) => {
                    assert_eq!(id, warm);
                    break outcome;
                }
                None => assert!(now < 4.0 + within, "still waits"),
            }
        };
        placed(outcome);
        assert_eq!(router.rows().held_tokens, [0.0; 2]);
    }
}

#[test]
fn a_full_queue_is_no_reason_to_refuse_what_another_engine_can_take() {
    let Fleet { mut router, a, .. } = fleet(Config { queue_limit: 1, ..Config::default() });
    let prompts = [prompt(0, 600), prompt(1, 600)];
    waits(router.choose_or_wait(&asks(&prompts[0]), &held(a, 599), None, 4.0));
    placed(router.choose_or_wait(&asks(&prompts[1]), &held(a, 599), None, 4.0));
    assert_eq!(router.counts().refused.iter().sum::<u64>(), 0);
}

#[test]
fn what_waits_for_an_engine_is_work_there() {
    let Fleet { mut router, a, b, .. } = fleet(Config::default());
    // 4,800 tokens of it are not cached: 1.2 s.
    let long = prompt(0, 600);
    let first = waits(router.choose_or_wait(&asks(&long), &held(a, 300), None, 4.0));
    let wait = |router: &mut Router| {
        let told = router.explain(&asks(&prompt(7, 40)), &Depths::unknown(), None, 4.01);
        let terms = told.terms.unwrap();
        let (wait, columns) = (terms.names.iter().position(|name| *name == "wait (s)").unwrap(), terms.names.len());
        [a, b].map(|worker| terms.values[worker.0 as usize * columns + wait])
    };
    let [there, elsewhere] = wait(&mut router);
    assert!(there > elsewhere + 0.5, "{there} s, {elsewhere} s");
    // A client that goes away takes it along.
    assert!(router.fail(first, 4.02));
    let [there, elsewhere] = wait(&mut router);
    assert!((there - elsewhere).abs() < 1e-9, "{there} s, {elsewhere} s");
}

#[test]
fn a_worker_that_leaves_leaves_nobody_waiting_for_it() {
    let Fleet { mut router, a, b, .. } = fleet(Config::default());
    let long = prompt(0, 600);
    let warm = waits(router.choose_or_wait(&asks(&long), &held(a, 599), None, 4.0));
    router.remove_worker(a, 4.1);
    let bound = router.bind(4.1);
    let [(id, outcome)] = &bound[..] else { panic!("{bound:?}") };
    assert_eq!((*id, placed(outcome.clone()).worker), (warm, b));
    // Its number comes again, for another one.
    assert_eq!(router.add_worker("c", 0, 1.0, 4.2), a);
    assert_eq!(router.rows().held_tokens, [0.0; 2]);
    // A drained one is not waited for either.
    let Fleet { mut router, a, b, .. } = fleet(Config::default());
    let warm = waits(router.choose_or_wait(&asks(&long), &held(a, 599), None, 4.0));
    router.drain_worker(a);
    let bound = router.bind(4.1);
    let [(id, outcome)] = &bound[..] else { panic!("{bound:?}") };
    assert_eq!((*id, placed(outcome.clone()).worker), (warm, b));
}

#[test]
fn siblings_of_a_burst_are_not_kept() {
    let Fleet { mut router, a, b, running } = fleet(Config::default());
    router.finish(running, Usage::default(), 4.0);
    let long = prompt(0, 900);
    let first = placed(router.choose_or_wait(&asks(&long), &Depths::unknown(), None, 5.0));
    let there = if first.worker == a { a } else { b };
    // Each waits 3.6 s for the first, at the engine.
    for nth in 1..4 {
        let mut sibling = long.clone();
        sibling.push(nth);
        let next = placed(router.choose_or_wait(&asks(&sibling), &Depths::unknown(), None, 5.0));
        assert_eq!((next.worker, next.predicted_tokens), (there, 900 * 16));
    }
}

#[test]
fn a_prompt_of_higher_priority_goes_first_when_there_is_room() {
    let Fleet { mut router, a, running, .. } = fleet(Config::default());
    let prompts = [prompt(0, 600), prompt(1, 700)];
    let low = waits(router.choose_or_wait(&asks(&prompts[0]), &held(a, 599), None, 4.0));
    let urgent = Request { priority: 1, ..asks(&prompts[1]) };
    let high = waits(router.choose_or_wait(&urgent, &held(a, 690), None, 4.0));
    router.finish(running, Usage::default(), 4.1);
    let bound = router.bind(4.1);
    assert_eq!(bound.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [high], "{low:?} has no room beside it");
}

/// Engines, each with one streamed prompt of 1,000 tokens since 0 s; it is the first request of each.
fn with_one_each(workers: usize) -> (Router, Vec<RequestId>) {
    let config = Config { prefill_rate: RATE, ..Config::default() };
    let mut router = Router::new(config, by_name("kvatlas", Options::default(), 1).unwrap());
    let ids: Vec<WorkerId> = (0..workers).map(|worker| router.add_worker(&format!("w{worker}"), 0, 1.0, 0.0)).collect();
    let on = |router: &mut Router, worker: &WorkerId| {
        let its = router.choose_among(&short(), &Depths::unknown(), Some(&[*worker]), 0.0);
        placed(its).id
    };
    let sent = ids.iter().map(|worker| on(&mut router, worker)).collect();
    (router, sent)
}

fn short() -> Request<'static> {
    Request { tokens: 1_000, block_size: 16, ..Request::default() }
}

#[test]
fn late_prompts_at_all_engines_keep_nobody_waiting() {
    for waiting in [None, Some(0.0), Some(1.0)] {
        let (mut router, _) = with_one_each(4);
        for now in [1.0, 3.0, 12.0, 55.0] {
            for worker in 0..4 {
                let load = Load { waiting, running: Some(1.0), kv_usage: Some(0.2), ..Load::default() };
                router.report(WorkerId(worker), &load, now);
            }
            let its = placed(router.choose_or_wait(&short(), &Depths::unknown(), None, now + 0.1));
            router.first_token(its.id, now + 0.4);
            router.finish(its.id, Usage::default(), now + 0.5);
        }
    }
}

#[test]
fn a_prompt_that_is_overtaken_counts_for_nothing_more() {
    let (mut router, late) = with_one_each(1);
    let its = placed(router.choose_or_wait(&short(), &Depths::unknown(), None, 12.0));
    assert_eq!(router.rows().waiting, [2]);
    router.first_token(its.id, 12.3);
    assert_eq!((router.rows().waiting[0], router.rows().queued_tokens[0]), (0, 0.0));
    router.first_token(late[0], 40.0);
    router.finish(late[0], Usage::default(), 41.0);
    router.finish(its.id, Usage::default(), 41.0);
    assert_eq!((router.rows().requests[0], router.rows().used_blocks[0]), (0, 0.0));
}

#[test]
fn engines_that_say_that_their_caches_are_full_keep_requests_waiting_until_they_are_sent_all_the_same() {
    let (mut router, _) = with_one_each(2);
    let full = |router: &mut Router, now: f64| {
        for worker in 0..2 {
            let load = Load { waiting: Some(1.0), running: Some(9.0), kv_usage: Some(0.98), ..Load::default() };
            router.report(WorkerId(worker), &load, now);
        }
    };
    full(&mut router, 12.0);
    let id = waits(router.choose_or_wait(&short(), &Depths::unknown(), None, 12.1));
    // What generates nothing goes all the same.
    placed(router.choose_or_wait(&Request { at_once: true, ..short() }, &Depths::unknown(), None, 12.1));
    for now in 13..72 {
        full(&mut router, f64::from(now));
        assert!(router.bind(f64::from(now)).is_empty());
    }
    full(&mut router, 72.2);
    let bound = router.bind(72.2);
    assert!(matches!(&bound[..], [(its, Outcome::Placed(_))] if *its == id), "{bound:?}");
}

#[test]
fn a_prompt_that_seems_to_take_minutes_keeps_nobody_waiting_for_minutes() {
    let (mut router, _) = with_one_each(0);
    let a = router.add_worker("a", 0, 1.0, 0.0);
    placed(router.choose_among(&Request { tokens: 4_000_000, ..short() }, &Depths::unknown(), Some(&[a]), 0.0));
    let id = waits(router.choose_or_wait(&short(), &Depths::unknown(), None, 1.0));
    let bound = router.bind(10.1);
    assert!(matches!(&bound[..], [(its, Outcome::Placed(_))] if *its == id), "{bound:?}");
}

/// A router with the policy `kvatlas` and one worker, in which a wait makes no request more urgent.
fn with_one_worker() -> Router {
    let mut router = Router::new(
        Config { prefill_rate: RATE, step_time: 0.004, ageing: 0.0, ..Config::default() },
        by_name("kvatlas", Options::default(), 1).unwrap(),
    );
    let a = router.add_worker("a", 0, 1.0, 0.0);
    router.report(a, &Load { capacity_blocks: Some(1e5), ..Load::default() }, 0.0);
    router
}

/// Requests that begin with the same block wait: one of them computes it for all, so each is taken for its part, and the
/// group is let in before a smaller one that came later.
#[test]
fn siblings_that_wait_are_one_piece_of_work() {
    let mut router = with_one_worker();
    let first = placed(router.choose_or_wait(&asks(&prompt(0, 500)), &Depths::unknown(), None, 0.0));
    let small = waits(router.choose_or_wait(&asks(&prompt(1, 200)), &Depths::unknown(), None, 0.0));
    let group: Vec<_> = (0..4)
        .map(|nth| {
            let own: Vec<u64> = prompt(2, 400).into_iter().chain([7_000 + nth]).collect();
            waits(router.choose_or_wait(&asks(&own), &Depths::unknown(), None, 0.0))
        })
        .collect();
    router.first_token(first.id, 2.0);
    let let_in: Vec<_> = router.bind(2.0).into_iter().map(|(id, _)| id).collect();
    assert_eq!(let_in, group, "all of the group, and not the smaller one yet");
    assert!(!let_in.contains(&small));
}

/// Requests with the same prompt count as one when prompts that wait are compared: the policy is asked about the first of
/// them, and more than the oldest 64 requests take part.
#[test]
fn requests_with_the_same_prompt_are_compared_as_one() {
    let mut router = with_one_worker();
    let first = placed(router.choose_or_wait(&asks(&prompt(0, 500)), &Depths::unknown(), None, 0.0));
    let groups: Vec<Vec<_>> = (1..7)
        .map(|nth| {
            let same = prompt(nth, if nth == 6 { 150 } else { 400 });
            (0..16).map(|_| waits(router.choose_or_wait(&asks(&same), &Depths::unknown(), None, 0.0))).collect()
        })
        .collect();
    router.first_token(first.id, 2.0);
    assert_eq!(router.next_in_turn(2.0), groups.iter().map(|group| group[0]).collect::<Vec<_>>());
    let mut looked_up = 0;
    let bound = router.bind_with(2.0, |_, _| looked_up += 1);
    let let_in: Vec<_> = bound.into_iter().map(|(id, _)| id).collect();
    assert_eq!(let_in, groups[5], "the group with the least to compute, which came last, as a whole");
    assert_eq!(looked_up, groups.len());
}

/// A burst waits for a moment before another engine computes its prompt once more: by then other prompts may have taken that
/// engine.
#[test]
fn a_prompt_on_its_way_is_not_computed_again_before_the_rest_of_the_burst_has_come() {
    let burst = |others: u64| {
        let config = Config { prefill_rate: RATE, ..Config::default() };
        let mut router = Router::new(config, by_name("kvatlas", Options::default(), 1).unwrap());
        let workers = ["a", "b"].map(|name| router.add_worker(name, 0, 1.0, 0.0));
        let same = prompt(0, 100);
        let first = placed(router.choose_or_wait(&asks(&same), &Depths::unknown(), None, 0.0));
        let outcomes: Vec<_> =
            (0..200).map(|_| router.choose_or_wait(&asks(&same), &Depths::unknown(), None, 0.0)).collect();
        for outcome in &outcomes {
            assert!(!matches!(outcome, Outcome::Placed(decision) if decision.worker != first.worker));
        }
        assert!(router.waiting() > 0, "too many to follow one");
        for other in 0..others {
            let its = asks(&prompt(1 + other, 400)).tokens;
            let request = Request { at_once: true, tokens: its, block_size: 16, ..Request::default() };
            placed(router.choose_or_wait(&request, &Depths::unknown(), None, 0.001));
        }
        router.bind(0.03);
        let other = workers.iter().find(|worker| **worker != first.worker).unwrap();
        router.rows().requests[other.0 as usize]
    };
    assert!(burst(0) > 20, "the other engine is idle: {}", burst(0));
    let taken = burst(40);
    assert!(taken <= 40, "no more than the other prompts: {taken}");
}

/// Sessions that live at an engine make it dearer for a new one, but that is no reason to wait for another.
#[test]
fn what_a_session_will_bring_keeps_it_waiting_for_no_engine() {
    let config = Config { prefill_rate: RATE, step_time: 0.004, ..Config::default() };
    let mut router = Router::new(config, by_name("kvatlas", Options::default(), 1).unwrap());
    let [a, b] = ["a", "b"].map(|name| router.add_worker(name, 0, 1.0, 0.0));
    let mut now = 0.0;
    for turn in 0..20 {
        for session in 0..10 {
            let own = prompt(1_000 * session + turn, 100);
            let request = Request { session: Some(session), ..asks(&own) };
            let its = placed(router.choose_among(&request, &Depths::unknown(), Some(&[a]), now));
            router.first_token(its.id, now + 0.4);
            router.finish(its.id, Usage { output_tokens: Some(250), ..Usage::default() }, now + 0.5);
            now += 0.5;
        }
    }
    placed(router.choose_among(&asks(&prompt(50_000, 400)), &Depths::unknown(), Some(&[b]), now));
    let fresh = prompt(60_000, 10);
    let new = Request { session: Some(99), ..asks(&fresh) };
    let terms = router.explain(&new, &Depths::unknown(), None, now);
    let outcome = router.choose_or_wait(&new, &Depths::unknown(), None, now);
    assert!(matches!(outcome, Outcome::Placed(_)), "{terms:?}");
}
