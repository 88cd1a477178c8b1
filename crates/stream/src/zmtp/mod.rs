//! Implementation of ZMTP 3, the protocol between ZeroMQ's sockets, for the two kinds of sockets needed to follow an
//! engine: a subscriber, and a client that sends replay requests.
//!
//! libzmq is not used, for three reasons: it reads ahead in threads of its own, with buffers that are bounded by a
//! number of messages only; it does not bound the length of a message; and its listening sockets do not distinguish
//! their peers. In this implementation, the task of a stream reads a connection only as fast as it processes the
//! messages. Unread data stays at the engine.
//!
//! `parser` turns bytes into messages, and `connection` has a connection from the handshake to the end. This file has
//! the sockets (TCP, or a path in the file system), and the greeting and handshake in which two sockets exchange their
//! protocol version and kind.

mod connection;
mod parser;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::{TcpStream, UnixStream};

pub use self::connection::{Connection, Event};
pub use self::parser::{Budget, Head, Room};

/// Maximum duration of an attempt to connect to an engine.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Future of an attempt to connect to an engine's address; its value is the connected socket.
pub type ConnectAttempt = Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>>;

/// Connected socket: TCP, or a Unix domain socket.
pub enum Socket {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A connection to a Unix domain socket, which has a path in the file system.
    Path(UnixStream),
}

impl Socket {
    /// Connects to an address in ZeroMQ's form, such as `tcp://10.0.0.1:5557` or `ipc:///path`. The host must be an IP
    /// address, not a name.
    pub fn dial(address: String) -> ConnectAttempt {
        Box::pin(async move {
            let connected = tokio::time::timeout(TIMEOUT, connect(&address)).await;
            connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        })
    }

    /// Wraps a TCP connection that was accepted from a peer.
    pub fn of_peer(peer: TcpStream) -> Self {
        let _ = peer.set_nodelay(true);
        Self::Tcp(peer)
    }

    /// Returns the address of the peer, as text for log messages.
    fn peer(&self) -> String {
        match self {
            Self::Tcp(socket) => socket.peer_addr().map_or_else(|_| "gone".to_owned(), |at| at.to_string()),
            Self::Path(_) => "this machine".to_owned(),
        }
    }

