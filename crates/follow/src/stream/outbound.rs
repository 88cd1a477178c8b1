//! The live connection to an engine that listens. What comes by it is of this one connection, without doubt: it is made
//! anew when it ends, after a pause that doubles.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::address::Address;
use super::topics::LiveTopics;
use super::transport::TransportEvent;
use crate::config::StreamConfig;
use crate::context::StreamContext;
use crate::state::Registration;
use kvatlas_stream::zmtp::{Budget, ConnectAttempt, Connection, Event, Kind, Room, Socket};

enum Stage {
    /// Waits until the pause is over, and the name looked up.
    Pause,
    Dialling(ConnectAttempt),
    Up(Box<Connection>),
}

pub(super) struct OutboundStream {
    stage: Stage,
    address: Address,
    /// Address at which the engine is, or was last.
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
            stage: Stage::Pause,
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

    /// The name connected to, and where it was found.
    pub(super) fn place(&self) -> Option<(&Address, &str)> {
        self.at.as_deref().map(|at| (&self.address, at))
    }

    /// Drops the connection with all that is on its way, and makes another.
    pub(super) fn reconnect(&mut self) {
        self.stage = Stage::Pause;
        self.topics = LiveTopics::default();
        self.timer.as_mut().reset(Instant::now());
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        if let Some(incoming) = self.topics.next() {
            return Poll::Ready(incoming);
        }
        loop {
            match &mut self.stage {
                Stage::Pause => {
                    ready!(self.timer.as_mut().poll(cx));
                    match ready!(self.address.poll(cx)) {
                        Ok(at) => {
                            self.stage = Stage::Dialling(Socket::dial(at.clone()));
                            self.at = Some(at);
                        }
                        Err(error) => return Poll::Ready(self.end(error.to_string())),
                    }
                }
                Stage::Dialling(dialling) => match ready!(dialling.as_mut().poll(cx)) {
                    Ok(socket) => {
                        let budget = Budget::new(&self.room);
                        self.stage = Stage::Up(Box::new(Connection::new(socket, Kind::Sub, &self.topic, budget)));
                    }
                    Err(error) => return Poll::Ready(self.end(error.to_string())),
                },
                Stage::Up(connection) => {
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
        let was_open = matches!(&self.stage, Stage::Up(connection) if connection.is_open());
        self.stage = Stage::Pause;
        self.topics = LiveTopics::default();
        self.timer.as_mut().reset(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(self.config.reconnect_min, self.config.reconnect_max);
        if was_open { TransportEvent::Disconnected(why) } else { TransportEvent::Unreachable(why) }
    }
}
