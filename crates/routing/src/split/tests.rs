//! Small fleets, with costs worked out by hand.

use super::*;
use crate::policy_table::by_name;
use crate::router::{Config, RequestId, Usage};

const PREFILL: [WorkerId; 2] = [WorkerId(0), WorkerId(1)];
const DECODE: [WorkerId; 2] = [WorkerId(2), WorkerId(3)];

fn router() -> Router {
    let config = Config { prefill_rate: 1000.0, step_time: 0.01, output_tokens: 100.0, ..Config::default() };
    let mut router = Router::new(config, by_name("kvatlas", Options::default(), 0).unwrap());
    for name in ["p0", "p1", "d0", "d1"] {
        router.add_worker(name, 0, 1.0, 0.0);
    }
    router
}

fn chooser(options: &str) -> PrefillDecode {
    PrefillDecode::new(Options::from_json(options).unwrap(), 0).unwrap()
}

fn prompt(hashes: &[u64]) -> Request<'_> {
    Request { tokens: 100 * hashes.len() as u32, block_size: 100, content_hashes: hashes, ..Request::default() }
}

fn held(depths: &[(u32, u32)]) -> Depths {
    let mut found = Depths::default();
    found.begin();
    for &(worker, blocks) in depths {
        found.set(worker, Depth { device: blocks, host: blocks, any: blocks });
    }
    found
}

fn both(legs: Legs) -> (Decision, Decision) {
    let Legs::Both { prefill, decode } = legs else { panic!("{legs:?}") };
    (prefill, decode)
}

#[test]
fn prefill_goes_where_the_cache_is_and_decode_where_least_is_fetched() {
    let (mut router, chooser) = (router(), chooser(""));
    let hashes: Vec<u64> = (0..40).collect();
    let depths = held(&[(1, 20), (2, 5)]);
    let (prefill, decode) = both(chooser.choose(&mut router, &prompt(&hashes), &depths, &PREFILL, &DECODE, 0.0));
    assert_eq!((&*prefill.name, &*decode.name), ("p1", "d0"));
    assert_eq!((prefill.cached_tokens, prefill.uncached_tokens), (2000, 2000));
    // 39 blocks are fetched, and one token is computed.
    assert_eq!(decode.uncached_tokens, 1);
}

#[test]
fn a_short_rest_is_computed_where_it_is_decoded() {
    let (mut router, chooser) = (router(), chooser(""));
    let hashes: Vec<u64> = (0..40).collect();
    // The decode worker has all but 100 tokens, the prefill workers nothing.
    let depths = held(&[(3, 39)]);
    let legs = chooser.choose(&mut router, &prompt(&hashes), &depths, &PREFILL, &DECODE, 0.0);
    let Legs::Alone(decision) = legs else { panic!("{legs:?}") };
    assert_eq!((&*decision.name, decision.uncached_tokens), ("d1", 100));
}

