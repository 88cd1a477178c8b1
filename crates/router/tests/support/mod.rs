//! Small engines for the tests, each in a thread of its own, and a client that sees every byte.

// Each test file uses a part of this.
#![allow(dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvatlas_router::{Config, Router};
use kvatlas_settings::merge;
use serde_json::{Value, json};

/// Way in which an engine answers requests with a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Answers as it should, streamed if asked to.
    Well,
    /// Sends so many tokens, and then nothing more.
    StallsAfter(usize),
    /// Sends so many tokens, and then ends the connection.
    DiesAfter(usize),
    /// Ends the connection at once.
    Dies,
    /// Sends nothing at all.
    Hangs,
    /// Sends bytes that are no HTTP.
    Garbage,
    /// Answers with a status, and `Retry-After: 1`.
    Busy(u16),
    /// Closes the connection after each answer without saying so.
    ClosesIdle,
}

/// A small engine.
pub struct Engine {
    pub address: SocketAddr,
    manner: Arc<Mutex<Manner>>,
    stop: Arc<AtomicBool>,
    /// Requests with a prompt that came, whole.
    pub requests: Arc<Mutex<Vec<Request>>>,
    /// Streams whose client went away before their end, and after how long.
    pub given_up: Arc<AtomicUsize>,
    pub last_given_up: Arc<Mutex<Option<Instant>>>,
    pub connections: Arc<AtomicUsize>,
}

/// A request as an engine got it.
#[derive(Clone, Debug)]
pub struct Request {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(its, _)| its.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a body in JSON")
    }
}

