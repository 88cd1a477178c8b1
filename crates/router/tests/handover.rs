//! Prefill on one engine, decode on another.

mod support;

use kvatlas_fake_engine::{Client, Manner, Server, eventually};
use serde_json::json;
use support::{completion, router};

/// A pair of SGLang's.
fn pair(prefill: &Server, decode: &Server) -> serde_json::Value {
    json!({ "decode_alone": 0, "engines": [
        { "name": "p", "url": prefill.url(), "role": "prefill", "handover": "sglang", "bootstrap_port": 8998 },
        { "name": "d", "url": decode.url(), "role": "decode", "handover": "sglang" },
    ] })
}

#[test]
fn vllm_prefill_comes_first_and_its_parameters_go_to_decode() {
    let (prefill, decode) = (Server::start("m"), Server::start("m"));
    let engines = json!([
        { "name": "p", "url": prefill.url(), "role": "prefill", "handover": "vllm" },
        { "name": "d", "url": decode.url(), "role": "decode", "handover": "vllm" },
    ]);
    let router = router(&[], json!({ "engines": engines, "decode_alone": 20 }));
    let mut client = Client::to(router.address());
    let long = "word ".repeat(100);
    let body = completion(json!({ "prompt": long, "stream": true, "max_tokens": 4, "min_tokens": 2 }));
    let answer = client.post("/v1/completions", &body);
    assert_eq!((answer.status(), answer.header("x-kvatlas-worker")), (200, Some("d")));
    assert!(answer.text().ends_with("[DONE]\n\n") && answer.text().contains("3 "));
    let asked = prefill.last().json();
    assert_eq!((&asked["max_tokens"], &asked["stream"], &asked["prompt"]), (&json!(1), &json!(false), &json!(long)));
    assert_eq!(asked["kv_transfer_params"]["do_remote_decode"], true);
    assert!(asked.get("min_tokens").is_none());
    let asked = decode.last().json();
    assert_eq!((&asked["max_tokens"], &asked["min_tokens"]), (&json!(4), &json!(2)));
    assert_eq!(asked["kv_transfer_params"], json!({ "remote_block_ids": [1], "do_remote_prefill": true }));
    assert_eq!(prefill.last().header("x-request-id"), decode.last().header("x-request-id"));

    // A short rest is not worth it.
    assert_eq!(client.post("/v1/completions", &completion(json!({}))).status(), 200);
    assert_eq!((prefill.count(), decode.count()), (1, 2));

    // Without prefill, decode does it alone.
    for manner in [Manner::Dies, Manner::Busy(503)] {
        prefill.set(manner);
        let answer = client.post("/v1/completions", &completion(json!({ "prompt": long })));
        assert_eq!(answer.status(), 200, "{manner:?}");
        assert!(decode.last().json().get("kv_transfer_params").is_none());
    }
    let metrics = client.get("/metrics").text();
    assert!(metrics.contains("kvatlas_router_handovers_total{prefill=\"first\"} 1"), "{metrics}");
    eventually("nothing is in flight", || router.workers()[0]["in_flight"] == 0);
}

#[test]
fn sglang_engines_meet_in_a_room() {
    let (prefill, decode) = (Server::start("m"), Server::start("m"));
    let engines = json!([
        { "name": "p", "url": prefill.url(), "role": "prefill", "handover": "sglang", "bootstrap_port": 8998 },
        { "name": "d", "url": decode.url(), "role": "decode", "handover": "sglang" },
    ]);
    let router = router(&[], json!({ "engines": engines, "decode_alone": 0 }));
    let mut client = Client::to(router.address());
    let answer = client.post("/v1/completions", &completion(json!({ "stream": true, "max_tokens": 3 })));
    assert_eq!((answer.status(), answer.header("x-kvatlas-worker")), (200, Some("d")));
    eventually("prefill has it too", || prefill.count() == 1);
    let (first, second) = (prefill.last().json(), decode.last().json());
    assert_eq!(first, second);
    assert_eq!((&first["bootstrap_host"], &first["bootstrap_port"]), (&json!("127.0.0.1"), &json!(8998)));
    assert!(first["bootstrap_room"].is_u64());
    // A decode engine that waits for a prefill engine that is gone does not wait for ever.
    prefill.set(Manner::Dies);
    decode.set(Manner::Hangs);
    let answer = client.post("/v1/completions", &completion(json!({})));
    assert_eq!((answer.status(), answer.json()["error"]["code"].as_str()), (502, Some("engine_failed")));
    assert!(answer.text().contains("the prefill engine failed"), "{}", answer.text());
}

#[test]
fn a_prompt_that_kills_engines_goes_to_two_of_them() {
    let (prefills, decodes) = ([(); 3].map(|()| Server::start("m")), [(); 2].map(|()| Server::start("m")));
    let told = |role: &'static str| move |(at, engine): (usize, &Server)| json!({ "name": format!("{role}{at}"), "url": engine.url(), "role": role, "handover": "vllm" });
    let engines: Vec<_> = prefills
        .iter()
        .enumerate()
        .map(told("prefill"))
        .chain(decodes.iter().enumerate().map(told("decode")))
        .collect();
    let router = router(&[], json!({ "engines": engines, "decode_alone": 0, "upstream": { "retries": 4 } }));
    let mut client = Client::to(router.address());
    let all = || prefills.iter().chain(&decodes);
    let sent = || all().map(Server::count).sum::<usize>();
    all().for_each(|engine| engine.set(Manner::Dies));
    let answer = client.post("/v1/completions", &completion(json!({})));
    assert_eq!((answer.status(), answer.json()["error"]["code"].as_str()), (502, Some("engine_failed")));
    assert_eq!((sent(), decodes.iter().map(Server::count).sum::<usize>()), (2, 0));
    // Where prefill survives, decode is the second.
    prefills.iter().for_each(|engine| engine.set(Manner::Well));
    assert_eq!(client.post("/v1/completions", &completion(json!({ "x": 1 }))).status(), 502);
    assert_eq!(decodes.each_ref().map(Server::count), [1, 1]);
    assert!(router.workers().as_array().is_some_and(|all| all.iter().all(|engine| engine["standing"] == "up")));
}

