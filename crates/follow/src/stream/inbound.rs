//! The live connections that an engine's publisher makes to us: one, if all is well.
//!
//! The first that came is read. Another one that comes meanwhile may be the same engine's, which has lost the first without
//! notice, or somebody else's: nobody can tell by what it says. So it waits, with the newest of what it brings, until the
//! first is gone, which is asked for a sign of life.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use super::frames::live_batch;
use super::publishers::Route;
use super::transport::TransportEvent;
use kvatlas_stream::zmtp::{Connection, Event};

/// Number of connections that wait at most: the newest.
const RIVALS: usize = 8;
/// Batches, and bytes of them, that are kept of each: the newest. What is missing shows by its numbers.
const BATCHES: usize = 1024;
const BYTES: usize = 4 << 20;

/// A connection that waits for the first to be gone.
struct Rival {
    connection: Connection,
    /// Events that the connection has brought, each with its bytes.
    brought: VecDeque<(TransportEvent<Vec<u8>>, usize)>,
    bytes: usize,
}

impl Rival {
    fn bring(&mut self, incoming: TransportEvent<Vec<u8>>, bytes: usize) {
        self.bytes += bytes;
        self.brought.push_back((incoming, bytes));
        while self.brought.len() > BATCHES || self.bytes > BYTES {
            let Some((_, bytes)) = self.brought.pop_front() else { return };
            self.bytes -= bytes;
        }
    }
}

pub(super) struct InboundStream {
    route: Route,
    first: Option<Connection>,
    /// Connections that wait, in the order in which they came.
    rivals: VecDeque<Rival>,
    /// Events that are still to be told.
    next: VecDeque<TransportEvent<Vec<u8>>>,
}

impl InboundStream {
    pub(super) fn new(route: Route) -> Self {
        Self { route, first: None, rivals: VecDeque::new(), next: VecDeque::new() }
    }

    /// Drops the connection with all that is on its way; its publisher comes again. Who waits for its place has it.
    pub(super) fn reconnect(&mut self) {
        self.next.clear();
        self.first = None;
        self.succeed();
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
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
                    return Poll::Ready(TransportEvent::Disconnected(why));
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
        if before > 0 && self.rivals.is_empty() { Poll::Ready(TransportEvent::Alone) } else { Poll::Pending }
    }

    fn accept(&mut self, connection: Connection) -> TransportEvent<Vec<u8>> {
        let Some(first) = &mut self.first else {
            self.first = Some(connection);
            return TransportEvent::Connected;
        };
        first.doubt();
        if self.rivals.len() >= RIVALS {
            self.rivals.pop_front();
        }
        let from = connection.peer();
        self.rivals.push_back(Rival { connection, brought: VecDeque::new(), bytes: 0 });
        TransportEvent::Rival(from)
    }

    /// Gives the place of the first, which is gone, to the one that has waited longest.
    fn succeed(&mut self) {
        let Some(Rival { connection, brought, .. }) = self.rivals.pop_front() else { return };
        self.first = Some(connection);
        self.next.push_back(TransportEvent::Connected);
        // Those that are left are rivals of this one.
        self.next.push_back(
            self.rivals.front().map_or(TransportEvent::Alone, |rival| TransportEvent::Rival(rival.connection.peer())),
        );
        self.next.extend(brought.into_iter().map(|(incoming, _)| incoming));
    }
}

/// Returns what a connection has brought: a batch, if its topic is the stream's.
fn batch(connection: &Connection, topic: &[u8], payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
    match (live_batch(connection.head(), payload), connection.head().back(1)) {
        (TransportEvent::Live { .. }, Some(its)) if its != topic => TransportEvent::OtherTopic(its.into()),
        (event, _) => event,
    }
}
