//! The live connections that an engine's publisher makes to us: one, if all is well.

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use super::publishers::Route;
use super::transport::Incoming;
use super::zmq_transport::live_batch;
use crate::zmtp::{Connection, Event};

/// A connection that takes the place of another one is taken for the same engine's, which has lost the first one without
/// notice. If another comes so soon after, there are two publishers with one topic: the one that was cut off is back.
const TWO: Duration = Duration::from_secs(30);

pub(super) struct Bound {
    route: Route,
    connections: Vec<Connection>,
    /// When a connection last came while there was one.
    doubled: Option<Instant>,
    /// What else is to be said.
    next: VecDeque<Incoming<Vec<u8>>>,
    /// Several are read in turns.
    turn: usize,
}

impl Bound {
    pub(super) fn new(route: Route) -> Self {
        Self { route, connections: Vec::new(), doubled: None, next: VecDeque::new(), turn: 0 }
    }

    /// Drops all connections with all that is on its way; publishers come again.
    pub(super) fn reconnect(&mut self) {
        self.connections.clear();
        self.next.clear();
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Incoming<Vec<u8>>> {
        if let Some(incoming) = self.next.pop_front() {
            return Poll::Ready(incoming);
        }
        while let Poll::Ready(connection) = self.route.poll(cx) {
            if let Some(incoming) = self.accept(connection) {
                return Poll::Ready(incoming);
            }
        }
        for _ in 0..self.connections.len() {
            self.turn = (self.turn + 1) % self.connections.len();
            let Some(connection) = self.connections.get_mut(self.turn) else { break };
            match connection.poll(cx) {
                Poll::Pending | Poll::Ready(Event::Open) => {}
                Poll::Ready(Event::Message(payload)) => {
                    let is_ours = connection.head().back(1) == Some(self.route.topic());
                    let batch = live_batch(connection.head(), payload);
                    return Poll::Ready(if is_ours { batch } else { Incoming::BadFrames });
                }
                Poll::Ready(Event::Ended(why)) => {
                    self.connections.clear();
                    return Poll::Ready(Incoming::Disconnected(why));
                }
            }
        }
        Poll::Pending
    }

    fn accept(&mut self, connection: Connection) -> Option<Incoming<Vec<u8>>> {
        let now = Instant::now();
        let was_alone = self.connections.is_empty();
        let are_two = !was_alone && self.doubled.replace(now).is_some_and(|before| now < before + TWO);
        if was_alone {
            self.connections.push(connection);
            return Some(Incoming::Connected);
        }
        if are_two {
            // Both are read: their batches contradict each other, and so the stream is not trusted.
            self.connections.push(connection);
            return None;
        }
        self.connections = vec![connection];
        self.next.push_back(Incoming::Connected);
        Some(Incoming::Disconnected("the engine has connected again; its old connection was closed".to_owned()))
    }
}
