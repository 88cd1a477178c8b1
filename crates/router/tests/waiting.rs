//! Requests that wait in the router for an engine.

mod support;

use std::time::{Duration, Instant};

use kvatlas_fake_engine::{Client, Manner, Server, eventually};
use serde_json::json;
use support::{completion, router};

#[test]
fn an_engine_that_joins_takes_what_waits() {
    let (full, new) = (Server::start("m"), Server::start("m"));
    full.set(Manner::Hangs);
    let router = router(&[&full], json!({ "policy": "kvatlas", "block_size": 16 }));
    // Some 100,000 tokens: more than ten seconds of work by what is expected of an engine at first.
    let long = completion(json!({ "prompt": "word ".repeat(80_000), "stream": true }));
    let mut first = Client::to(router.address());
    first.ask_for("/v1/completions", &long, "");
    eventually("the engine is at work", || full.count() == 1);
    let mut second = Client::to(router.address());
    second.ask_for("/v1/completions", &long, "");
    let mut other = Client::to(router.address());
    eventually("the second one waits", || other.get("/router").json()["queued"] == 1);
    let started = Instant::now();
    router.set_engine(&json!({ "name": "new", "url": new.url() }).to_string()).expect("an engine");
    let answer = second.answer();
    assert_eq!((answer.status(), answer.header("x-kvatlas-worker")), (200, Some("new")));
    assert!(started.elapsed() < Duration::from_secs(8));
    assert_eq!((full.count(), new.count()), (1, 1));
    // One that waits and leaves is not kept in mind.
    drop(first);
    eventually("nothing is left", || {
        let now = other.get("/router").json();
        now["queued"] == 0 && now["in_flight"] == 0
    });
}