#[test]
fn prefill_ends_with_what_it_works_for() {
    let (prefill, decode) = (Server::start("m"), Server::start("m"));
    let router = router(&[], pair(&prefill, &decode));
    let gave_up = || {
        eventually("nothing is in flight", || {
            router.workers().as_array().is_some_and(|all| all.iter().all(|engine| engine["in_flight"] == 0))
        });
        eventually("prefill is given up", || prefill.given_up() == prefill.count());
    };
    prefill.set(Manner::Hangs);
    // The decode engine refuses it, in one way or the other.
    for status in [400, 413, 500] {
        decode.set(Manner::Busy(status));
        let answer = Client::to(router.address()).post("/v1/completions", &completion(json!({ "stream": true })));
        assert_eq!(answer.status(), status);
        gave_up();
    }
    // The client leaves before the answer begins.
    decode.set(Manner::Hangs);
    let mut client = Client::to(router.address());
    let before = prefill.count();
    client.ask_for("/v1/completions", &completion(json!({ "stream": true })), "");
    eventually("both are asked", || prefill.count() > before && decode.count() == 4);
    drop(client);
    gave_up();
    // And in the middle of it.
    decode.set(Manner::Well);
    let mut client = Client::to(router.address());
    let body = completion(json!({ "stream": true, "max_tokens": 10_000, "pause_ms": 20 }));
    client.ask_for("/v1/completions", &body, "");
    client.until("1 ");
    eventually("prefill is asked", || prefill.count() > before + 1);
    drop(client);
    gave_up();
    // The answer breaks off.
    decode.set(Manner::DiesAfter(1));
    let _ = Client::to(router.address()).post("/v1/completions", &completion(json!({ "stream": true })));
    gave_up();
}

#[test]
fn what_both_refuse_is_refused() {
    let (prefill, decode) = (Server::start("m"), Server::start("m"));
    let router = router(&[], pair(&prefill, &decode));
    let mut client = Client::to(router.address());
    let asked =
        |engine: &Server, seed: u16| engine.requests().iter().filter(|request| request.json()["seed"] == seed).count();
    for status in [400, 404, 413, 422] {
        // Decode may say so itself, or wait for prefill.
        for manner in [Manner::Busy(status), Manner::Hangs] {
            prefill.set(Manner::Busy(status));
            decode.set(manner);
            let seed = status * 2 + u16::from(manner == Manner::Hangs);
            let answer = client.post("/v1/completions", &completion(json!({ "stream": true, "seed": seed })));
            assert_eq!((answer.status(), answer.json()), (status, json!({ "error": "busy" })), "{manner:?}");
            assert!(answer.header("x-request-id").is_some());
            assert!(asked(&prefill, seed) <= 1 && asked(&decode, seed) <= 1, "it is not sent again");
        }
    }
    let metrics = client.get("/metrics").text();
    let is_fault = |line: &&str| line.contains("prefill") && line.contains("faults") && !line.ends_with(" 0");
    assert_eq!(metrics.lines().find(is_fault), None);
    let engines = router.workers();
    assert!(engines.as_array().is_some_and(|all| all.iter().all(|engine| engine["standing"] == "up")), "{engines}");
    // A prefill engine that is busy is another matter.
    prefill.set(Manner::Busy(429));
    decode.set(Manner::Hangs);
    assert_eq!(client.post("/v1/completions", &completion(json!({}))).status(), 502);
}

#[test]
fn decode_has_the_last_word_where_prefill_comes_first() {
    let (prefill, decode) = (Server::start("m"), Server::start("m"));
    let engines = json!([
        { "name": "p", "url": prefill.url(), "role": "prefill", "handover": "vllm" },
        { "name": "d", "url": decode.url(), "role": "decode", "handover": "vllm" },
    ]);
    let router = router(&[], json!({ "engines": engines, "decode_alone": 0 }));
    let mut client = Client::to(router.address());
    prefill.set(Manner::Busy(400));
    decode.set(Manner::Busy(400));
    assert_eq!(client.post("/v1/completions", &completion(json!({}))).status(), 400);
    assert_eq!((prefill.count(), decode.count()), (1, 1));
    // Several sequences are the decode engine's work; beam search and several prompts are all its own.
    prefill.set(Manner::Well);
    decode.set(Manner::Well);
    assert_eq!(client.post("/v1/completions", &completion(json!({ "n": 4, "best_of": 4 }))).status(), 200);
    let asked = prefill.last().json();
    assert_eq!((asked.get("n"), asked.get("best_of"), &asked["max_tokens"]), (None, None, &json!(1)));
    assert_eq!((&decode.last().json()["n"], prefill.count()), (&json!(4), 2));
    for more in [json!({ "use_beam_search": true, "n": 4 }), json!({ "prompt": ["a", "b"] })] {
        assert_eq!(client.post("/v1/completions", &completion(more)).status(), 200);
    }
    assert_eq!((prefill.count(), decode.count()), (2, 4));
}
