//! The page of the router, as a client gets it.

mod support;

use kvatlas_fake_engine::{Client, Server};
use serde_json::{Value, json};
use support::{completion, router};

/// Opens `/ui/events` and reads until everything has come once.
fn watch(router: &kvatlas_router::Router) -> Client {
    let mut client = Client::to(router.address());
    client.send("GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.until("content-type: text/event-stream");
    client.until("event: whole");
    client.until("\"kind\":\"router\"");
    client
}

#[test]
fn decisions_are_told_and_can_be_asked_for() {
    let engines = [Server::start("m"), Server::start("m")];
    let router = router(&[&engines[0], &engines[1]], json!({ "policy": "kvatlas" }));
    let mut page = watch(&router);
    page.until("\"e0/0\"");
    page.until("\"list\":\"history\"");
    // From its first update on, the candidates are kept.
    let mut client = Client::to(router.address());
    let answer = client.post("/v1/completions", &completion(json!({ "stream": true })));
    assert_eq!(answer.status(), 200, "{}", answer.text());
    page.until("\"list\":\"decisions\"");
    page.until("\"state\":\"finished\"");
    let number = client.get("/decisions?limit=1").json()[0]["number"].as_u64().expect("a decision");
    let told = client.get(&format!("/ui/decision?number={number}"));
    assert_eq!(told.status(), 200, "{}", told.text());
    let told = told.json();
    let terms = told["terms"].as_array().expect("terms").len();
    assert!(terms > 1, "{told}");
    let candidates = told["candidates"].as_array().expect("candidates");
    assert_eq!(candidates.len(), 2, "{told}");
    assert!(candidates.iter().all(|candidate| candidate["terms"].as_array().is_some_and(|all| all.len() == terms)));
    assert!(candidates.iter().any(|candidate| candidate["worker"] == told["worker"]));
    assert_eq!(client.get("/ui/decision?number=999999").status(), 404);
    assert_eq!(client.get("/ui/decision").status(), 400);
}

#[test]
fn explaining_sends_nothing_and_keeps_the_order_of_terms() {
    let engines = [Server::start("m"), Server::start("m")];
    let router = router(&[&engines[0], &engines[1]], json!({ "policy": "kvatlas" }));
    let answer = Client::to(router.address()).post("/explain", &completion(json!({})));
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let said = answer.json();
    let terms: Vec<&str> = said["terms"].as_array().expect("terms").iter().filter_map(Value::as_str).collect();
    assert_eq!(terms.last(), Some(&"cost (s)"), "what is compared comes last");
    for candidate in said["candidates"].as_array().expect("candidates") {
        let values: Vec<f64> = terms.iter().filter_map(|name| candidate["terms"][*name].as_f64()).collect();
        assert_eq!(values.len(), terms.len(), "{candidate}");
        let (sum, parts) = values.split_last().expect("terms");
        assert!((sum - parts.iter().sum::<f64>()).abs() < 1e-6, "{candidate}");
    }
    assert_eq!(engines[0].count() + engines[1].count(), 0);
}

#[test]
fn files_are_open_and_what_they_show_needs_the_key() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({ "http": { "key": "s3cret" } }));
    let mut client = Client::to(router.address());
    for path in ["/ui", "/ui/page.js", "/ui/page.css"] {
        let answer = client.get(path);
        assert_eq!(answer.status(), 200, "{path}");
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
    for path in ["/ui/events", "/ui/decision?number=1", "/decisions"] {
        assert_eq!(client.get(path).status(), 401, "{path}");
    }
    assert_eq!(engine.count(), 0);
}

#[test]
fn open_pages_do_not_hold_back_the_end() {
    let engine = Server::start("m");
    let router = router(&[&engine], json!({}));
    let mut page = watch(&router);
    let ending =
        std::thread::spawn(move || router.drain(std::time::Duration::from_secs(60), std::time::Duration::ZERO));
    page.until("\r\n0\r\n\r\n");
    assert!(ending.join().expect("no panic"), "something was cut off");
}
