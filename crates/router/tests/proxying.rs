//! Requests go through as they are, and answers as they come.

mod support;

use std::io::Write as _;
use std::time::{Duration, Instant};

use kvatlas_fake_engine::{Client, Manner, Server, eventually};
use serde_json::json;
use support::{completion, router};

#[test]
fn answers_pass_whole_and_streams_as_they_come() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({}));
    let mut client = Client::to(router.address());
    let answer = client.post_with(
        "/v1/completions?x=1",
        &completion(json!({})),
        "x-request-id: abc\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nx-mine: 1\r\nconnection: x-hop\r\nx-hop: 1\r\n",
    );
    assert_eq!((answer.status(), answer.json()["choices"][0]["text"].as_str()), (200, Some("hello")));
    assert_eq!(answer.header("x-request-id"), Some("abc"));
    assert_eq!(answer.header("x-engine"), Some("yes"));
    assert_eq!(answer.header("x-kvatlas-worker"), Some("e0"));
    let got = engine.last();
    assert_eq!(got.line, "POST /v1/completions?x=1 HTTP/1.1");
    assert_eq!(got.json(), completion(json!({})));
    assert_eq!((got.header("x-mine"), got.header("x-hop"), got.header("connection")), (Some("1"), None, None));
    assert!(got.header("traceparent").is_some() && got.header("host") == Some(&engine.address().to_string()));

    // On the same connection.
    let started = Instant::now();
    client.ask_for(
        "/v1/chat/completions",
        &completion(json!({ "stream": true, "max_tokens": 5, "pause_ms": 400 })),
        "",
    );
    client.until("0 ");
    assert!(started.elapsed() < Duration::from_millis(1600), "the first token waits for no other");
    let answer = client.answer();
    assert!(answer.whole && answer.text().ends_with("data: [DONE]\n\n") && answer.text().contains("4 "));
    // Five tokens and the end: nobody has asked for the usage, which the router has asked for itself.
    assert_eq!(answer.text().matches("data: ").count(), 6);
    assert_eq!(engine.last().json()["stream_options"], json!({ "include_usage": true }));
    let generated = answer.header("x-request-id").expect("one of the router's");
    assert_eq!(engine.last().header("x-request-id"), Some(generated));
    assert_eq!(client.get("/v1/models").json()["data"][0]["max_model_len"], 4096);
}

#[test]
fn a_client_that_leaves_ends_its_request() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({}));
    for (manner, body) in [
        (Manner::Well, completion(json!({ "stream": true, "max_tokens": 1000, "pause_ms": 20 }))),
        (Manner::Hangs, completion(json!({}))),
    ] {
        engine.set(manner);
        let before = engine.given_up();
        let mut client = Client::to(router.address());
        client.ask_for("/v1/completions", &body, "");
        if manner == Manner::Well {
            client.until("1 ");
        } else {
            eventually("the engine has it", || engine.count() >= 2);
        }
        drop(client);
        eventually("the engine is told", || engine.given_up() > before);
    }
    eventually("the books are balanced", || {
        let engine = router.workers()[0].clone();
        engine["in_flight"] == 0 && engine["cancelled"] == 2
    });
}

#[test]
fn what_could_mean_two_things_is_refused() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({ "http": { "max_body": 100_000 } }));
    for framing in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: +5\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "content-length: 5\r\n x: folded\r\n",
        "bad header: x\r\ncontent-length: 5\r\n",
    ] {
        let mut client = Client::to(router.address());
        client.send(&format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n0\r\n\r\nGET /secret HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let answer = client.answer();
        assert_eq!(answer.status(), 400, "{framing:?}");
        assert!(client.is_closed(), "{framing:?}: nothing behind it is read");
    }
    assert_eq!(engine.count(), 0);
    let mut client = Client::to(router.address());
    let long = "x".repeat(200_000);
    let answer = client.post("/v1/completions", &completion(json!({ "prompt": long })));
    assert_eq!((answer.status(), answer.json()["error"]["code"].as_str()), (413, Some("body_too_large")));
    // And where the length is not said beforehand.
    let mut client = Client::to(router.address());
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\n30d40\r\n");
    let _ = client.stream().write_all(long.as_bytes());
    assert_eq!(client.answer().status(), 413);
    assert_eq!(engine.count(), 0);
}

#[test]
fn what_an_engine_would_say_is_passed_on() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({}));
    eventually("the router is ready", || router.waiting().is_none());
    assert_eq!(router.workers()[0]["models"], json!(["m"]));
    let mut client = Client::to(router.address());
    // A body that is no JSON is the engine's to refuse.
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\ncontent-length: 4\r\n\r\n{{{{");
    assert_eq!(client.answer().status(), 200);
    assert_eq!(engine.last().body, b"{{{{");
    let answer = client.post("/v1/completions", &completion(json!({ "model": "other" })));
    assert_eq!((answer.status(), answer.json()["error"]["code"].as_str()), (404, Some("model_not_found")));
    assert_eq!(client.post("/tokenize", &json!({ "prompt": "x" })).status(), 200);
    assert_eq!(client.post("/sleep", &json!({})).status(), 404, "what changes an engine is not passed on");
    assert_eq!(client.get("/health").status(), 200);
    assert_eq!(client.get("/ready").status(), 200);
    let metrics = client.get("/metrics").text();
    assert!(
        metrics.contains("kvatlas_router_engine_answers_total{engine=\"e0\",status=\"2xx\",model=\"none\"} 2"),
        "{metrics}"
    );
    assert!(metrics.ends_with("# EOF\n"));
    let decisions = client.get("/decisions?limit=1").json();
    assert_eq!((decisions[0]["worker"].as_str(), decisions.as_array().map(Vec::len)), (Some("e0"), Some(1)));
    let explained = client.post("/explain", &completion(json!({}))).json();
    assert_eq!(explained["candidates"][0]["worker"], "e0");
}

#[test]
fn keys_are_asked_for_and_not_passed_on() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({ "http": { "key": "s3cret", "admin_key": "adm1n" } }));
    let mut client = Client::to(router.address());
    let answer = client.post("/v1/completions", &completion(json!({})));
    assert_eq!((answer.status(), answer.json()["error"]["type"].as_str()), (401, Some("authentication_error")));
    let answer = client.post_with("/v1/completions", &completion(json!({})), "authorization: Bearer s3cret\r\n");
    assert_eq!(answer.status(), 200);
    assert_eq!(engine.last().header("authorization"), None);
    let answer = client.post_with("/engines/e0/drain", &json!({}), "authorization: Bearer s3cret\r\n");
    assert_eq!(answer.status(), 403);
    let answer = client.post_with("/engines/e0/drain", &json!({}), "authorization: Bearer adm1n\r\n");
    assert_eq!((answer.status(), answer.json()["standing"].as_str()), (200, Some("draining")));
}
