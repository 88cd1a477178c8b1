//! Connection to a peer: the handshake, then messages, and heartbeats in between.

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

/// Number of bytes read at once, besides the message that is being read.
const READ: usize = 64 << 10;
/// Longest duration of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence after which a peer is sent a PING.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time without an answer to a PING after which the connection is given up.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time without an answer to a PING after which a connection is given up whose peer is thought to be gone.
const DOUBT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest frame, in bytes; a peer that announces a longer one is disconnected.
const MAX_FRAME: usize = 16 << 20;
/// Maximum number of bytes of PONGs and PINGs that wait for a peer that does not read them.
const MAX_OUTPUT: usize = 4 << 10;

const NO_HANDSHAKE: &str = "no ZMTP handshake: the process there hangs, or its socket is not a ZMQ socket";

/// Event on a connection.
#[derive(Debug)]
pub enum Event {
    /// The handshake is over, and messages may arrive.
    Open,
    /// A message: its last frame; the frames before are in [`Connection::head`].
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

/// Connection to a peer that speaks ZMTP: its messages are read when the caller wants them.
pub struct Connection {
    socket: Socket,
    kind: Kind,
    stage: Stage,
    /// Topic to subscribe to; empty for all topics.
    topic: Box<[u8]>,
    parser: Parser,
    /// Bytes read from the socket; the first `used` are parsed. Without allocated memory while the peer is silent.
    input: Vec<u8>,
    used: usize,
    output: BytesMut,
    /// Last frame of a message that was given back, to be returned once more.
    again: Option<Vec<u8>>,
    /// Time at which bytes of the peer last arrived.
    heard: Instant,
    /// Time at which the last PING was sent.
    asked: Instant,
    /// Time since which the peer is thought to be gone; `None` if it is not.
    doubted: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// Permit that counts this connection among those that may be open; `None` if none is needed.
    place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Begins an unencrypted connection on a socket. `topic`: topic to subscribe to, for a subscriber.
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

    /// Sends a PING now, as the peer is thought to be gone: without an answer soon, the connection is given up.
    pub fn doubt(&mut self) {
        let now = Instant::now();
        if self.is_open() && self.doubted.is_none() {
            self.doubted = Some(now);
            self.asked = now;
            self.output.extend_from_slice(&zmtp::command("PING", &[0, 0]));
            self.timer.as_mut().reset(now + DOUBT_TIMEOUT);
        }
    }

    /// Holds a permit for as long as the connection lasts.
    pub fn keep(&mut self, place: OwnedSemaphorePermit) {
        self.place = Some(place);
    }

    /// Address of the peer, as text for messages.
    pub fn peer(&self) -> String {
        self.socket.peer()
    }

    /// True if the handshake is over.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Frames before the last one of the latest message.
    pub fn head(&self) -> &Head {
        self.parser.head()
    }

    /// Gives back the latest message, so that `poll` returns it once more.
    pub fn give_back(&mut self, body: Vec<u8>) {
        self.again = Some(body);
    }

    /// Sends a message of two frames: an empty one, and `bytes`.
    pub fn send(&mut self, bytes: &[u8]) {
        zmtp::put_frame(&mut self.output, true, b"");
        zmtp::put_frame(&mut self.output, false, bytes);
    }

    /// Returns the next event; `Pending` until there is one.
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

    /// Next event in the bytes read so far; `None` if more bytes are needed.
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

    /// Sends a PING to a silent peer, after all available bytes were read. Fails if no answer has arrived in time.
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
