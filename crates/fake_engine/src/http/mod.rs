//! The HTTP server of a simulated engine, with faults on demand, and an HTTP client for tests of programs in front of
//! engines. The client gives access to every byte. Both read with the same [`Connection`].

mod server;

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

pub use self::server::{Manner, Prefill, Server};

/// An HTTP request or answer.
#[derive(Clone, Debug)]
pub struct Message {
    /// The request line or status line.
    pub line: String,
    /// Names and values of headers, in order.
    pub headers: Vec<(String, String)>,
    /// The body without chunk headers.
    pub body: Vec<u8>,
    /// True if the body was received completely.
    pub whole: bool,
}

impl Message {
    /// HTTP status code of an answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
    }

    /// Value of a header; `None` if missing.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(its, _)| its.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON: {:?}", self.text()))
    }

    fn length(&self) -> Option<usize> {
        self.header("content-length").map(|length| length.parse().expect("a length"))
    }

    /// True for an answer whose body ends where the connection is closed.
    fn ends_with_connection(&self) -> bool {
        self.line.starts_with("HTTP/") && !matches!(self.status(), 204 | 304)
    }
}

/// A TCP connection with the bytes received and not yet parsed.
pub struct Connection {
    /// The TCP socket.
    pub stream: TcpStream,
    /// Received bytes that are not parsed yet.
    pub(super) rest: Vec<u8>,
}

impl Connection {
    /// Wraps a TCP connection from which nothing was read.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("an option");
        Self { stream, rest: Vec::new() }
    }

    /// Reads one HTTP message; `None` if the connection ends before the end of the headers.
    ///
    /// # Errors
    ///
    /// If the connection breaks, or nothing arrives in time.
    pub fn read(&mut self) -> io::Result<Option<Message>> {
        let Some(end) = self.find(b"\r\n\r\n")? else { return Ok(None) };
        let head = String::from_utf8_lossy(&self.take(end)).into_owned();
        self.take(4);
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        let mut message = Message { line, headers, body: Vec::new(), whole: true };
        if message.header("transfer-encoding").is_some() {
            message.whole = self.read_chunks(&mut message.body)?;
        } else if let Some(length) = message.length() {
            message.whole = self.has(length)?;
            message.body = self.take(length);
        } else if message.ends_with_connection() {
            while self.more()? {}
            message.body = std::mem::take(&mut self.rest);
        }
        Ok(Some(message))
    }

    /// Reads a chunked body. False if the connection ends before the last chunk.
    fn read_chunks(&mut self, body: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let Some(at) = self.find(b"\r\n")? else { return Ok(false) };
            let size = usize::from_str_radix(&String::from_utf8_lossy(&self.rest[..at]), 16).expect("a size");
            if !self.has(at + 2 + size + 2)? {
                return Ok(false);
            }
            body.extend_from_slice(&self.take(at + 2 + size + 2)[at + 2..at + 2 + size]);
            if size == 0 {
                return Ok(true);
            }
        }
    }

    /// Reads until the byte sequence `bytes` has arrived. Returns its position; `None` if the connection ends before.
    pub(super) fn find(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let mut seen = 0;
        loop {
            if let Some(at) = self.rest[seen..].windows(bytes.len()).position(|window| window == bytes) {
                return Ok(Some(seen + at));
            }
            seen = self.rest.len().saturating_sub(bytes.len() - 1);
            if !self.more()? {
                return Ok(None);
            }
        }
    }

    /// Reads until `bytes` bytes have arrived; false if the connection ends before.
    fn has(&mut self, bytes: usize) -> io::Result<bool> {
        while self.rest.len() < bytes {
            if !self.more()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes and returns the next `bytes` bytes, or fewer if not all have arrived.
    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let bytes = bytes.min(self.rest.len());
        self.rest.drain(..bytes).collect()
    }

    /// Reads more bytes; false if the connection has ended.
    pub(super) fn more(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 65536];
        let read = self.stream.read(&mut buffer)?;
        self.rest.extend_from_slice(&buffer[..read]);
        Ok(read > 0)
    }
}

/// An HTTP client's connection. Waiting longer than a minute fails the test.
pub struct Client(Connection);

impl Client {
    /// Connects to a server.
    #[must_use]
    pub fn to(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).expect("it listens"))
    }

    /// Creates a client on an open TCP connection.
    #[must_use]
    pub fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
        Self(Connection::new(stream))
    }

    /// The TCP socket, for sending bytes that are not HTTP.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.0.stream
    }

    /// Sends text as it is, without HTTP headers.
    pub fn send(&mut self, text: &str) {
        self.0.stream.write_all(text.as_bytes()).expect("sent");
    }

    /// Sends a POST request with a JSON body, and reads the answer.
    pub fn post(&mut self, path: &str, body: &Value) -> Message {
        self.post_with(path, body, "")
    }

    /// Sends a POST request with a JSON body and further headers, each with its line end, and reads the answer.
    pub fn post_with(&mut self, path: &str, body: &Value, headers: &str) -> Message {
        self.ask_for(path, body, headers);
        self.answer()
    }

    /// Sends a POST request with a JSON body and further headers, without reading the answer.
    pub fn ask_for(&mut self, path: &str, body: &Value, headers: &str) {
        let body = body.to_string();
        let length = body.len();
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
        ));
    }

    /// Sends a GET request, and reads the answer.
    pub fn get(&mut self, path: &str) -> Message {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        self.answer()
    }

    /// Reads until `text` has arrived.
    pub fn until(&mut self, text: &str) {
        let found = self.0.find(text.as_bytes()).expect("more");
        assert!(found.is_some(), "the answer ended without {text:?}: {:?}", String::from_utf8_lossy(&self.0.rest));
    }

    /// Reads one HTTP answer.
    pub fn answer(&mut self) -> Message {
        let answer = self.0.read().unwrap_or_else(|error| panic!("nothing more came: {error}"));
        answer.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&self.0.rest)))
    }

    /// True if the server has closed the connection, with no more bytes to read.
    pub fn is_closed(&mut self) -> bool {
        self.0.rest.is_empty() && !self.0.more().unwrap_or_else(|error| panic!("nothing more came: {error}"))
    }
}
