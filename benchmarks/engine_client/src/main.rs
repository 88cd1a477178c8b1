//! The router's own connection to an engine beside hyper's client, in turns, on one kept connection of each.
//!
//! Prints the median, least and most of 11 turns for each request: from its first byte to the last of its answer, and the
//! time of the processor that the client's thread took.

// The router uses more of it.
#![allow(dead_code)]

#[path = "../../../crates/router/src/engines/answer.rs"]
mod answer;
#[path = "../../../crates/router/src/engines/connection.rs"]
mod connection;
#[path = "../../../crates/router/src/engines/fault.rs"]
mod fault;

use std::future::poll_fn;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;

mod address {
    pub struct Address {
        pub https: bool,
        pub host: String,
        pub port: u16,
        pub certified: Option<String>,
    }
}

const TURNS: usize = 11;
const REQUESTS: usize = 4000;
const HEADERS: [(&str, &str); 4] = [
    ("content-type", "application/json"),
    ("accept", "*/*"),
    ("user-agent", "benchmark"),
    ("x-request-id", "0123456789abcdef0123456789abcdef"),
];

/// Seconds for one request: in all, and of the processor.
type Cost = [f64; 2];

/// Starts an engine that answers each request with `chunks` chunks of 200 bytes. Returns its port.
fn engine(chunks: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, chunks));
        }
    });
    port
}

fn serve(mut stream: TcpStream, chunks: usize) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (mut buffer, mut read) = (vec![0; 1 << 20], 0);
    let chunk = format!("c8\r\n{}\r\n", "x".repeat(200));
    loop {
        let at = buffer[..read].windows(4).position(|four| four == b"\r\n\r\n");
        let wanted = at.map(|at| {
            let head = String::from_utf8_lossy(&buffer[..at]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            at + 4 + length.unwrap_or(0)
        });
        if wanted.is_none_or(|wanted| read < wanted) {
            read += stream.read(&mut buffer[read..]).ok().filter(|read| *read > 0)?;
            continue;
        }
        read = 0;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nserver: uvicorn\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(format!("{head}{chunk}").as_bytes()).ok()?;
        for _ in 1..chunks {
            stream.write_all(chunk.as_bytes()).ok()?;
        }
        stream.write_all(b"0\r\n\r\n").ok()?;
    }
}

/// Returns the seconds of processor time that this thread has taken so far.
fn processor() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanoseconds: f64 = text.split(' ').next().and_then(|first| first.parse().ok()).expect("a number");
    nanoseconds / 1e9
}

async fn ours(port: u16, body: &Bytes) -> Cost {
    let address = address::Address { https: false, host: "127.0.0.1".to_owned(), port, certified: None };
    let connected = connection::Connection::connect(&address, None, Duration::from_secs(2)).await;
    let mut connection = connected.expect("a connection");
    let headers: String = HEADERS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let (started, before) = (Instant::now(), processor());
    for _ in 0..REQUESTS {
        assert!(connection.is_quiet());
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        let mut answer = connection.ask(head.as_bytes(), body, &Method::POST).await.expect("an answer");
        while let Some(data) = poll_fn(|context| connection.poll_data(context, &mut answer.framing)).await {
            black_box(data.expect("data"));
        }
    }
    [started.elapsed().as_secs_f64(), processor() - before].map(|all| all / REQUESTS as f64)
}

async fn hypers(port: u16, body: &Bytes) -> Cost {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    let connection = tokio::spawn(connection);
    let (started, before) = (Instant::now(), processor());
    for _ in 0..REQUESTS {
        sender.ready().await.expect("it is open");
        let mut request = Request::post("/v1/completions").header("host", "127.0.0.1");
        for (name, value) in HEADERS {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body.clone())).expect("a request");
        let mut answer = sender.send_request(request).await.expect("an answer").into_body();
        while let Some(frame) = answer.frame().await {
            black_box(frame.expect("data"));
        }
    }
    let cost = [started.elapsed().as_secs_f64(), processor() - before].map(|all| all / REQUESTS as f64);
    connection.abort();
    cost
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (size, chunks) in [(1 << 10, 5), (48 << 10, 5), (1 << 10, 64), (48 << 10, 64)] {
        let (port, body) = (engine(chunks), Bytes::from(vec![b'y'; size]));
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            costs[0].push(runtime.block_on(ours(port, &body)));
            costs[1].push(runtime.block_on(hypers(port, &body)));
        }
        for (name, costs) in ["ours", "hyper's"].iter().zip(costs) {
            let of = |at: usize| {
                let mut micros: Vec<f64> = costs.iter().map(|cost| cost[at] * 1e6).collect();
                micros.sort_by(f64::total_cmp);
                format!("{:.1} µs ({:.1} to {:.1})", micros[TURNS / 2], micros[0], micros[TURNS - 1])
            };
            println!("{size} bytes, {chunks} chunks, {name}: {}, processor {}", of(0), of(1));
        }
    }
}
