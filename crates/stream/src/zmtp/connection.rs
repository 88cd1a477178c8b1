//! One connection: the handshake, then messages, and signs of life in between.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};

use super::greeting::{self, Answer, Kind, Security};
use super::parser::{Budget, Head, Item, Parser};
use super::socket::Socket;

/// Bytes read at once. What is here is on top of the message that is being read.
const READ: usize = 64 << 10;
/// Time that a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence after which a peer is asked for a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time without a sign of life, once asked for, after which the connection is given up.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time without a sign of life after which a connection is given up whose peer is thought to be gone.
const DOUBT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a frame at most; a peer that announces more is disconnected.
const MAX_FRAME: usize = 16 << 20;
/// Bytes of a frame at most, of a peer that only asks.
const MAX_QUESTION: usize = 16 << 10;
/// Bytes of answers, at most, that wait for a peer that does not read them.
const MAX_OUTPUT: usize = 4 << 10;

const NO_HANDSHAKE: &str = "no ZMTP handshake: the process there hangs, or its socket is not a ZMQ socket";

/// Event on a connection.
#[derive(Debug)]
pub enum Event {
    /// Messages may come.
    Open,
    /// The last frame of a message; the others are in [`Connection::head`].
    Message(Vec<u8>),
    /// The connection is over; why.
    Ended(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Ready,
    Open,
}

/// A connection to a peer that speaks ZMTP: its messages are read when they are asked for.
pub struct Connection {
    socket: Socket,
    kind: Kind,
    security: Security,
    stage: Stage,
    /// Commands of the handshake that came.
    commands: u32,
    /// Topic that a subscriber subscribes to.
    topic: Box<[u8]>,
    parser: Parser,
    /// Bytes read, of which the first `used` are parsed. Without room of its own while nothing comes.
    input: Vec<u8>,
    used: usize,
    output: BytesMut,
    /// Bytes that the peer has taken.
    written: u64,
    /// A message that was given back.
    again: Option<Vec<u8>>,
    /// Time at which something came last.
    heard: Instant,
    /// Time at which a sign of life was last asked for.
    asked: Instant,
    /// Time since which a sign of life is needed soon.
    doubted: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// Permit of the connection: its place among those that may be open.
    place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Begins a connection without encryption on a socket. `topic`: what a subscriber subscribes to.
    pub fn new(socket: Socket, kind: Kind, topic: &str, budget: Budget) -> Self {
        Self::secured(socket, kind, topic, budget, Security::Open)
    }

    /// Begins a connection with the given security on a socket. `topic`: what a subscriber subscribes to.
    pub fn secured(socket: Socket, kind: Kind, topic: &str, budget: Budget, security: Security) -> Self {
        let now = Instant::now();
        Self {
            socket,
            kind,
            output: BytesMut::from(&security.greeting()[..]),
            security,
            stage: Stage::Greeting,
            commands: 0,
            topic: topic.as_bytes().into(),
            parser: Parser::new(budget),
            input: Vec::new(),
            used: 0,
            written: 0,
            again: None,
            heard: now,
            asked: now,
            doubted: None,
            timer: Box::pin(sleep_until(now + HANDSHAKE_TIMEOUT)),
            place: None,
        }
    }

    /// Asks for a sign of life now: without one soon, the connection is given up.
    pub fn doubt(&mut self) {
        let now = Instant::now();
        if self.is_open() && self.doubted.is_none() {
            self.doubted = Some(now);
            self.asked = now;
            self.output.extend_from_slice(&greeting::command("PING", &[0, 0]));
            self.timer.as_mut().reset(now + DOUBT_TIMEOUT);
        }
    }

    /// Gives a place back when it is over.
    pub fn keep(&mut self, place: OwnedSemaphorePermit) {
        self.place = Some(place);
    }

    /// Address of the peer, as text.
    pub fn peer(&self) -> String {
        self.socket.peer()
    }

    /// True if the handshake is over.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// The frames before the last of the message that came last.
    pub fn head(&self) -> &Head {
        self.parser.head()
    }

