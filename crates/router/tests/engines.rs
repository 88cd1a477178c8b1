//! Engines that fail, come and go, and are followed: requests go to another, wait for one that joins, and know what an
//! engine holds.

mod support;

use std::time::{Duration, Instant};

use kvatlas_fake_engine::{BLOCK_SIZE, Client, Engine, Manner, Server, eventually};
use kvatlas_router::Router;
use kvatlas_testing::Random;
use serde_json::json;

use support::{completion, router};

#[test]
fn another_engine_takes_what_one_did_not_answer() {
    for manner in
        [Manner::Dies, Manner::Garbage, Manner::Hangs, Manner::Busy(503), Manner::Busy(429), Manner::Busy(502)]
    {
        let (bad, good) = (Server::start("m"), Server::start("m"));
        bad.set(manner);
        let router = router(&[&bad, &good], json!({ "upstream": { "first_byte_timeout": 1.0 } }));
        let mut client = Client::to(router.address());
        for number in 0..6 {
            let answer = client.post("/v1/completions", &completion(json!({ "number": number })));
            assert_eq!((answer.status(), answer.header("x-kvatlas-worker")), (200, Some("e1")), "{manner:?}");
        }
        assert!(bad.count() >= 1, "{manner:?}: it was tried");
        assert!(bad.count() <= 4, "{manner:?}: it is left alone after a while, but got {}", bad.count());
        assert_eq!(good.count(), 6);
        let metrics = client.get("/metrics").text();
        assert!(!metrics.contains("kvatlas_router_retries_total{reason=\"connect\",model=\"m\"} 1"));
        // It is taken back when it works again.
        bad.set(Manner::Well);
        let before = bad.count();
        eventually("it is taken back", || {
            client.post("/v1/completions", &completion(json!({})));
            bad.count() > before + 1
        });
    }
}

#[test]
fn an_engine_that_is_not_there_costs_nothing() {
    let (gone, good) = (Server::start("m"), Server::start("m"));
    let address = gone.address();
    drop(gone);
    let router = router(&[&good], json!({ "wait_for_engine": 0.0 }));
    router.set_engine(&json!({ "name": "gone", "url": format!("http://{address}") }).to_string()).expect("an engine");
    let mut client = Client::to(router.address());
    for _ in 0..4 {
        assert_eq!(client.post("/v1/completions", &completion(json!({}))).status(), 200);
    }
    eventually("it is known to be down", || {
        router
            .workers()
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["name"] == "gone" && one["standing"] != "up"))
    });
    router.remove_engine("e0").expect("it is there");
    let answer = client.post("/v1/completions", &completion(json!({})));
    assert_eq!((answer.status(), answer.json()["error"]["code"].as_str()), (502, Some("engine_failed")));
    router.remove_engine("gone").expect("it is there");
    let answer = client.post("/v1/completions", &completion(json!({})));
    assert_eq!((answer.status(), answer.json()["error"]["code"].as_str()), (503, Some("no_engines")));
    assert!(answer.header("retry-after").is_none() && router.remove_engine("gone").is_err());
}

#[test]
fn a_stream_that_breaks_off_ends_in_an_error_event() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({ "upstream": { "stall_timeout": 1.0 } }));
    for (manner, words) in [(Manner::DiesAfter(2), "broke"), (Manner::StallsAfter(2), "stopped")] {
        engine.set(manner);
        let mut client = Client::to(router.address());
        let answer = client.post("/v1/chat/completions", &completion(json!({ "stream": true, "max_tokens": 9 })));
        assert!(answer.whole && answer.status() == 200);
        let text = answer.text();
        let events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.len(), 4, "{text}");
        assert!(events[1].contains("1 ") && events[3] == "data: [DONE]", "{text}");
        let data = events[2].lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
        let error: serde_json::Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(error["error"]["code"], "engine_failed");
        assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains(words)), "{error}");
        // The client's connection goes on.
        engine.set(Manner::Well);
        assert_eq!(client.post("/v1/completions", &completion(json!({}))).status(), 200);
    }
    eventually("the books are balanced", || {
        let engine = router.workers()[0].clone();
        engine["broken"] == 2 && engine["in_flight"] == 0
    });
}

#[test]
fn connections_are_kept_and_closed_ones_replaced() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({ "http": { "threads": 1 }, "health": { "interval": 0 } }));
    let mut client = Client::to(router.address());
    for _ in 0..20 {
        assert_eq!(client.post("/v1/completions", &completion(json!({}))).status(), 200);
    }
    let connections = || engine.connections();
    // One for requests, and one for each of the router's own questions.
    assert!(connections() <= 8, "{}", connections());
    engine.set(Manner::ClosesIdle);
    for _ in 0..20 {
        assert_eq!(client.post("/v1/completions", &completion(json!({}))).status(), 200);
    }
    assert_eq!(engine.count(), 40);
    assert_eq!(router.workers()[0]["standing"], "up");
}

