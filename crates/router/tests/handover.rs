//! Prefill on one engine, decode on another.

mod support;

use serde_json::json;
use support::{Client, Engine, Manner, completion, eventually, router};

#[test]
fn vllm_prefill_comes_first_and_its_parameters_go_to_decode() {
    let (prefill, decode) = (Engine::start("m"), Engine::start("m"));
    let engines = json!([
        { "name": "p", "url": prefill.url(), "role": "prefill" },
        { "name": "d", "url": decode.url(), "role": "decode" },
    ]);
    let router = router(&[], json!({ "engines": engines, "decode_alone": 20 }));
    let mut client = Client::to(&router);
    let long = "word ".repeat(100);
    let body = completion(json!({ "prompt": long, "stream": true, "max_tokens": 4, "min_tokens": 2 }));
    let answer = client.post("/v1/completions", &body);
    assert_eq!((answer.status, answer.header("x-kvatlas-worker")), (200, Some("d")));
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
    assert_eq!(client.post("/v1/completions", &completion(json!({}))).status, 200);
    assert_eq!((prefill.count(), decode.count()), (1, 2));

    // Without prefill, decode does it alone.
    for manner in [Manner::Dies, Manner::Busy(503)] {
        prefill.set(manner);
        let answer = client.post("/v1/completions", &completion(json!({ "prompt": long })));
        assert_eq!(answer.status, 200, "{manner:?}");
        assert!(decode.last().json().get("kv_transfer_params").is_none());
    }
    let metrics = client.get("/metrics").text();
    assert!(metrics.contains("kvatlas_router_handovers_total{prefill=\"first\"} 1"), "{metrics}");
    eventually("nothing is in flight", || router.workers()[0]["in_flight"] == 0);
}

#[test]
fn sglang_engines_meet_in_a_room() {
    let (prefill, decode) = (Engine::start("m"), Engine::start("m"));
    let engines = json!([
        { "name": "p", "url": prefill.url(), "role": "prefill", "handover": "sglang", "bootstrap_port": 8998 },
        { "name": "d", "url": decode.url(), "role": "decode", "handover": "sglang" },
    ]);
    let router = router(&[], json!({ "engines": engines, "decode_alone": 0 }));
    let mut client = Client::to(&router);
    let answer = client.post("/v1/completions", &completion(json!({ "stream": true, "max_tokens": 3 })));
    assert_eq!((answer.status, answer.header("x-kvatlas-worker")), (200, Some("d")));
    eventually("prefill has it too", || prefill.count() == 1);
    let (first, second) = (prefill.last().json(), decode.last().json());
    assert_eq!(first, second);
    assert_eq!((&first["bootstrap_host"], &first["bootstrap_port"]), (&json!("127.0.0.1"), &json!(8998)));
    assert!(first["bootstrap_room"].is_u64());
    // A decode engine that waits for a prefill engine that is gone does not wait for ever.
    prefill.set(Manner::Dies);
    decode.set(Manner::Hangs);
    let answer = client.post("/v1/completions", &completion(json!({})));
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (502, Some("engine_failed")));
    assert!(answer.text().contains("the prefill engine failed"), "{}", answer.text());
}

#[test]
fn a_prompt_that_kills_engines_goes_to_two_of_them() {
    let (prefills, decodes) = ([(); 3].map(|()| Engine::start("m")), [(); 2].map(|()| Engine::start("m")));
    let told = |role: &'static str| move |(at, engine): (usize, &Engine)| json!({ "name": format!("{role}{at}"), "url": engine.url(), "role": role });
    let engines: Vec<_> = prefills
        .iter()
        .enumerate()
        .map(told("prefill"))
        .chain(decodes.iter().enumerate().map(told("decode")))
        .collect();
    let router = router(&[], json!({ "engines": engines, "decode_alone": 0, "upstream": { "retries": 4 } }));
    let mut client = Client::to(&router);
    let all = || prefills.iter().chain(&decodes);
    let sent = || all().map(Engine::count).sum::<usize>();
    all().for_each(|engine| engine.set(Manner::Dies));
    let answer = client.post("/v1/completions", &completion(json!({})));
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (502, Some("engine_failed")));
    assert_eq!((sent(), decodes.iter().map(Engine::count).sum::<usize>()), (2, 0));
    // Where prefill survives, decode is the second.
    prefills.iter().for_each(|engine| engine.set(Manner::Well));
    assert_eq!(client.post("/v1/completions", &completion(json!({ "x": 1 }))).status, 502);
    assert_eq!(decodes.each_ref().map(Engine::count), [1, 1]);
    assert!(router.workers().as_array().is_some_and(|all| all.iter().all(|engine| engine["standing"] == "up")));
}