    /// Keeps the message that came last, so that it comes again.
    pub fn give_back(&mut self, body: Vec<u8>) {
        self.again = Some(body);
    }

    /// Sends a message of an empty frame and another one.
    pub fn send(&mut self, bytes: &[u8]) {
        self.send_frames(&[b""], bytes);
    }

    /// Sends a message of several frames. Nothing bounds what waits but who calls this: see `waiting`.
    pub fn send_frames(&mut self, head: &[&[u8]], last: &[u8]) {
        for frame in head {
            greeting::put_frame(&mut self.output, true, frame);
        }
        greeting::put_frame(&mut self.output, false, last);
    }

    /// Bytes that the peer has not taken yet.
    pub fn waiting(&self) -> usize {
        self.output.len()
    }

    /// Bytes that the peer has taken.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the next event; `Pending` until there is one.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(body) = self.again.take() {
            return Poll::Ready(Event::Message(body));
        }
        match self.poll_event(cx) {
            Ok(Poll::Ready(event)) => Poll::Ready(event),
            Ok(Poll::Pending) => Poll::Pending,
            Err(why) => {
                if !self.is_open() && matches!(self.security, Security::Asks(_)) {
                    // For whoever has set up the peer; what cannot be sent at once is not.
                    self.output.extend_from_slice(&greeting::error(&why));
                    let _ = self.flush(cx);
                }
                Poll::Ready(Event::Ended(why))
            }
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

    /// Returns what the bytes read so far bring.
    fn next(&mut self) -> Result<Option<Event>, String> {
        if self.stage == Stage::Greeting {
            let whole = greeting::check(&self.input[..self.input.len().min(greeting::LENGTH)], &self.security)?;
            if !whole {
                return Ok(None);
            }
            self.used = greeting::LENGTH;
            self.output.extend_from_slice(&self.security.first(self.kind));
            self.stage = Stage::Ready;
        }
        loop {
            let (used, item) = self.parser.parse(&self.input[self.used..])?;
            self.used += used;
            match item {
                None => return Ok(None),
                Some(Item::Message(body)) if self.stage == Stage::Open => return Ok(Some(Event::Message(body))),
                Some(Item::Message(_)) => return Err("the ZMTP handshake failed".to_owned()),
                Some(Item::Command(command)) if self.stage == Stage::Ready => {
                    let Answer { says, opens } = self.security.answer(self.kind, self.commands, &command)?;
                    self.commands += 1;
                    self.output.extend_from_slice(&says);
                    if !opens {
                        continue;
                    }
                    self.stage = Stage::Open;
                    self.parser.open(if self.kind == Kind::Router { MAX_QUESTION } else { MAX_FRAME });
                    if self.kind == Kind::Sub {
                        greeting::put_frame(&mut self.output, false, &[&[1], &self.topic[..]].concat());
                    }
                    return Ok(Some(Event::Open));
                }
                Some(Item::Command(command)) => self.command(&command)?,
            }
        }
    }

    fn command(&mut self, command: &[u8]) -> Result<(), String> {
        match greeting::named(command) {
            Some((b"PING", content)) if self.output.len() < MAX_OUTPUT => {
                // Behind a time to live of two bytes, up to 16 that are to come back.
                let context = content.get(2..).unwrap_or_default();
                let pong = greeting::command("PONG", &context[..context.len().min(16)]);
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
                Poll::Ready(Ok(written)) => {
                    self.output.advance(written);
                    self.written += written as u64;
                }
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

    /// Asks a silent peer for a sign of life, after all has been read that was there. Fails if none has come in time.
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
                self.output.extend_from_slice(&greeting::command("PING", &[0, 0]));
                self.flush(cx)?;
            }
            let next = (self.heard.max(self.asked) + HEARTBEAT).max(now + HEARTBEAT / 10);
            let doubted = self.doubted.map(|since| since + DOUBT_TIMEOUT);
            self.timer.as_mut().reset(doubted.map_or(next, |until| until.min(next)));
        }
        Ok(())
    }
}