#[test]
fn models_have_their_engines() {
    let (one, two) = (Server::start("one"), Server::start("two"));
    let router = router(&[&one, &two], json!({}));
    eventually("models are known", || {
        router.workers().as_array().is_some_and(|all| all.iter().all(|one| one["models"] != json!([])))
    });
    let mut client = Client::to(router.address());
    for (model, worker) in [("one", "e0"), ("two", "e1"), ("one", "e0"), ("two", "e1"), ("two", "e1")] {
        let answer = client.post("/v1/completions", &completion(json!({ "model": model })));
        assert_eq!(answer.header("x-kvatlas-worker"), Some(worker));
    }
    let models = client.get("/v1/models").json();
    assert_eq!(models["data"].as_array().map(Vec::len), Some(2));
    assert_eq!(client.get("/v1/models/two").json()["id"], "two");
    assert_eq!(client.get("/v1/models/three").status(), 404);
}

#[test]
fn an_engine_that_is_drained_ends_what_it_has() {
    let (one, two) = (Server::start("m"), Server::start("m"));
    let router = router(&[&one, &two], json!({}));
    eventually("models are known", || {
        router.workers().as_array().is_some_and(|all| all.iter().all(|one| one["models"] != json!([])))
    });
    let mut clients: Vec<Client> = (0..2).map(|_| Client::to(router.address())).collect();
    for client in &mut clients {
        client.ask_for("/v1/completions", &completion(json!({ "stream": true, "max_tokens": 10, "pause_ms": 50 })), "");
        client.until("0 ");
    }
    assert_eq!((one.count(), two.count()), (1, 1));
    let mut admin = Client::to(router.address());
    assert_eq!(admin.post("/engines/e0/drain", &json!({})).json()["standing"], "draining");
    for _ in 0..6 {
        assert_eq!(admin.post("/v1/completions", &completion(json!({}))).header("x-kvatlas-worker"), Some("e1"));
    }
    for client in &mut clients {
        let answer = client.answer();
        assert!(answer.whole && answer.text().ends_with("[DONE]\n\n"));
    }
    assert_eq!(one.count(), 1);
    assert_eq!(admin.post("/engines/e0/undrain", &json!({})).json()["standing"], "up");
    for _ in 0..4 {
        admin.post("/v1/completions", &completion(json!({})));
    }
    assert!(one.count() > 1);
    assert_eq!(admin.post("/engines/none/drain", &json!({})).status(), 404);
}

#[test]
fn an_end_waits_for_what_runs_and_loses_nothing() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({}));
    let mut client = Client::to(router.address());
    client.ask_for("/v1/completions", &completion(json!({ "stream": true, "max_tokens": 10, "pause_ms": 50 })), "");
    client.until("0 ");
    // Connected, and its request sent, but perhaps not accepted yet.
    let mut late = Client::to(router.address());
    late.ask_for("/v1/completions", &completion(json!({})), "");
    let started = Instant::now();
    assert!(router.drain(Duration::from_secs(60), Duration::ZERO));
    assert!(started.elapsed() < Duration::from_secs(30));
    let answer = client.answer();
    assert!(answer.whole && answer.text().ends_with("[DONE]\n\n"));
    assert_eq!(late.answer().status(), 200);
}

#[test]
fn ranks_are_told_to_the_engine() {
    let engine = Server::start("m");
    let router = router(&[], json!({ "engines": [{ "name": "e", "url": engine.url(), "ranks": 2 }] }));
    let mut client = Client::to(router.address());
    let ranks: Vec<_> = (0..4)
        .map(|_| {
            client.post("/v1/completions", &completion(json!({})));
            engine.last().header("x-data-parallel-rank").map(str::to_owned)
        })
        .collect();
    assert_eq!(ranks.iter().flatten().filter(|rank| *rank == "0").count(), 2, "{ranks:?}");
    assert_eq!(ranks.iter().flatten().filter(|rank| *rank == "1").count(), 2, "{ranks:?}");
}

#[test]
fn an_engine_s_ranks_keep_their_numbers() {
    for (header, wanted) in [("local", ["0", "1"]), ("global", ["4", "5"])] {
        let engine = Server::start("m");
        let about = json!({ "name": "e", "url": engine.url(), "ranks": [4, 5], "rank_header": header });
        let router = router(&[], json!({ "engines": [about] }));
        let mut client = Client::to(router.address());
        let mut told: Vec<_> = (0..4)
            .map(|_| {
                client.post("/v1/completions", &completion(json!({})));
                engine.last().header("x-data-parallel-rank").unwrap().to_owned()
            })
            .collect();
        told.sort();
        assert_eq!(told, [wanted[0], wanted[0], wanted[1], wanted[1]], "{header}");
        let workers = client.get("/workers").json();
        let numbers: Vec<_> = workers[0]["ranks"].as_array().unwrap().iter().map(|rank| &rank["rank"]).collect();
        assert_eq!(numbers, [4, 5]);
    }
}

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
