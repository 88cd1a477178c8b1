//! The HTTP server of a simulated engine, one thread per connection.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Connection, Message};
use crate::net::Listener;

/// Behaviour of a simulated engine toward requests with a prompt: correct, or a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Answers correctly, and streams the answer on request.
    Well,
    /// Sends the given number of tokens, and then nothing more.
    StallsAfter(usize),
    /// Sends the given number of tokens, and then closes the connection.
    DiesAfter(usize),
    /// Closes the connection at once, without an answer.
    Dies,
    /// Sends nothing and keeps the connection open.
    Hangs,
    /// Sends bytes that are not HTTP.
    Garbage,
    /// Answers with the given status code and the header `Retry-After: 1`.
    Busy(u16),
    /// Answers correctly, and closes the connection after each answer, although no header announced it.
    ClosesIdle,
}

/// Token counts that an engine reports for a prompt.
#[derive(Clone, Copy, Debug)]
pub struct Prefill {
    /// Number of tokens of the prompt.
    pub tokens: usize,
    /// Number of cached tokens of the prompt.
    pub cached: usize,
}

/// The HTTP server of a simulated engine.
pub struct Server {
    listener: Listener,
    state: Arc<ServerState>,
}

impl Server {
    /// Starts a server for the model `model`, which reports four tokens for each prompt, two of them cached.
    #[must_use]
    pub fn start(model: &str) -> Self {
        Self::start_with(model, |_| Prefill { tokens: 4, cached: 2 })
    }

    /// Starts a server for the model `model`. `prefill`: computes the reported token counts from a request's body.
    #[must_use]
    pub fn start_with(model: &str, prefill: impl Fn(&Value) -> Prefill + Send + Sync + 'static) -> Self {
        let state = Arc::new(ServerState {
            model: model.to_owned(),
            prefill: Box::new(prefill),
            manner: Mutex::new(Manner::Well),
            is_closed: AtomicBool::new(false),
            requests: Mutex::default(),
            given_up: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        });
        let own = state.clone();
        let listener = Listener::start(move |stream| own.serve(stream));
        Self { listener, state }
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Changes the server's behaviour toward later requests.
    pub fn set(&self, manner: Manner) {
        *self.state.manner.lock() = manner;
    }

    /// All complete requests with a prompt received so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Message> {
        self.state.requests.lock().clone()
    }

    /// Number of requests with a prompt received so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.state.requests.lock().len()
    }

    /// The latest request with a prompt.
    #[must_use]
    pub fn last(&self) -> Message {
        self.state.requests.lock().last().cloned().expect("a request")
    }

    /// Number of requests whose client closed the connection before the end of the answer.
    #[must_use]
    pub fn given_up(&self) -> usize {
        self.state.given_up.load(SeqCst)
    }

    /// Number of TCP connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.connections.load(SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.is_closed.store(true, SeqCst);
    }
}

/// State of the server shared by all connections.
struct ServerState {
    model: String,
    prefill: Box<dyn Fn(&Value) -> Prefill + Send + Sync>,
    manner: Mutex<Manner>,
    is_closed: AtomicBool,
    requests: Mutex<Vec<Message>>,
    given_up: AtomicUsize,
    connections: AtomicUsize,
}

/// Reason why a connection ends.
enum End {
    /// The server closes the connection.
    Own,
    /// The client closed the connection in the middle of a request.
    GivenUp,
}

impl ServerState {
    fn serve(&self, stream: TcpStream) {
        self.connections.fetch_add(1, SeqCst);
        let mut connection = Connection::new(stream);
        while let Ok(Some(request)) = connection.read() {
            if self.is_closed.load(SeqCst) {
                return;
            }
            match self.answer(&mut connection.stream, request) {
                Ok(()) => {}
                Err(End::Own) => return,
                Err(End::GivenUp) => {
                    self.given_up.fetch_add(1, SeqCst);
                    return;
                }
            }
        }
    }