impl Engine {
    pub fn start(model: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let engine = Self {
            address: listener.local_addr().expect("an address"),
            manner: Arc::new(Mutex::new(Manner::Well)),
            stop: Arc::default(),
            requests: Arc::default(),
            given_up: Arc::default(),
            last_given_up: Arc::default(),
            connections: Arc::default(),
        };
        let (manner, stop, requests) = (engine.manner.clone(), engine.stop.clone(), engine.requests.clone());
        let (given_up, last, connections) =
            (engine.given_up.clone(), engine.last_given_up.clone(), engine.connections.clone());
        let model = model.to_owned();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                connections.fetch_add(1, SeqCst);
                let (manner, stop, requests) = (manner.clone(), stop.clone(), requests.clone());
                let (given_up, last, model) = (given_up.clone(), last.clone(), model.clone());
                std::thread::spawn(move || {
                    let lost = serve(stream, &model, &manner, &stop, &requests);
                    if lost == Some(true) {
                        given_up.fetch_add(1, SeqCst);
                        *last.lock().expect("no panic") = Some(Instant::now());
                    }
                });
            }
        });
        engine
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set(&self, manner: Manner) {
        *self.manner.lock().expect("no panic") = manner;
    }

    pub fn count(&self) -> usize {
        self.requests.lock().expect("no panic").len()
    }

    pub fn last(&self) -> Request {
        self.requests.lock().expect("no panic").last().cloned().expect("a request")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// Reads a head and a body with a length.
pub fn read_message(stream: &mut TcpStream, rest: &mut Vec<u8>) -> Option<Request> {
    let mut buffer = [0; 65536];
    let end = loop {
        if let Some(at) = rest.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(read) => rest.extend_from_slice(&buffer[..read]),
        }
    };
    let head = String::from_utf8_lossy(&rest[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length.map_or(0, |(_, value)| value.parse().expect("a length"));
    while rest.len() < end + length {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(read) => rest.extend_from_slice(&buffer[..read]),
        }
    }
    let body = rest[end..end + length].to_vec();
    rest.drain(..end + length);
    Some(Request { line, headers, body })
}

/// `Some(true)`: the other side went away in the middle of a stream.
fn serve(
    mut stream: TcpStream,
    model: &str,
    manner: &Mutex<Manner>,
    stop: &AtomicBool,
    requests: &Mutex<Vec<Request>>,
) -> Option<bool> {
    stream.set_nodelay(true).ok()?;
    let mut rest = Vec::new();
    loop {
        let request = read_message(&mut stream, &mut rest)?;
        if stop.load(SeqCst) {
            return None;
        }
        if request.line.starts_with("GET /health") {
            answer(&mut stream, "200 OK", "text/plain", b"", "")?;
            continue;
        }
        if request.line.starts_with("GET /v1/models") {
            let models =
                json!({ "object": "list", "data": [{ "id": model, "object": "model", "max_model_len": 4096 }] });
            answer(&mut stream, "200 OK", "application/json", models.to_string().as_bytes(), "")?;
            continue;
        }
        if request.line.starts_with("GET ") {
            answer(&mut stream, "404 Not Found", "application/json", b"{}", "")?;
            continue;
        }
        requests.lock().expect("no panic").push(request.clone());
        let manner = *manner.lock().expect("no panic");
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        match manner {
            Manner::Dies => return None,
            Manner::Hangs => {
                let gone = stream.read(&mut [0]).map_or(true, |read| read == 0);
                return Some(gone);
            }
            Manner::Garbage => {
                stream.write_all(b"\x00\x01 no HTTP at all\r\n\r\n").ok()?;
                return None;
            }
            Manner::Busy(status) => {
                let line = format!("{status} Busy");
                answer(&mut stream, &line, "application/json", b"{\"error\":\"busy\"}", "retry-after: 1\r\n")?;
                continue;
            }
            _ => {}
        }
        if body["stream"] == true {
            let tokens = body["max_tokens"].as_u64().unwrap_or(3) as usize;
            if !events(&mut stream, &body, tokens, manner) {
                return Some(true);
            }
            if matches!(manner, Manner::DiesAfter(_)) {
                return None;
            }
        } else {
            let remote = body["kv_transfer_params"]["do_remote_decode"] == true;
            let parameters = remote.then(|| json!({ "remote_block_ids": [1], "do_remote_prefill": true }));
            let text = json!({
                "kv_transfer_params": parameters,
                "id": "x", "model": body["model"], "choices": [{ "text": "hello", "finish_reason": "stop" }],
                "usage": { "prompt_tokens": 4, "completion_tokens": 1, "prompt_tokens_details": { "cached_tokens": 2 } }
            });
            answer(&mut stream, "200 OK", "application/json", text.to_string().as_bytes(), "x-engine: yes\r\n")?;
        }
        if manner == Manner::ClosesIdle {
            return None;
        }
    }
}

fn answer(stream: &mut TcpStream, status: &str, kind: &str, body: &[u8], more: &str) -> Option<()> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{more}content-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).ok()
}

/// False if the other side goes away.
fn events(stream: &mut TcpStream, body: &Value, tokens: usize, manner: Manner) -> bool {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    if stream.write_all(head.as_bytes()).is_err() {
        return false;
    }
    let pause = Duration::from_millis(body["pause_ms"].as_u64().unwrap_or(0));
    for token in 0..tokens {
        if manner == Manner::DiesAfter(token) {
            // In the middle of an event.
            return chunk(stream, "data: {\"choices\":[{\"de");
        }
        if manner == Manner::StallsAfter(token) {
            return stream.read(&mut [0]).is_ok_and(|read| read > 0);
        }
        let event = json!({ "choices": [{ "delta": { "content": format!("{token} ") }, "finish_reason": null }] });
        if !chunk(stream, &format!("data: {event}\n\n")) || !waits(stream, pause) {
            return false;
        }
    }
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 4, "completion_tokens": tokens } });
    chunk(stream, &format!("data: {usage}\n\ndata: [DONE]\n\n")) && stream.write_all(b"0\r\n\r\n").is_ok()
}

fn chunk(stream: &mut TcpStream, text: &str) -> bool {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).is_ok()
}

/// Waits a while. False if the other side goes away meanwhile.
fn waits(stream: &mut TcpStream, pause: Duration) -> bool {
    if pause.is_zero() {
        return true;
    }
    stream.set_read_timeout(Some(pause)).expect("an option");
    let gone = match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    };
    stream.set_read_timeout(None).expect("an option");
    !gone
}