#[test]
fn more_than_the_limit_never_goes_alone_while_a_prefill_worker_is_up() {
    let (mut router, chooser) = (router(), chooser(r#"{"handover": 1000}"#));
    let hashes: Vec<u64> = (0..21).collect();
    let depths = held(&[]);
    assert!(matches!(
        chooser.choose(&mut router, &prompt(&hashes), &depths, &PREFILL, &DECODE, 0.0),
        Legs::Both { .. }
    ));
    // 2,000 tokens are within it, and the handover is too dear.
    let legs = chooser.choose(&mut router, &prompt(&hashes[..20]), &depths, &PREFILL, &DECODE, 0.0);
    assert!(matches!(legs, Legs::Alone(_)));
    let legs = chooser.choose(&mut router, &prompt(&hashes), &depths, &[], &DECODE, 0.0);
    assert!(matches!(legs, Legs::Alone(_)), "nobody else is there");
    let legs = chooser.choose(&mut router, &prompt(&hashes), &depths, &PREFILL, &[], 0.0);
    assert_eq!(legs, Legs::Refused(Refusal::NoWorker));
}

#[test]
fn the_terms_of_a_decode_worker_add_up() {
    let (mut router, chooser) = (router(), chooser(""));
    let hashes: Vec<u64> = (0..40).collect();
    let request = prompt(&hashes);
    // One request of 4,000 tokens is under way at the first decode worker.
    let (_, decode) = both(chooser.choose(&mut router, &request, &held(&[(2, 1)]), &PREFILL, &DECODE, 0.0));
    assert_eq!(&*decode.name, "d0");
    let none = held(&[]);
    let others: Vec<u64> = (100..130).collect();
    let request = Request { max_tokens: Some(50), ..prompt(&others) };
    let decoders = router.seen(&request, &none, &DECODE, 0.0).unwrap();
    let terms = chooser.compare(&request, &Candidates::default(), &decoders, 100.0, 0.0).decode;
    // 3,000 tokens to fetch at 100,000 a second; 50 tokens of 0.01 s, 1 % longer for the request there and 0.78 % for
    // its 3,901 tokens; it is 50 * 0.01 * (0.01 + 0.006) longer in turn.
    let expected = [0.03, 0.0, 0.508_901, 0.008, 3000.0, 0.546_901];
    for (value, expected) in terms.values[..6].iter().zip(expected) {
        assert!((value - expected).abs() < 1e-9, "{terms:?}");
    }
    assert!((terms.values[11] - 0.53).abs() < 1e-9, "{terms:?}");
}

#[test]
fn work_spreads_over_both_pools_and_all_is_given_back() {
    let (mut router, chooser) = (router(), chooser(""));
    let mut legs = Vec::new();
    for number in 0..8u64 {
        let hashes: Vec<u64> = (0..30).map(|block| number * 100 + block).collect();
        legs.push(both(chooser.choose(&mut router, &prompt(&hashes), &held(&[]), &PREFILL, &DECODE, 0.0)));
    }
    assert_eq!(router.rows().requests, [4, 4, 4, 4]);
    assert_eq!(router.rows().waiting, [4, 4, 0, 0], "nobody waits for a decode leg");
    for (number, (prefill, decode)) in legs.iter().enumerate() {
        let now = 3.0 * (number + 1) as f64;
        let ended = router.end_prefill(prefill.id, Usage::default(), now).unwrap();
        assert_eq!(ended.ttft, Some(now));
        assert_eq!(router.end_prefill(prefill.id, Usage::default(), now), None);
        router.hand_over(decode.id, now);
        router.progress(decode.id, 19, now + 0.2);
        router.finish(decode.id, Usage { output_tokens: Some(20), ..Usage::default() }, now + 0.2);
    }
    assert_eq!((router.in_flight(), &router.rows().requests), (0, &vec![0; 4]));
    assert!(router.rows().context_tokens.iter().all(|tokens| tokens.abs() < 1e-6));
    // What requests generate is learnt from decode legs only.
    assert!((router.mean_output() - 20.0).abs() < 1e-9, "{}", router.mean_output());
    router.hand_over(RequestId(999), 99.0);
}

#[test]
fn a_decode_worker_that_will_hold_it_is_preferred_for_the_next_turn() {
    let (mut router, chooser) = (router(), chooser(""));
    let hashes: Vec<u64> = (0..40).collect();
    let (_, first) = both(chooser.choose(&mut router, &prompt(&hashes[..30]), &held(&[]), &PREFILL, &DECODE, 0.0));
    // Ten blocks more: 1,100 tokens to compute there, for the first token of the second needs its last block.
    let legs = chooser.choose(&mut router, &prompt(&hashes), &held(&[]), &PREFILL, &DECODE, 0.5);
    let Legs::Alone(decision) = legs else { panic!("{legs:?}") };
    assert_eq!(decision.worker, first.worker);
}

#[test]
fn a_session_binds_the_decode_worker_only() {
    let config = Config { session_ttl: 60.0, prefill_rate: 1000.0, step_time: 0.01, ..Config::default() };
    let mut router = Router::new(config, by_name("kvatlas", Options::default(), 0).unwrap());
    for name in ["p0", "p1", "d0", "d1"] {
        router.add_worker(name, 0, 1.0, 0.0);
    }
    let chooser = chooser("");
    let homes = (0..6u64).map(|number| {
        let hashes: Vec<u64> = (0..30).map(|block| number * 100 + block).collect();
        let request = Request { session: Some(5), ..prompt(&hashes) };
        let legs = chooser.choose(&mut router, &request, &held(&[]), &PREFILL, &DECODE, number as f64);
        let (prefill, decode) = both(legs);
        (prefill.worker, decode.worker)
    });
    let homes: Vec<_> = homes.collect();
    assert!(homes.iter().all(|(_, decode)| *decode == homes[0].1));
    assert!(homes.iter().any(|(prefill, _)| *prefill != homes[0].0));
}

#[test]
fn explaining_tells_what_is_chosen_and_does_nothing() {
    let (mut router, chooser) = (router(), chooser(""));
    let hashes: Vec<u64> = (0..40).collect();
    let depths = held(&[(1, 20), (2, 5)]);
    let request = prompt(&hashes);
    let told = chooser.explain(&mut router, &request, &depths, &PREFILL, &DECODE, 0.0).unwrap();
    assert_eq!(router.in_flight(), 0);
    let (prefill, decode) = both(chooser.choose(&mut router, &request, &depths, &PREFILL, &DECODE, 0.0));
    let (first, second) = told.2.both.unwrap();
    assert_eq!((told.0[first], told.1[second]), (prefill.worker, decode.worker));
    assert!(!told.2.goes_alone && told.2.both_cost < told.2.alone[told.2.best_alone]);
}

#[test]
fn odd_numbers_still_give_a_choice() {
    let (chooser, odd) = (chooser(""), [f64::NAN, f64::INFINITY, -1.0, 0.0, 5.0]);
    let one = |value: f64, requests: u32| Candidates {
        worker: vec![0, 1],
        predicted_blocks: vec![3, 0],
        shared_blocks: vec![0; 2],
        device_blocks: vec![3, 0],
        host_blocks: vec![3, 0],
        any_blocks: vec![3, 0],
        trusted: vec![true; 2],
        requests: vec![requests; 2],
        waiting: vec![0; 2],
        queued_tokens: vec![value; 2],
        queued_prompt_tokens: vec![value; 2],
        head_tokens: vec![value; 2],
        head_elapsed: vec![value; 2],
        held_tokens: vec![0.0; 2],
        context_tokens: vec![value; 2],
        used_blocks: vec![value; 2],
        output_tokens_left: vec![value; 2],
        reported_waiting: vec![value; 2],
        reported_running: vec![value; 2],
        reported_kv_usage: vec![value; 2],
        reported_age: vec![value; 2],
        prefill_rate: vec![value; 2],
        step_time: vec![value; 2],
        age: vec![value; 2],
        sent: vec![0; 2],
        last_cold: vec![value; 2],
        held_blocks: vec![value; 2],
        capacity_blocks: vec![value; 2],
        weight: vec![value; 2],
    };
    for value in odd {
        for request in [prompt(&[1, 2, 3, 4]), Request::default(), Request { max_tokens: Some(0), ..prompt(&[1]) }] {
            let compared = chooser.compare(&request, &one(value, 0), &one(value, 3), value, 0.0);
            assert!(compared.best_alone < 2 && compared.both.is_some_and(|(first, second)| first < 2 && second < 2));
        }
    }
}

#[test]
fn options_that_it_does_not_have_are_refused() {
    let error = PrefillDecode::new(Options::from_json(r#"{"no_such": 1}"#).unwrap(), 0).err().unwrap();
    assert_eq!(error.code, "bad_option");
    assert!(error.message.contains("transfer_rate") && error.message.contains("later_waiting"), "{}", error.message);
}

#[test]
fn a_decode_leg_says_nothing_of_the_prompts_that_are_computed_there() {
    let (mut router, chooser) = (router(), chooser(""));
    // A prompt that d0 computes itself.
    router.place_at(&prompt(&[7; 20]), &Depths::unknown(), DECODE[0], 0.0).unwrap();
    let hashes: Vec<u64> = (0..40).collect();
    let (_, decode) =
        both(chooser.choose(&mut router, &prompt(&hashes), &Depths::unknown(), &PREFILL, &DECODE[..1], 0.5));
    assert_eq!(decode.worker, DECODE[0]);
    let rows = router.candidates(0.75);
    assert_eq!((rows.waiting[2], rows.head_tokens[2], rows.head_elapsed[2]), (1, 2000.0, 0.75));
}

#[test]
fn without_events_what_was_sent_is_known_to_both_pools() {
    let config = Config {
        prefill_rate: 1000.0,
        step_time: 0.01,
        no_events: Some(crate::Retention::Mock { blocks: 1000 }),
        announced_within: 0.1,
        ..Config::default()
    };
    let mut router = Router::new(config, by_name("kvatlas", Options::default(), 0).unwrap());
    for name in ["p0", "p1", "d0", "d1"] {
        router.add_worker(name, 0, 1.0, 0.0);
    }
    let chooser = chooser("");
    let hashes: Vec<u64> = (0..40).collect();
    let unknown = Depths::unknown();
    let (prefill, decode) = both(chooser.choose(&mut router, &prompt(&hashes), &unknown, &PREFILL, &DECODE, 0.0));
    assert_eq!(prefill.cached_tokens, 0);
    router.end_prefill(prefill.id, Usage::default(), 1.0);
    router.hand_over(decode.id, 1.0);
    router.finish(decode.id, Usage::default(), 2.0);
    // Long after what is on its way is forgotten: the next turn, of which both hold all but the end.
    let next: Vec<u64> = (0..41).collect();
    let (first, second, compared) =
        chooser.explain(&mut router, &prompt(&next), &unknown, &PREFILL, &DECODE, 100.0).unwrap();
    assert_eq!((&first[..], &second[..]), (&PREFILL[..], &DECODE[..]));
    let held = usize::from(decode.worker == DECODE[1]);
    assert_eq!(compared.decode.values[held * NAMES.len() + 4], 200.0, "what it was sent, but for the last block");
    let (again, there) = both(chooser.choose(&mut router, &prompt(&next), &unknown, &PREFILL, &DECODE, 100.0));
    assert_eq!((again.worker, again.cached_tokens), (prefill.worker, 4000));
    assert_eq!(there.worker, decode.worker);
}
