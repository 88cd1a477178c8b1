//! The live connections that an engine's publisher makes to us: one, if all is well.
//!
//! The first that came is read. Another one that comes meanwhile may be the same engine's, which has lost the first without
//! notice, or somebody else's: nobody can tell by what it says. So it waits, with the newest of what it brings, until the
//! first is gone, which is asked for a sign of life.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use super::publishers::Route;
use super::transport::Incoming;
use super::zmq_transport::live_batch;
use crate::zmtp::{Connection, Event};

/// So many wait at most: the newest.
const RIVALS: usize = 8;
/// Batches, and bytes of them, that are kept of each: the newest. What is missing shows by its numbers.
const BATCHES: usize = 1024;
const BYTES: usize = 4 << 20;

/// A connection that waits for the first to be gone.
struct Rival {
    connection: Connection,
    /// What it has brought, each with its bytes.
    brought: VecDeque<(Incoming<Vec<u8>>, usize)>,
    bytes: usize,
}

impl Rival {
    fn bring(&mut self, incoming: Incoming<Vec<u8>>, bytes: usize) {
        self.bytes += bytes;
        self.brought.push_back((incoming, bytes));
        while self.brought.len() > BATCHES || self.bytes > BYTES {
            let Some((_, bytes)) = self.brought.pop_front() else { return };
            self.bytes -= bytes;
        }
    }
}

pub(super) struct Bound {
    route: Route,
    first: Option<Connection>,
    /// In the order in which they came.
    rivals: VecDeque<Rival>,
    /// What else is to be said.
    next: VecDeque<Incoming<Vec<u8>>>,
}

impl Bound {
    pub(super) fn new(route: Route) -> Self {
        Self { route, first: None, rivals: VecDeque::new(), next: VecDeque::new() }
    }

    /// Drops the connection with all that is on its way; its publisher comes again. Who waits for its place has it.
    pub(super) fn reconnect(&mut self) {
        self.next.clear();
        self.first = None;
        self.succeed();
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Incoming<Vec<u8>>> {
        if let Some(incoming) = self.next.pop_front() {
            return Poll::Ready(incoming);
        }
        if let Some(first) = &mut self.first
            && let Poll::Ready(event) = first.poll(cx)
        {
            match event {
                // It was open when it came.
                Event::Open => {}
                Event::Message(payload) => return Poll::Ready(batch(first, self.route.topic(), payload)),
                Event::Ended(why) => {
                    self.first = None;
                    self.succeed();
                    return Poll::Ready(Incoming::Disconnected(why));
                }
            }
        }
        if let Poll::Ready(connection) = self.route.poll(cx) {
            return Poll::Ready(self.accept(connection));
        }
        let (before, topic) = (self.rivals.len(), self.route.topic());
        self.rivals.retain_mut(|rival| {
            // A few at a time: it waits anyway.
            for _ in 0..BATCHES {
                match rival.connection.poll(cx) {
                    Poll::Pending => return true,
                    Poll::Ready(Event::Open) => {}
                    Poll::Ready(Event::Message(payload)) => {
                        let bytes = payload.len();
                        let incoming = batch(&rival.connection, topic, payload);
                        rival.bring(incoming, bytes);
                    }
                    Poll::Ready(Event::Ended(_)) => return false,
                }
            }
            cx.waker().wake_by_ref();
            true
        });
        if before > 0 && self.rivals.is_empty() { Poll::Ready(Incoming::Alone) } else { Poll::Pending }
    }

    fn accept(&mut self, connection: Connection) -> Incoming<Vec<u8>> {
        let Some(first) = &mut self.first else {
            self.first = Some(connection);
            return Incoming::Connected;
        };
        first.doubt();
        if self.rivals.len() >= RIVALS {
            self.rivals.pop_front();
        }
        let from = connection.peer();
        self.rivals.push_back(Rival { connection, brought: VecDeque::new(), bytes: 0 });
        Incoming::Rival(from)
    }

    /// Gives the place of the first, which is gone, to the one that has waited longest.
    fn succeed(&mut self) {
        let Some(Rival { connection, brought, .. }) = self.rivals.pop_front() else { return };
        self.first = Some(connection);
        self.next.push_back(Incoming::Connected);
        // Those that are left are rivals of this one.
        self.next
            .push_back(self.rivals.front().map_or(Incoming::Alone, |rival| Incoming::Rival(rival.connection.peer())));
        self.next.extend(brought.into_iter().map(|(incoming, _)| incoming));
    }
}

/// What a connection has brought.
fn batch(connection: &Connection, topic: &[u8], payload: Vec<u8>) -> Incoming<Vec<u8>> {
    let is_ours = connection.head().back(1) == Some(topic);
    if is_ours { live_batch(connection.head(), payload) } else { Incoming::BadFrames }
}