    /// Reads into the spare capacity of `into`, and returns the number of bytes read; 0 if the peer has closed the
    /// connection.
    fn poll_read(&self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        loop {
            let read = match self {
                Self::Tcp(socket) => {
                    ready!(socket.poll_read_ready(cx))?;
                    socket.try_read_buf(into)
                }
                Self::Path(socket) => {
                    ready!(socket.poll_read_ready(cx))?;
                    socket.try_read_buf(into)
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let written = match self {
                Self::Tcp(socket) => {
                    ready!(socket.poll_write_ready(cx))?;
                    socket.try_write(bytes)
                }
                Self::Path(socket) => {
                    ready!(socket.poll_write_ready(cx))?;
                    socket.try_write(bytes)
                }
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

async fn connect(address: &str) -> io::Result<Socket> {
    if let Some(path) = address.strip_prefix("ipc://") {
        // As libzmq has it: no file, but a name of the system's.
        let path = path.strip_prefix('@').map_or_else(|| path.to_owned(), |name| format!("\0{name}"));
        return Ok(Socket::Path(UnixStream::connect(path).await?));
    }
    let address: SocketAddr = address
        .strip_prefix("tcp://")
        .and_then(|address| address.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{address} is not an address")))?;
    let socket = TcpStream::connect(address).await?;
    // The system may connect a socket to itself, where nobody listens, and so keep an engine from listening there.
    if socket.local_addr()? == socket.peer_addr()? {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    }
    Ok(Socket::of_peer(socket))
}

const SIGNATURE: [u8; 10] = [0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F];
/// Length of a ZMTP greeting, in bytes.
const LENGTH: usize = 64;
/// Security mechanism named in the greeting: NULL, which means none.
const MECHANISM: &[u8] = b"NULL";

/// Error message for a connection that failed before its handshake was complete.
const FAILED: &str = "the ZMTP handshake failed";

/// Kind of the local ZeroMQ socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SUB: a subscriber.
    Sub,
    /// DEALER: a client that sends requests.
    Dealer,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
        }
    }

    fn peers(self) -> &'static [&'static str] {
        match self {
            Self::Sub => &["PUB", "XPUB"],
            Self::Dealer => &["ROUTER", "DEALER", "REP"],
        }
    }
}

/// Returns the local greeting: version 3.0, without security (the mechanism NULL).
fn greeting() -> [u8; LENGTH] {
    let mut greeting = [0; LENGTH];
    greeting[..10].copy_from_slice(&SIGNATURE);
    greeting[10] = 3;
    greeting[12..12 + MECHANISM.len()].copy_from_slice(MECHANISM);
    greeting
}

/// Checks that the first bytes received from a peer are a compatible greeting. Returns true if the greeting is
/// complete.
fn check(said: &[u8]) -> Result<bool, String> {
    let is = |at: usize, wanted: u8| said.get(at).is_none_or(|byte| *byte == wanted);
    if !is(0, SIGNATURE[0]) || said.get(9).is_some_and(|byte| byte & 1 == 0) {
        return Err("the socket there is not a ZMQ socket".to_owned());
    }
    if let Some(version) = said.get(10).filter(|version| **version < 3) {
        return Err(format!(
            "the engine uses version {version} of ZMTP; version 3 is needed, which libzmq has from 4.0 on"
        ));
    }
    let Some(mechanism) = said.get(12..32) else { return Ok(false) };
    if said.len() < LENGTH {
        return Ok(false);
    }
    let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
    if name != MECHANISM {
        return Err(format!("the engine asks for {} security, which is not supported", name.escape_ascii()));
    }
    Ok(true)
}

/// Encodes a ZMTP command as a frame.
fn command(name: &str, content: &[u8]) -> Vec<u8> {
    let mut body = vec![name.len() as u8];
    body.extend(name.as_bytes());
    body.extend(content);
    let mut frame = vec![4 | 2];
    frame.extend((body.len() as u64).to_be_bytes());
    frame.extend(body);
    frame
}

/// Appends a frame of a message to `out`. `more` is true if further frames of the message follow.
fn put_frame(out: &mut BytesMut, more: bool, bytes: &[u8]) {
    let more = u8::from(more);
    match u8::try_from(bytes.len()) {
        Ok(size) => out.extend_from_slice(&[more, size]),
        Err(_) => {
            out.extend_from_slice(&[more | 2]);
            out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

/// Encodes the READY command of the ZMTP handshake, which contains the kind of the local socket.
fn ready(kind: Kind) -> Vec<u8> {
    let mut properties = Vec::new();
    for (name, value) in [("Socket-Type", kind.name()), ("Identity", "")] {
        properties.push(name.len() as u8);
        properties.extend(name.as_bytes());
        properties.extend((value.len() as u32).to_be_bytes());
        properties.extend(value.as_bytes());
    }
    command("READY", &properties)
}

/// Splits a ZMTP command into name and content; `None` if it is malformed.
fn named(command: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = command.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// Checks that a peer's READY command names a kind of socket that can be connected to the local kind.
fn check_ready(kind: Kind, command: &[u8]) -> Result<(), String> {
    match named(command) {
        Some((b"READY", properties)) => {
            let peer = socket_type(properties).unwrap_or_default();
            if kind.peers().iter().any(|name| name.as_bytes() == peer) {
                return Ok(());
            }
            Err(format!("it is a {} socket, not {}", peer.escape_ascii(), kind.peers()[0]))
        }
        Some((b"ERROR", reason)) => Err(format!("it refuses: {}", reason.get(1..).unwrap_or_default().escape_ascii())),
        _ => Err(FAILED.to_owned()),
    }
}

fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    loop {
        let (length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*size) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        properties = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_judged_as_soon_as_they_can_be() {
        let ours = greeting();
        for length in 0..LENGTH {
            assert_eq!(check(&ours[..length]), Ok(false), "{length}");
        }
        assert_eq!(check(&ours), Ok(true));
        let with = |at: usize, bytes: &[u8]| {
            let mut greeting = ours.to_vec();
            greeting[at..at + bytes.len()].copy_from_slice(bytes);
            check(&greeting).expect_err("it is none")
        };
        assert!(with(12, b"CURVE").contains("CURVE security"));
        assert!(with(12, b"PLAIN").contains("PLAIN security"));
        assert!(with(10, b"\x02").contains("version 2"));
        assert!(check(b"HTTP/1.1 400").is_err_and(|why| why.contains("not a ZMQ socket")));
        assert!(with(9, b"\0").contains("not a ZMQ socket"));
    }

    #[test]
    fn peers_say_what_they_are() {
        let said = |kind, body: &[u8]| check_ready(kind, body);
        assert_eq!(said(Kind::Sub, b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"), Ok(()));
        assert_eq!(said(Kind::Sub, b"\x05READY\x08Identity\0\0\0\0\x0bsocket-type\0\0\0\x04XPUB"), Ok(()));
        assert_eq!(said(Kind::Dealer, b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"), Ok(()));
        let why = said(Kind::Sub, b"\x05READY\x0bSocket-Type\0\0\0\x03SUB").expect_err("another one");
        assert_eq!(why, "it is a SUB socket, not PUB");
        assert!(said(Kind::Sub, b"\x05ERROR\x04nope").is_err_and(|why| why.contains("nope")));
        for bad in [&b""[..], b"\x05REA", b"\x04PING\0\0", b"\x05READY\x0bSocket-Type\xff\xff\xff\xffPUB", b"\x05READY"]
        {
            assert!(said(Kind::Sub, bad).is_err());
        }
    }

    #[test]
    fn long_frames_have_long_sizes() {
        let frame = |more, bytes: &[u8]| {
            let mut out = BytesMut::new();
            put_frame(&mut out, more, bytes);
            out
        };
        assert_eq!(&frame(true, b"ab")[..], b"\x01\x02ab");
        assert_eq!(frame(false, &[7; 300])[..11], *b"\x02\0\0\0\0\0\0\x01\x2c\x07\x07");
    }
}
