//! The live connection to an engine that listens. What comes by it is of this one connection, without doubt: it is made
//! anew when it ends, after a pause that doubles.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::address::Address;
use super::transport::Incoming;
use super::zmq_transport::live_batch;
use crate::config::StreamConfig;
use crate::state::Registration;
use crate::zmtp::{Budget, Connection, Dialling, Event, Kind, Socket};

enum Stage {
    /// Until the pause is over, and the name looked up.
    Pause,
    Dialling(Dialling),
    Up(Box<Connection>),
}

pub(super) struct Dialled {
    stage: Stage,
    address: Address,
    /// Where it is, or was last.
    at: Option<String>,
    topic: String,
    config: StreamConfig,
    timer: Pin<Box<Sleep>>,
    pause: Duration,
}

impl Dialled {
    pub(super) fn new(registration: &Registration, config: &StreamConfig) -> Self {
        Self {
            stage: Stage::Pause,
            address: Address::new(&registration.endpoint),
            at: None,
            topic: registration.topic.clone(),
            config: config.clone(),
            timer: Box::pin(sleep_until(Instant::now())),
            pause: config.reconnect_min,
        }
    }

    /// The name connected to, and where it was found.
    pub(super) fn place(&self) -> Option<(&Address, &str)> {
        self.at.as_deref().map(|at| (&self.address, at))
    }

    /// Drops the connection with all that is on its way, and makes another.
    pub(super) fn reconnect(&mut self) {
        self.stage = Stage::Pause;
        self.timer.as_mut().reset(Instant::now());
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Incoming<Vec<u8>>> {
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
                        let budget = Budget::new(&self.config);
                        self.stage = Stage::Up(Box::new(Connection::new(socket, Kind::Sub, &self.topic, budget)));
                    }
                    Err(error) => return Poll::Ready(self.end(error.to_string())),
                },
                Stage::Up(connection) => {
                    return Poll::Ready(match ready!(connection.poll(cx)) {
                        Event::Open => {
                            self.pause = self.config.reconnect_min;
                            Incoming::Connected
                        }
                        Event::Message(payload) => live_batch(connection.head(), payload),
                        Event::Ended(why) => self.end(why),
                    });
                }
            }
        }
    }

    /// The attempt or connection has ended; the next one follows after a pause.
    fn end(&mut self, why: String) -> Incoming<Vec<u8>> {
        let was_open = matches!(&self.stage, Stage::Up(connection) if connection.is_open());
        self.stage = Stage::Pause;
        self.timer.as_mut().reset(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(self.config.reconnect_min, self.config.reconnect_max);
        if was_open { Incoming::Disconnected(why) } else { Incoming::Unreachable(why) }
    }
}
