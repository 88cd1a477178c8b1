//! ZMTP connection to a peer (an engine's ZeroMQ socket): the handshake, then messages, with heartbeats in between.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};

use super::Kind;
use super::Socket;
use super::parser::{Budget, Head, Item, Parser};
use crate::zmtp;

/// Number of bytes to read from the socket at once, in addition to the rest of a partly received message.
const READ: usize = 64 << 10;
/// Maximum duration of a ZMTP handshake with a peer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without received bytes after which a PING is sent to the peer.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Maximum wait for an answer to a PING, after which the connection is closed.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum wait for an answer to a PING, after which the connection is closed, if the peer is suspected to be gone.
const DOUBT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a message frame, in bytes. A peer that announces a longer frame is disconnected.
const MAX_FRAME: usize = 16 << 20;
/// Maximum number of bytes of PING and PONG commands that are queued for a peer that does not read them.
const MAX_OUTPUT: usize = 4 << 10;

const NO_HANDSHAKE: &str = "no ZMTP handshake: the process there hangs, or its socket is not a ZMQ socket";

/// Event on a connection, as returned by [`Connection::poll`].
#[derive(Debug)]
pub enum Event {
    /// The ZMTP handshake is complete, and messages may arrive.
    Open,
    /// A message was received. The value is its last frame; the frames before are returned by [`Connection::head`].
    Message(Vec<u8>),
    /// The connection has ended, for the given reason.
    Ended(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Ready,
    Open,
}

/// Connection to a peer that speaks ZMTP, ZeroMQ's protocol. Messages are read from the socket only when the caller
/// asks for them.
pub struct Connection {
    socket: Socket,
    kind: Kind,
    stage: Stage,
    /// Topic to subscribe to; empty to subscribe to all topics.
    topic: Box<[u8]>,
    parser: Parser,
    /// Bytes read from the socket, of which the first `used` have been parsed. Has no allocated memory while the peer
    /// is silent.
    input: Vec<u8>,
    used: usize,
    output: BytesMut,
    /// Last frame of a message that [`give_back`](Self::give_back) returned to the connection; delivered again by the
    /// next poll.
    again: Option<Vec<u8>>,
    /// Time at which bytes from the peer last arrived.
    heard: Instant,
    /// Time at which the last PING was sent.
    asked: Instant,
    /// Time since which the peer is suspected to be gone; `None` if it is not.
    doubted: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// Semaphore permit that limits the number of open connections; `None` if this connection needs none.
    place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Creates an unencrypted connection on a socket, and begins the handshake. `topic` is the topic to subscribe to,
    /// if `kind` is a subscriber.
    pub fn new(socket: Socket, kind: Kind, topic: &str, budget: Budget) -> Self {
        let now = Instant::now();
        Self {
            socket,
            kind,
            output: BytesMut::from(&zmtp::greeting()[..]),
            stage: Stage::Greeting,
            topic: topic.as_bytes().into(),
            parser: Parser::new(budget),
            input: Vec::new(),
            used: 0,
            again: None,
            heard: now,
            asked: now,
            doubted: None,
            timer: Box::pin(sleep_until(now + HANDSHAKE_TIMEOUT)),
            place: None,
        }
    }

    /// Checks whether the peer, which is suspected to be gone, still answers: sends a PING, and closes the connection
    /// if no answer comes within a short time.
    pub fn doubt(&mut self) {
        let now = Instant::now();
        if self.is_open() && self.doubted.is_none() {
            self.doubted = Some(now);
            self.asked = now;
            self.output.extend_from_slice(&zmtp::command("PING", &[0, 0]));
            self.timer.as_mut().reset(now + DOUBT_TIMEOUT);
        }
    }

    /// Stores a semaphore permit, which limits the number of connections, until the connection is dropped.
    pub fn keep(&mut self, place: OwnedSemaphorePermit) {
        self.place = Some(place);
    }

    /// Returns the address of the peer, as text for log messages.
    pub fn peer(&self) -> String {
        self.socket.peer()
    }

    /// True if the ZMTP handshake with the peer is complete.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Returns the frames of the latest message that precede its last frame.
    pub fn head(&self) -> &Head {
        self.parser.head()
    }

    /// Returns the latest message to the connection, so that the next call of [`poll`](Self::poll) delivers it again.
    pub fn give_back(&mut self, body: Vec<u8>) {
        self.again = Some(body);
    }

    /// Queues a message of two frames for sending: an empty frame, and `bytes`.
    pub fn send(&mut self, bytes: &[u8]) {
        zmtp::put_frame(&mut self.output, true, b"");
        zmtp::put_frame(&mut self.output, false, bytes);
    }

