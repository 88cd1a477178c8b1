//! Live connections made by an engine's publisher to this service; normally one.
//!
//! The first connection is read. A second one may be the same engine's, which has lost the first unnoticed, or another
//! publisher's; its messages do not show which. So it waits, with its newest batches, until the first is gone, which is sent
//! a PING.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use super::publishers::Route;
use super::topics::live_batch;
use super::transport::TransportEvent;
use kvatlas_stream::zmtp::{Connection, Event};

/// Most connections that wait; the newest are kept.
const RIVALS: usize = 8;
/// Most batches, and most bytes, kept of each waiting connection; the newest are kept. The numbers show which are missing.
const BATCHES: usize = 1024;
const BYTES: usize = 4 << 20;

/// A connection that waits for the first to be gone.
struct Rival {
    connection: Connection,
    /// Events of the connection so far, each with its bytes.
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
    /// Events to be returned next.
    next: VecDeque<TransportEvent<Vec<u8>>>,
}

impl InboundStream {
    pub(super) fn new(route: Route) -> Self {
        Self { route, first: None, rivals: VecDeque::new(), next: VecDeque::new() }
    }

    /// Drops the first connection, whose publisher connects again; a waiting one takes its place.
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
            // A few at a time, as the connection waits anyway.
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

    /// Puts the connection that has waited longest in the place of the first, which is gone.
    fn succeed(&mut self) {
        let Some(Rival { connection, brought, .. }) = self.rivals.pop_front() else { return };
        self.first = Some(connection);
        self.next.push_back(TransportEvent::Connected);
        // The others are rivals of this one.
        self.next.push_back(
            self.rivals.front().map_or(TransportEvent::Alone, |rival| TransportEvent::Rival(rival.connection.peer())),
        );
        self.next.extend(brought.into_iter().map(|(incoming, _)| incoming));
    }
}

/// Event of a message: a batch, if its topic is the stream's.
fn batch(connection: &Connection, topic: &[u8], payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
    match (live_batch(connection.head(), payload), connection.head().back(1)) {
        (TransportEvent::Live { .. }, Some(its)) if its != topic => TransportEvent::OtherTopic(its.into()),
        (event, _) => event,
    }
}
