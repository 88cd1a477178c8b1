//! Tests of what clients may speak, and how long they may take.

mod support;

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use kvatlas_fake_engine::{Client, Server, eventually};
use serde_json::json;
use support::{completion, router};

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
