//! Requests go through as they are, and answers as they come: what clients may speak, and how long they may take.

mod support;

use std::io::{Read as _, Write as _};
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

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short one").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[test]
fn http2_is_understood_without_being_announced() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({}));
    let mut client = Client::to(router.address());
    let mut head = vec![0x83, 0x86];
    for (index, value) in [(0x04, "/v1/completions"), (0x01, "localhost")] {
        head.extend([index, u8::try_from(value.len()).expect("short")]);
        head.extend(value.bytes());
    }
    let body = completion(json!({ "stream": true, "max_tokens": 2 })).to_string();
    let frames = [frame(4, 0, 0, &[]), frame(1, 4, 1, &head), frame(0, 1, 1, body.as_bytes())].concat();
    client.stream().write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*frames].concat()).expect("sent");
    let (mut status, mut data, mut over) = (None, Vec::new(), false);
    while !over {
        let mut head = [0; 9];
        client.stream().read_exact(&mut head).expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        client.stream().read_exact(&mut payload).expect("its payload");
        match head[3] {
            0 => data.extend(payload),
            1 => status = payload.first().copied(),
            _ => continue,
        }
        over = head[4] & 1 == 1;
    }
    assert_eq!(status, Some(0x88), "status 200");
    assert!(data.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(engine.last().header("host"), Some(&*engine.address().to_string()));
}

#[test]
fn slow_and_silent_clients_do_not_keep_their_places() {
    let engine = Server::start("m");
    let limits = json!({ "request_timeout": 1.0, "idle_timeout": 1.0, "write_timeout": 0.5 });
    let router = router(&[&engine], json!({ "http": limits }));
    // Nothing at all; half a head; half a body.
    for (said, answered) in [
        ("", None),
        ("POST /v1/comp", None),
        ("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\ncontent-length: 9\r\n\r\n{", Some(408)),
    ] {
        let mut client = Client::to(router.address());
        let started = Instant::now();
        client.send(said);
        if let Some(status) = answered {
            assert_eq!(client.answer().status(), status);
        }
        assert!(client.is_closed(), "{said:?}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }
    // An answer that nobody takes ends at the engine too.
    let mut client = Client::to(router.address());
    client.ask_for("/v1/completions", &completion(json!({ "stream": true, "max_tokens": 1_000_000 })), "");
    eventually("the engine is told", || engine.given_up() == 1);
    assert_eq!(engine.count(), 1);
}

#[test]
fn heads_have_limits() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({ "http": { "max_headers": 50, "max_head": 16384 } }));
    let many: String = (0..10_000).map(|at| format!("x-{at}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(40_000));
    for more in [many, long] {
        let mut client = Client::to(router.address());
        let _ = client.stream().write_all(format!("GET /v1/x HTTP/1.1\r\nHost: localhost\r\n{more}\r\n").as_bytes());
        let mut answer = Vec::new();
        let _ = client.stream().read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
    }
    assert_eq!(engine.count(), 0);
    assert_eq!(Client::to(router.address()).get("/health").status(), 200);
}
