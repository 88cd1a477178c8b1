//! A router that follows the events of the engines which it sends requests to.

mod support;

use kvatlas_fake_engine::{BLOCK_SIZE, Client, Engine, eventually};
use kvatlas_router::Router;
use kvatlas_testing::Random;
use serde_json::json;
use support::{completion, router};

/// A router with a service of its own, where the engines' events are registered.
fn following(engines: &[Engine]) -> Router {
    let servers: Vec<_> = engines.iter().map(|engine| &engine.server).collect();
    let service = json!({ "log": { "level": "off" }, "adopt": { "share": 0 } });
    let router = router(&servers, json!({ "policy": "kvatlas", "block_size": BLOCK_SIZE, "service": service }));
    for (number, engine) in engines.iter().enumerate() {
        let registration = engine.publisher.registration(&format!("e{number}"), "m");
        router.service().expect("it has one").register(&registration, None).expect("registered");
    }
    eventually("the router is ready", || router.waiting().is_none());
    router
}

/// True if all that the engines have announced is in the index.
fn has_heard(router: &Router, engines: &[Engine]) -> bool {
    router.service().expect("it has one").fleet().workers().iter().all(|worker| {
        let number: usize = worker.name[1..].parse().expect("a number");
        let status = &worker.streams[0].1.status;
        status.is_trusted() && status.last_seq() == engines[number].publisher.last_seq()
    })
}

#[test]
fn what_is_known_of_an_engine_is_what_it_then_has() {
    let engines = [(); 2].map(|()| Engine::start("m", 100));
    let router = following(&engines);
    let mut client = Client::to(router.address());
    let (mut random, mut past) = (Random(1), vec![Vec::new()]);
    let (mut cached, mut missed, block) = (0, 0, u64::from(BLOCK_SIZE));
    for turn in 0..120 {
        eventually("all is heard", || has_heard(&router, &engines));
        let mut prompt: Vec<u32> = random.pick(&past).clone();
        let known = prompt.len() as u64;
        prompt.extend((0..1 + random.below(40)).map(|_| random.below(50_000) as u32));
        let body = completion(json!({ "prompt": prompt }));
        let candidates = client.post("/explain", &body).json()["candidates"].take();
        let answer = client.post("/v1/completions", &body);
        let worker = answer.header("x-kvatlas-worker").expect("it tells");
        let candidate = candidates.as_array().and_then(|all| all.iter().find(|one| one["worker"] == worker));
        let held = candidate.expect("it was one")["held_tokens"]["device"].as_u64().expect("a number");
        let had = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        // The last token is computed in any case, and so its block.
        assert_eq!(held.min((prompt.len() as u64 - 1) / block * block), had, "turn {turn}: {candidates}");
        cached += had;
        missed += u64::from(had + block < known);
        prompt.truncate(120);
        past.push(prompt);
    }
    assert!(cached > 1000 && missed > 10, "{cached} tokens were cached, and {missed} prompts were evicted");
}
