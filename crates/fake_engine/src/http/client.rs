//! A client for tests that need access to every byte.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::{Connection, Message};

/// A client's connection. Anything that takes longer than a minute fails the test.
pub struct Client(Connection);

impl Client {
    /// Connects to a server.
    #[must_use]
    pub fn to(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).expect("it listens"))
    }

    /// A client on an open connection.
    #[must_use]
    pub fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
        Self(Connection::new(stream))
    }

    /// The socket, for bytes that are not requests.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.0.stream
    }

    /// Sends text unchanged.
    pub fn send(&mut self, text: &str) {
        self.0.stream.write_all(text.as_bytes()).expect("sent");
    }

    /// Sends a request with a body, and reads the answer.
    pub fn post(&mut self, path: &str, body: &Value) -> Message {
        self.post_with(path, body, "")
    }

    /// Sends a request with a body and further headers, each with its line end, and reads the answer.
    pub fn post_with(&mut self, path: &str, body: &Value, headers: &str) -> Message {
        self.ask_for(path, body, headers);
        self.answer()
    }

    /// Sends a request with a body, without reading the answer.
    pub fn ask_for(&mut self, path: &str, body: &Value, headers: &str) {
        let body = body.to_string();
        let length = body.len();
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
        ));
    }

    /// Sends a request without a body, and reads the answer.
    pub fn get(&mut self, path: &str) -> Message {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        self.answer()
    }

    /// Reads until `text` has arrived.
    pub fn until(&mut self, text: &str) {
        let found = self.0.find(text.as_bytes()).expect("more");
        assert!(found.is_some(), "the answer ended without {text:?}: {:?}", String::from_utf8_lossy(&self.0.rest));
    }

    /// Reads one answer.
    pub fn answer(&mut self) -> Message {
        let answer = self.0.read().unwrap_or_else(|error| panic!("nothing more came: {error}"));
        answer.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&self.0.rest)))
    }

    /// True if the other side has closed the connection, with nothing more to read.
    pub fn is_closed(&mut self) -> bool {
        self.0.rest.is_empty() && !self.0.more().unwrap_or_else(|error| panic!("nothing more came: {error}"))
    }
}
