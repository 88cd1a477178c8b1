//! The connection that an engine is asked by for batches published before.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::address::Address;
use super::topics::ReplayTopics;
use super::transport::TransportEvent;
use crate::config::StreamConfig;
use crate::context::StreamContext;
use kvatlas_stream::zmtp::{Budget, ConnectAttempt, Connection, Event, Kind, Room, Socket};

enum Stage {
    /// There is nothing to ask, or the pause is not over.
    Closed,
    Dialling(ConnectAttempt),
    Up(Box<Connection>),
}

pub(super) struct Replay {
    stage: Stage,
    address: Address,
    topic: String,
    topics: ReplayTopics,
    config: StreamConfig,
    room: Room,
    /// A question not sent yet.
    question: Option<u64>,
    /// Timer until the next attempt to connect.
    timer: Pin<Box<Sleep>>,
    pause: Duration,
}

impl Replay {
    /// `topic`: the stream's, empty if it takes any.
    pub(super) fn new(address: Address, topic: &str, context: &StreamContext) -> Self {
        Self {
            stage: Stage::Closed,
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

    /// Forgets the question, and the connection with what is on its way.
    pub(super) fn cancel(&mut self) {
        self.question = None;
        self.stage = Stage::Closed;
        self.topics = ReplayTopics::default();
        self.timer.as_mut().reset(Instant::now());
    }

    /// `live`: the name of the live connection, and where that was found.
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
                Stage::Closed => {
                    if self.question.is_none() {
                        return Poll::Pending;
                    }
                    ready!(self.timer.as_mut().poll(cx));
                    let found = match live.and_then(|(name, at)| self.address.beside(name, at)) {
                        Some(at) => Ok(at),
                        None => ready!(self.address.poll(cx)),
                    };
                    match found {
                        Ok(at) => self.stage = Stage::Dialling(Socket::dial(at)),
                        Err(error) => return Poll::Ready(self.end(error.to_string())),
                    }
                }
                Stage::Dialling(dialling) => match ready!(dialling.as_mut().poll(cx)) {
                    Ok(socket) => {
                        let budget = Budget::new(&self.room);
                        self.stage = Stage::Up(Box::new(Connection::new(socket, Kind::Dealer, "", budget)));
                    }
                    Err(error) => return Poll::Ready(self.end(error.to_string())),
                },
                Stage::Up(connection) => {
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

    /// A question that was sent is not sent again: its deadline passes.
    fn end(&mut self, why: String) -> TransportEvent<Vec<u8>> {
        self.stage = Stage::Closed;
        self.topics = ReplayTopics::default();
        self.timer.as_mut().reset(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(self.config.reconnect_min, self.config.reconnect_max);
        TransportEvent::Unreachable(why)
    }
}