    /// Returns the next event on the connection; `Pending` until there is one.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(body) = self.again.take() {
            return Poll::Ready(Event::Message(body));
        }
        match self.poll_event(cx) {
            Ok(Poll::Ready(event)) => Poll::Ready(event),
            Ok(Poll::Pending) => Poll::Pending,
            Err(why) => Poll::Ready(Event::Ended(why)),
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Result<Poll<Event>, String> {
        loop {
            if let Some(event) = self.next()? {
                return Ok(Poll::Ready(event));
            }
            self.flush(cx)?;
            if self.fill(cx)?.is_pending() {
                break;
            }
        }
        self.beat(cx)?;
        Ok(Poll::Pending)
    }

    /// Parses the next event from the bytes read so far; `None` if more bytes are needed.
    fn next(&mut self) -> Result<Option<Event>, String> {
        if self.stage == Stage::Greeting {
            let whole = zmtp::check(&self.input[..self.input.len().min(zmtp::LENGTH)])?;
            if !whole {
                return Ok(None);
            }
            self.used = zmtp::LENGTH;
            self.output.extend_from_slice(&zmtp::ready(self.kind));
            self.stage = Stage::Ready;
        }
        loop {
            let (used, item) = self.parser.parse(&self.input[self.used..])?;
            self.used += used;
            match item {
                None => return Ok(None),
                Some(Item::Message(body)) if self.stage == Stage::Open => return Ok(Some(Event::Message(body))),
                Some(Item::Message(_)) => return Err(zmtp::FAILED.to_owned()),
                Some(Item::Command(command)) if self.stage == Stage::Ready => {
                    zmtp::check_ready(self.kind, &command)?;
                    self.stage = Stage::Open;
                    self.parser.open(MAX_FRAME);
                    if self.kind == Kind::Sub {
                        zmtp::put_frame(&mut self.output, false, &[&[1], &self.topic[..]].concat());
                    }
                    return Ok(Some(Event::Open));
                }
                Some(Item::Command(command)) => self.command(&command)?,
            }
        }
    }

    fn command(&mut self, command: &[u8]) -> Result<(), String> {
        match zmtp::named(command) {
            Some((b"PING", content)) if self.output.len() < MAX_OUTPUT => {
                // Behind a time to live of two bytes, up to 16 that are to come back.
                let context = content.get(2..).unwrap_or_default();
                let pong = zmtp::command("PONG", &context[..context.len().min(16)]);
                self.output.extend_from_slice(&pong);
            }
            Some((b"ERROR", _)) => return Err("the engine closed the connection with an error".to_owned()),
            _ => {}
        }
        Ok(())
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        while !self.output.is_empty() {
            match self.socket.poll_write(cx, &self.output) {
                Poll::Pending => break,
                Poll::Ready(Ok(written)) => self.output.advance(written),
                Poll::Ready(Err(error)) => return Err(self.lost(&error.to_string())),
            }
        }
        if self.output.is_empty() {
            self.output = BytesMut::new();
        }
        Ok(())
    }

    fn fill(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, String> {
        self.input.drain(..std::mem::take(&mut self.used));
        self.input.reserve(READ - self.input.len().min(READ - 1));
        match self.socket.poll_read(cx, &mut self.input) {
            Poll::Pending => {
                // Most connections are silent most of the time.
                if self.input.is_empty() {
                    self.input = Vec::new();
                }
                Ok(Poll::Pending)
            }
            Poll::Ready(Ok(0)) => Err(self.lost("the connection was lost")),
            Poll::Ready(Ok(_)) => {
                self.heard = Instant::now();
                Ok(Poll::Ready(()))
            }
            Poll::Ready(Err(error)) => Err(self.lost(&format!("the connection was lost: {error}"))),
        }
    }

    fn lost(&self, why: &str) -> String {
        if self.is_open() { why.to_owned() } else { NO_HANDSHAKE.to_owned() }
    }

    /// Sends a PING to a peer that has been silent for some time. Fails if the peer has not answered in time. Called
    /// after all available bytes have been read.
    fn beat(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if !self.is_open() {
                return Err(NO_HANDSHAKE.to_owned());
            }
            let now = Instant::now();
            self.doubted = self.doubted.filter(|since| self.heard <= *since);
            let is_over = self.doubted.is_some_and(|since| now >= since + DOUBT_TIMEOUT);
            if is_over || now >= self.heard + HEARTBEAT + HEARTBEAT_TIMEOUT {
                return Err("the connection was lost: the engine did not respond".to_owned());
            }
            if now >= self.heard.max(self.asked) + HEARTBEAT && self.output.len() < MAX_OUTPUT {
                self.asked = now;
                self.output.extend_from_slice(&zmtp::command("PING", &[0, 0]));
                self.flush(cx)?;
            }
            let next = (self.heard.max(self.asked) + HEARTBEAT).max(now + HEARTBEAT / 10);
            let doubted = self.doubted.map(|since| since + DOUBT_TIMEOUT);
            self.timer.as_mut().reset(doubted.map_or(next, |until| until.min(next)));
        }
        Ok(())
    }
}