/// A router in front of engines; `more` goes over the settings that all tests share.
pub fn router(engines: &[&Engine], more: Value) -> Router {
    let mut config: Value = serde_json::from_str(include_str!("../../defaults.json")).expect("the defaults");
    let shared = json!({
        "http": { "bind": "127.0.0.1:0", "threads": 2 },
        "policy": "round-robin",
        "health": { "interval": 0.1, "timeout": 30, "open": 0.5 },
        "log": { "level": "off" },
        "engines": engines.iter().enumerate().map(|(at, engine)| {
            json!({ "name": format!("e{at}"), "url": engine.url() })
        }).collect::<Vec<_>>(),
    });
    merge(&mut config, shared);
    merge(&mut config, more);
    Router::start(Config::from_json(&config.to_string()).expect("a configuration")).expect("a free port")
}

/// A client's connection.
pub struct Client {
    pub stream: TcpStream,
    rest: Vec<u8>,
}

/// An answer as a client got it.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// True if the body ended as it should.
    pub whole: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(its, _)| its.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON: {:?}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub fn to(router: &Router) -> Self {
        let stream = TcpStream::connect(router.address()).expect("it listens");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
        Self { stream, rest: Vec::new() }
    }

    pub fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).expect("sent");
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.post_with(path, body, "")
    }

    pub fn post_with(&mut self, path: &str, body: &Value, headers: &str) -> Answer {
        self.ask_for(path, body, headers);
        self.answer()
    }

    pub fn ask_for(&mut self, path: &str, body: &Value, headers: &str) {
        let body = body.to_string();
        let length = body.len();
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
        ));
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        self.answer()
    }

    /// Reads until `text` has come.
    pub fn until(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&self.rest).contains(text) {
            let read = self.stream.read(&mut buffer).expect("more");
            assert!(read > 0, "the answer ended without {text:?}: {:?}", String::from_utf8_lossy(&self.rest));
            self.rest.extend_from_slice(&buffer[..read]);
        }
    }

    /// Reads one answer.
    pub fn answer(&mut self) -> Answer {
        let mut ended = false;
        let end = loop {
            if let Some(at) = self.rest.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(!ended, "no answer: {:?}", String::from_utf8_lossy(&self.rest));
            ended = !self.more();
        };
        let head = String::from_utf8_lossy(&self.rest[..end]).into_owned();
        self.rest.drain(..end);
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut answer = Answer { status: status.expect("a status"), headers, body: Vec::new(), whole: true };
        if answer.header("transfer-encoding").is_some() {
            loop {
                let Some(at) = self.rest.windows(2).position(|two| two == b"\r\n") else {
                    if !self.more() {
                        answer.whole = false;
                        return answer;
                    }
                    continue;
                };
                let size = String::from_utf8_lossy(&self.rest[..at]).into_owned();
                let size = usize::from_str_radix(&size, 16).expect("a size");
                while self.rest.len() < at + 2 + size + 2 {
                    if !self.more() {
                        answer.whole = false;
                        return answer;
                    }
                }
                answer.body.extend_from_slice(&self.rest[at + 2..at + 2 + size]);
                self.rest.drain(..at + 2 + size + 2);
                if size == 0 {
                    return answer;
                }
            }
        }
        let length: usize = answer.header("content-length").map_or(0, |length| length.parse().expect("a length"));
        while self.rest.len() < length {
            if !self.more() {
                answer.whole = false;
                break;
            }
        }
        let length = length.min(self.rest.len());
        answer.body = self.rest.drain(..length).collect();
        answer
    }

    fn more(&mut self) -> bool {
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(read) => {
                self.rest.extend_from_slice(&buffer[..read]);
                true
            }
            Err(error) => panic!("nothing more came: {error}"),
        }
    }

    /// True if the router has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.rest.is_empty() && !self.more()
    }
}

/// Waits until something is so.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < until, "it did not come to be: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A request for a completion.
pub fn completion(more: Value) -> Value {
    let mut body = json!({ "model": "m", "prompt": "hello there" });
    merge(&mut body, more);
    body
}