    fn answer(&self, stream: &mut TcpStream, request: Message) -> Result<(), End> {
        let line = &request.line;
        if line.starts_with("GET /health") {
            return send(stream, "200 OK", "", b"");
        }
        if line.starts_with("GET /v1/models") {
            let model = json!({ "id": self.model, "object": "model", "max_model_len": 4096 });
            return send_json(stream, "200 OK", "", &json!({ "object": "list", "data": [model] }));
        }
        if line.starts_with("GET ") {
            return send_json(stream, "404 Not Found", "", &json!({}));
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        self.requests.lock().push(request);
        let manner = *self.manner.lock();
        match manner {
            Manner::Dies => return Err(End::Own),
            Manner::Hangs => return Err(if is_gone(stream) { End::GivenUp } else { End::Own }),
            Manner::Garbage => {
                let _ = stream.write_all(b"\x00\x01 no HTTP at all\r\n\r\n");
                return Err(End::Own);
            }
            Manner::Busy(status) => {
                let busy = json!({ "error": "busy" });
                return send_json(stream, &format!("{status} Busy"), "retry-after: 1\r\n", &busy);
            }
            _ => {}
        }
        let prefill = (self.prefill)(&body);
        if body["stream"] == true {
            send_events(stream, &body, prefill, manner)?;
        } else {
            let remote = body["kv_transfer_params"]["do_remote_decode"] == true;
            let parameters = remote.then(|| json!({ "remote_block_ids": [1], "do_remote_prefill": true }));
            let answer = json!({
                "kv_transfer_params": parameters,
                "id": "x", "model": body["model"], "choices": [{ "text": "hello", "finish_reason": "stop" }],
                "usage": usage(prefill, 1),
            });
            send_json(stream, "200 OK", "x-engine: yes\r\n", &answer)?;
        }
        if manner == Manner::ClosesIdle { Err(End::Own) } else { Ok(()) }
    }
}

fn usage(prefill: Prefill, completion_tokens: usize) -> Value {
    json!({
        "prompt_tokens": prefill.tokens, "completion_tokens": completion_tokens,
        "prompt_tokens_details": { "cached_tokens": prefill.cached },
    })
}

fn send_json(stream: &mut TcpStream, status: &str, more: &str, body: &Value) -> Result<(), End> {
    send(stream, status, &format!("content-type: application/json\r\n{more}"), body.to_string().as_bytes())
}

fn send(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> Result<(), End> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).map_err(|_| End::Own)
}

/// Sends a streamed answer with the given behaviour, correct or faulty.
fn send_events(stream: &mut TcpStream, body: &Value, prefill: Prefill, manner: Manner) -> Result<(), End> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).map_err(|_| End::GivenUp)?;
    let tokens = body["max_tokens"].as_u64().unwrap_or(3) as usize;
    let pause = Duration::from_millis(body["pause_ms"].as_u64().unwrap_or(0));
    for token in 0..tokens {
        if manner == Manner::DiesAfter(token) {
            // In the middle of an event.
            send_chunk(stream, "data: {\"choices\":[{\"de")?;
            return Err(End::Own);
        }
        if manner == Manner::StallsAfter(token) {
            return if is_gone(stream) { Err(End::GivenUp) } else { Ok(()) };
        }
        let event = json!({ "choices": [{ "delta": { "content": format!("{token} ") }, "finish_reason": null }] });
        send_chunk(stream, &format!("data: {event}\n\n"))?;
        wait(stream, pause)?;
    }
    let usage = json!({ "choices": [], "usage": usage(prefill, tokens) });
    send_chunk(stream, &format!("data: {usage}\n\ndata: [DONE]\n\n"))?;
    stream.write_all(b"0\r\n\r\n").map_err(|_| End::GivenUp)
}

fn send_chunk(stream: &mut TcpStream, text: &str) -> Result<(), End> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).map_err(|_| End::GivenUp)
}

/// Waits until the client closes the connection (returns true) or sends something.
fn is_gone(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0]).map_or(true, |read| read == 0)
}

/// Waits for the duration `pause`; an error if the client closes the connection meanwhile.
fn wait(stream: &mut TcpStream, pause: Duration) -> Result<(), End> {
    if pause.is_zero() {
        return Ok(());
    }
    stream.set_read_timeout(Some(pause)).expect("an option");
    let is_gone = match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    };
    stream.set_read_timeout(None).expect("an option");
    if is_gone { Err(End::GivenUp) } else { Ok(()) }
}
