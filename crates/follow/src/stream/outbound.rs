//! Connections made by this service to an engine that listens: the live connection, and the one to its replay socket. Each is
//! made anew when it ends, after a pause that doubles.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::address::Address;
use super::topics::{LiveTopics, ReplayTopics};
use super::transport::TransportEvent;
use crate::config::StreamConfig;
use crate::context::StreamContext;
use crate::state::Registration;
use kvatlas_stream::zmtp::{Budget, ConnectAttempt, Connection, Event, Kind, Room, Socket};

enum LiveStage {
    /// The pause is not over, or the name is not looked up yet.
    Pause,
    Connecting(ConnectAttempt),
    Up(Box<Connection>),
}

/// Live connection to an engine that listens.
pub(super) struct OutboundStream {
    stage: LiveStage,
    address: Address,
    /// Last known address of the engine.
    at: Option<String>,
    topic: String,
    topics: LiveTopics,
    config: StreamConfig,
    room: Room,
    timer: Pin<Box<Sleep>>,
    pause: Duration,
}

impl OutboundStream {
    pub(super) fn new(registration: &Registration, context: &StreamContext) -> Self {
        Self {
            stage: LiveStage::Pause,
            address: Address::new(&registration.endpoint),
            at: None,
            topic: registration.topic.clone(),
            topics: LiveTopics::default(),
            config: context.config.clone(),
            room: context.room(),
            timer: Box::pin(sleep_until(Instant::now())),
            pause: context.config.reconnect_min,
        }
    }

    /// The endpoint, and the address found for it.
    pub(super) fn place(&self) -> Option<(&Address, &str)> {
        self.at.as_deref().map(|at| (&self.address, at))
    }

    /// Drops the connection, and makes another.
    pub(super) fn reconnect(&mut self) {
        self.stage = LiveStage::Pause;
        self.topics = LiveTopics::default();
        self.timer.as_mut().reset(Instant::now());
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        if let Some(incoming) = self.topics.next() {
            return Poll::Ready(incoming);
        }
        loop {
            match &mut self.stage {
                LiveStage::Pause => {
                    ready!(self.timer.as_mut().poll(cx));
                    match ready!(self.address.poll(cx)) {
                        Ok(at) => {
                            self.stage = LiveStage::Connecting(Socket::dial(at.clone()));
                            self.at = Some(at);
                        }
                        Err(error) => return Poll::Ready(self.end(error.to_string())),
                    }
                }
                LiveStage::Connecting(connecting) => match ready!(connecting.as_mut().poll(cx)) {
                    Ok(socket) => {
                        let budget = Budget::new(&self.room);
                        self.stage = LiveStage::Up(Box::new(Connection::new(socket, Kind::Sub, &self.topic, budget)));
                    }
                    Err(error) => return Poll::Ready(self.end(error.to_string())),
                },
                LiveStage::Up(connection) => {
                    return Poll::Ready(match ready!(connection.poll(cx)) {
                        Event::Open => {
                            self.pause = self.config.reconnect_min;
                            TransportEvent::Connected
                        }
                        Event::Message(payload) => self.topics.read(&self.topic, connection.head(), payload),
                        Event::Ended(why) => self.end(why),
                    });
                }
            }
        }
    }

    /// The attempt or connection has ended; the next one follows after a pause.
    fn end(&mut self, why: String) -> TransportEvent<Vec<u8>> {
        let was_open = matches!(&self.stage, LiveStage::Up(connection) if connection.is_open());
        self.stage = LiveStage::Pause;
        self.topics = LiveTopics::default();
        self.timer.as_mut().reset(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(self.config.reconnect_min, self.config.reconnect_max);
        if was_open { TransportEvent::Disconnected(why) } else { TransportEvent::Unreachable(why) }
    }
}

enum ReplayStage {
    /// No question is open, or the pause is not over.
    Closed,
    Connecting(ConnectAttempt),
    Up(Box<Connection>),
}

/// Connection to the replay socket of an engine.
pub(super) struct Replay {
    stage: ReplayStage,
    address: Address,
    topic: String,
    topics: ReplayTopics,
    config: StreamConfig,
    room: Room,
    /// Question not sent yet: the first batch asked for.
    question: Option<u64>,
    /// Timer until the next attempt to connect.
    timer: Pin<Box<Sleep>>,
    pause: Duration,
}

impl Replay {
    /// A connection without a question. `topic`: the stream's, empty if it takes any.
    pub(super) fn new(address: Address, topic: &str, context: &StreamContext) -> Self {
        Self {
            stage: ReplayStage::Closed,
            address,
            topic: topic.to_owned(),
            topics: ReplayTopics::default(),
            config: context.config.clone(),
            room: context.room(),
            question: None,
            timer: Box::pin(sleep_until(Instant::now())),
            pause: context.config.reconnect_min,
        }
    }

    pub(super) fn ask(&mut self, from: u64) {
        self.question = Some(from);
    }

    /// Drops the question, and the connection with the answers on their way.
    pub(super) fn cancel(&mut self) {
        self.question = None;
        self.stage = ReplayStage::Closed;
        self.topics = ReplayTopics::default();
        self.timer.as_mut().reset(Instant::now());
    }

    /// Next event. `live`: the endpoint of the live connection, and the address found for it.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        live: Option<(&Address, &str)>,
    ) -> Poll<TransportEvent<Vec<u8>>> {
        if let Some(incoming) = self.topics.next() {
            return Poll::Ready(incoming);
        }
        loop {
            match &mut self.stage {
                ReplayStage::Closed => {
                    if self.question.is_none() {
                        return Poll::Pending;
                    }
                    ready!(self.timer.as_mut().poll(cx));
                    let found = match live.and_then(|(name, at)| self.address.beside(name, at)) {
                        Some(at) => Ok(at),
                        None => ready!(self.address.poll(cx)),
                    };
                    match found {
                        Ok(at) => self.stage = ReplayStage::Connecting(Socket::dial(at)),
                        Err(error) => return Poll::Ready(self.end(error.to_string())),
                    }
                }
                ReplayStage::Connecting(connecting) => match ready!(connecting.as_mut().poll(cx)) {
                    Ok(socket) => {
                        let budget = Budget::new(&self.room);
                        self.stage = ReplayStage::Up(Box::new(Connection::new(socket, Kind::Dealer, "", budget)));
                    }
                    Err(error) => return Poll::Ready(self.end(error.to_string())),
                },
                ReplayStage::Up(connection) => {
                    if connection.is_open()
                        && let Some(from) = self.question.take()
                    {
                        connection.send(&from.to_be_bytes());
                    }
                    match ready!(connection.poll(cx)) {
                        Event::Open => self.pause = self.config.reconnect_min,
                        Event::Message(payload) => {
                            return Poll::Ready(self.topics.read(&self.topic, connection.head(), payload));
                        }
                        Event::Ended(why) => return Poll::Ready(self.end(why)),
                    }
                }
            }
        }
    }

    /// Ends the connection. A question that was sent is not sent again: its deadline passes.
    fn end(&mut self, why: String) -> TransportEvent<Vec<u8>> {
        self.stage = ReplayStage::Closed;
        self.topics = ReplayTopics::default();
        self.timer.as_mut().reset(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(self.config.reconnect_min, self.config.reconnect_max);
        TransportEvent::Unreachable(why)
    }
}
