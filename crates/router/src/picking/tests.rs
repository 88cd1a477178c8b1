//! Tests of the Endpoint Picker, in a router in front of simulated engines.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use kvatlas_epp::{BodyRoom, Pick, PickRefusal, Picker, RequestToPick};
use kvatlas_fake_engine::{Server, eventually};
use kvatlas_settings::merge;
use serde_json::{Value, json};

use super::EnginePicker;
use crate::config::Config;
use crate::router::Router;

fn router(engines: &[&Server]) -> Router {
    let mut config: Value = serde_json::from_str(include_str!("../../defaults.json")).unwrap();
    let engines = engines.iter().enumerate().map(|(at, it)| json!({ "name": format!("e{at}"), "url": it.url() }));
    let own = json!({
        "http": { "bind": "127.0.0.1:0", "threads": 1 },
        "policy": "round-robin",
        "log": { "level": "off" },
        "engines": engines.collect::<Vec<_>>(),
    });
    merge(&mut config, own);
    let router = Router::start(Config::from_json(&config.to_string()).unwrap()).unwrap();
    let is_known = || router.app.fleet.engines().iter().all(|engine| engine.lists(Some("m")));
    eventually("the engines' models are known", is_known);
    router
}

fn request(path: &str, body: Option<&Value>) -> RequestToPick {
    let header = |name: &str, value: &str| (name.to_owned(), Bytes::copy_from_slice(value.as_bytes()));
    RequestToPick {
        headers: vec![header(":method", "POST"), header(":path", path), header("content-type", "application/json")],
        body: body.map(|body| body.to_string().into()),
        subset: None,
        may_change_body: true,
    }
}

fn pick(router: &Router, request: RequestToPick) -> Result<Pick, PickRefusal> {
    let picker = EnginePicker::new(router.app.clone());
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(picker.pick(request))
}

fn endpoint(engine: &Server) -> String {
    engine.url().trim_start_matches("http://").to_owned()
}

#[test]
fn engines_take_turns_and_the_other_one_is_named_behind() {
    let engines = [Server::start("m"), Server::start("m")];
    let router = router(&[&engines[0], &engines[1]]);
    let body = json!({ "model": "m", "prompt": "hello there" });
    let picks: Vec<Pick> =
        (0..2).map(|_| pick(&router, request("/v1/completions", Some(&body))).ok().unwrap()).collect();
    let mut firsts: Vec<String> = picks.iter().map(|pick| pick.endpoints[0].clone()).collect();
    for pick in &picks {
        assert_eq!(pick.endpoints.len(), 2, "{:?}", pick.endpoints);
        assert_ne!(pick.endpoints[0], pick.endpoints[1]);
    }
    firsts.sort();
    let mut both: Vec<String> = engines.iter().map(endpoint).collect();
    both.sort();
    assert_eq!(firsts, both);
    assert_eq!(router.app.places.summary().in_flight, 2, "their answers have not ended");
    drop(picks);
    assert_eq!(router.app.places.summary().in_flight, 0, "they were cut off");
}

#[test]
fn only_endpoints_of_the_subset_are_picked() {
    let engines = [Server::start("m"), Server::start("m")];
    let router = router(&[&engines[0], &engines[1]]);
    let body = json!({ "model": "m", "prompt": "hello there" });
    let among = |subset: &str| RequestToPick {
        subset: Some(vec![subset.to_owned()]),
        ..request("/v1/completions", Some(&body))
    };
    for _ in 0..3 {
        let pick = pick(&router, among(&endpoint(&engines[1]))).ok().unwrap();
        assert_eq!(pick.endpoints, [endpoint(&engines[1])]);
    }
    let refused = pick(&router, among("10.0.0.1:8000")).err().unwrap();
    assert!(refused.status == 503 && refused.body.contains("no_worker"), "{refused:?}");
}

#[test]
fn a_request_waits_until_an_engine_is_there() {
    let engine = Server::start("m");
    let router = router(&[]);
    let body = json!({ "model": "m", "prompt": "hello there" });
    let picked = std::thread::scope(|scope| {
        let picking = scope.spawn(|| pick(&router, request("/v1/completions", Some(&body))));
        eventually("it waits", || router.app.places.no_engine.len() == 1);
        router.set_engine(&json!({ "name": "late", "url": engine.url() }).to_string()).unwrap();
        picking.join().unwrap()
    });
    assert_eq!(picked.ok().unwrap().endpoints, [endpoint(&engine)]);
    assert_eq!(router.app.places.no_engine.len(), 0);
}

#[test]
fn the_memory_for_bodies_is_that_of_all_requests() {
    let engine = Server::start("m");
    let router = router(&[&engine]);
    let picker = EnginePicker::new(router.app.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut room = picker.room(&request("/v1/messages", None));
    runtime.block_on(room.grow(1000)).unwrap();
    assert_eq!(router.app.front.memory.used(), 1000);
    let refused = room.too_large();
    assert!(refused.status == 413 && refused.body.contains("http.max_body"), "{refused:?}");
    assert!(refused.body.contains("request_too_large"), "in the words of the route's API: {refused:?}");
    drop(room);
    assert_eq!(router.app.front.memory.used(), 0);
}

#[test]
fn the_answer_is_counted_at_its_engine() {
    let engine = Server::start("m");
    let router = router(&[&engine]);
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }], "stream": true });
    let pick = pick(&router, request("/v1/chat/completions", Some(&body))).ok().unwrap();
    assert!(pick.headers.contains(&("accept-encoding".to_owned(), "identity".to_owned())));
    let mut watcher = pick.watcher.unwrap();
    watcher.head(200, &[("content-type".to_owned(), Bytes::from_static(b"text/event-stream"))]);
    let token = br#"data: {"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    watcher.part(&Bytes::from([&token[..], b"\n\n"].concat()));
    let usage = br#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}"#;
    watcher.part(&Bytes::from([&usage[..], b"\n\ndata: [DONE]\n\n"].concat()));
    watcher.end();
    let record = router.decisions(1)[0].clone();
    assert_eq!(record["ended"]["output_tokens"], 7, "{record}");
    assert_eq!(record["ended"]["cached_tokens"], 4, "{record}");
    assert!(record["ended"]["first_token"].is_number(), "{record}");
    assert_eq!(router.app.places.summary().in_flight, 0);
}

#[test]
fn refusals_are_those_of_the_router() {
    let engine = Server::start("m");
    let router = router(&[&engine]);
    let body = json!({ "model": "m", "prompt": "hello" });
    let refused = |request: RequestToPick| {
        let refused = pick(&router, request).err().unwrap();
        let code = serde_json::from_str::<Value>(&refused.body).unwrap()["error"]["code"].as_str().unwrap().to_owned();
        (refused.status, code)
    };
    assert_eq!(refused(request("/nowhere", Some(&body))), (404, "unknown_path".to_owned()));
    assert_eq!(refused(request("/engines", Some(&body))), (404, "not_for_engines".to_owned()));
    assert_eq!(refused(request("/v1/completions", None)), (500, "body_not_shown".to_owned()));
    assert_eq!(refused(RequestToPick::default()), (400, "malformed_request".to_owned()));
    let mut reserved = request("/v1/completions", Some(&body));
    reserved.headers.push(("x-data-parallel-rank".to_owned(), Bytes::from_static(b"1")));
    assert_eq!(refused(reserved).0, 400);
}

#[test]
fn a_path_below_a_gateways_prefix_is_read_as_the_engine_gets_it() {
    let engine = Server::start("m");
    let router = router(&[&engine]);
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }] });
    for path in ["/v1/chat/completions", "/llm/qwen/v1/chat/completions?a=b"] {
        let picked = pick(&router, request(path, Some(&body)));
        let picked = picked.unwrap_or_else(|refused| panic!("{path}: {refused:?}"));
        assert!(picked.headers.contains(&("accept-encoding".to_owned(), "identity".to_owned())), "{path} is a chat");
    }
    for path in ["/llm/engines", "/llm/nowhere"] {
        assert_eq!(pick(&router, request(path, Some(&body))).err().unwrap().status, 404, "{path}");
    }
}

#[test]
fn the_server_for_gateways_ends_with_the_router() {
    let engine = Server::start("m");
    let router = router(&[&engine]);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let address = router.serve_gateways(any).unwrap();
    TcpStream::connect(address).unwrap();
    assert!(router.serve_gateways(any).unwrap_err().to_string().contains("already"), "there is one");
    assert!(router.drain(Duration::from_secs(10), Duration::ZERO));
    assert!(TcpStream::connect(address).is_err(), "it has ended");
    assert!(router.serve_gateways(any).is_err(), "the router has ended");
}
