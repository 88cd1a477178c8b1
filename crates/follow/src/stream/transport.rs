//! Sockets of a stream's task: a trait, which tests implement with simulated sockets, and the real sockets.
//!
//! The live and the replay socket belong to one engine. They are connected anew together, so that both follow a host
//! name whose address has changed, and neither stays connected to another process that has taken over the address. If
//! both have the same host name, they connect to the same address.

use std::task::{Context, Poll};

use super::outbound::{Address, OutboundStream, Replay};
use super::publishers::{InboundStream, Route};
use crate::context::StreamContext;
use crate::state::Registration;

/// Event of a stream's sockets.
#[derive(Debug)]
pub(crate) enum TransportEvent<P> {
    /// The live socket, over which new batches arrive, is connected and subscribed.
    Connected,
    /// The live socket has lost its connection, for the given reason.
    Disconnected(String),
    /// Another publisher with the same topic has connected from the given address. It is not read while the first one
    /// is connected.
    Rival(String),
    /// Only one publisher with the stream's topic is still connected.
    Alone,
    /// A socket could not connect, for the given reason; another attempt will follow.
    Unreachable(String),
    /// A batch was received over the live connection, with this sequence number.
    Live { seq: u64, payload: P },
    /// A batch was received in answer to a replay request, with this sequence number.
    Reply { seq: u64, payload: P },
    /// The answer to a replay request is complete.
    ReplyEnd,
    /// A batch was skipped because it has the given topic instead of the stream's.
    OtherTopic(Box<[u8]>),
    /// Two topics were received by a stream that accepts any topic. Batches of both are read.
    SeveralTopics(Box<[u8]>, Box<[u8]>),
    /// A message was received whose frames do not form a batch.
    BadFrames,
}

/// Sockets of a stream: a live socket, which reconnects by itself, and a replay socket.
pub(crate) trait Transport: Send {
    /// Encoded bytes of a batch.
    type Payload: AsRef<[u8]> + Send;

    /// Returns the next event of the sockets. After `Disconnected`, no event of the old connection follows.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Self::Payload>>;

    /// Requests all batches with sequence numbers of at least `from` from the replay socket.
    fn ask(&mut self, from: u64);

    /// Cancels the replay request. No further batch of its answer is returned.
    fn cancel(&mut self);

    /// Closes the live connection, discards batches in transit, and connects again, without a `Disconnected` event.
    fn reconnect(&mut self);
}

/// Live connection to an engine, made by the service or by the engine.
enum LiveConnection {
    Outbound(Box<OutboundStream>),
    Inbound(Box<InboundStream>),
}

impl LiveConnection {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        match self {
            Self::Outbound(outbound) => outbound.poll(cx),
            Self::Inbound(inbound) => inbound.poll(cx),
        }
    }
}

/// Real sockets of a stream, which use ZeroMQ's protocol.
pub(crate) struct ZmqTransport {
    live: LiveConnection,
    replay: Option<Replay>,
    /// True if the replay socket is read before the live socket.
    replies_first: bool,
    worker: String,
    rank: u32,
    /// Reason for the lack of a connection that was last logged; `None` if there was none.
    told: Option<String>,
}

impl ZmqTransport {
    /// Creates sockets that are not connected yet. `route` is given if the engine connects to the service; it delivers
    /// the engine's connections.
    pub(super) fn new(registration: &Registration, context: &StreamContext, route: Option<Route>) -> Self {
        let live = match route {
            None => LiveConnection::Outbound(Box::new(OutboundStream::new(
                &registration.endpoint,
                &registration.topic,
                context,
            ))),
            Some(route) => LiveConnection::Inbound(Box::new(InboundStream::new(route))),
        };
        let replay = registration
            .replay_endpoint
            .as_ref()
            .map(|endpoint| Replay::new(Address::new(endpoint), &registration.topic, context));
        Self {
            live,
            replay,
            replies_first: false,
            worker: registration.worker.clone(),
            rank: registration.rank,
            told: None,
        }
    }

    fn poll_live(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        self.live.poll(cx).map(|incoming| match incoming {
            TransportEvent::Unreachable(why) => self.unreachable("", &why),
            TransportEvent::Disconnected(why) => {
                self.cancel();
                self.told = None;
                TransportEvent::Disconnected(why)
            }
            other => other,
        })
    }

    fn poll_replay(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        let Some(replay) = &mut self.replay else { return Poll::Pending };
        let live = match &self.live {
            LiveConnection::Outbound(outbound) => outbound.place(),
            LiveConnection::Inbound(_) => None,
        };
        replay.poll(cx, live).map(|incoming| match incoming {
            TransportEvent::Unreachable(why) => self.unreachable("replay: ", &why),
            other => other,
        })
    }

    /// Logs the reason why a socket cannot connect, once and not for each attempt. The stream's status does not show
    /// the reason, because clients could then use registrations to probe for open ports.
    fn unreachable(&mut self, socket: &str, why: &str) -> TransportEvent<Vec<u8>> {
        if self.told.as_deref() != Some(why) {
            tracing::info!(worker = self.worker, rank = self.rank, socket, why, "cannot connect");
            self.told = Some(why.to_owned());
        }
        TransportEvent::Unreachable(format!("{socket}cannot connect"))
    }
}

impl Transport for ZmqTransport {
    type Payload = Vec<u8>;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        self.replies_first = !self.replies_first;
        if self.replies_first
            && let Poll::Ready(incoming) = self.poll_replay(cx)
        {
            return Poll::Ready(incoming);
        }
        if let Poll::Ready(incoming) = self.poll_live(cx) {
            return Poll::Ready(incoming);
        }
        if self.replies_first { Poll::Pending } else { self.poll_replay(cx) }
    }

    fn ask(&mut self, from: u64) {
        if let Some(replay) = &mut self.replay {
            replay.ask(from);
        }
    }

    fn cancel(&mut self) {
        if let Some(replay) = &mut self.replay {
            replay.cancel();
        }
    }

    fn reconnect(&mut self) {
        self.cancel();
        match &mut self.live {
            LiveConnection::Outbound(outbound) => outbound.reconnect(),
            LiveConnection::Inbound(inbound) => inbound.reconnect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use kvatlas_fake_engine::events::{flood, frame, message};

    use super::{Transport, TransportEvent, ZmqTransport};
    use crate::config::StreamConfig;
    use crate::state::Registration;

    /// Maximum memory, in bytes, that an engine's messages may occupy in the process, including the operating system's
    /// buffers for the connection.
    const BOUND: u64 = 64 << 20;

    fn registration(port: u16) -> Registration {
        Registration {
            worker: "a".to_owned(),
            model: "m".to_owned(),
            routing_group: "g".to_owned(),
            block_size: 16,
            rank: 0,
            endpoint: format!("tcp://127.0.0.1:{port}").parse().expect("an endpoint"),
            replay_endpoint: None,
            topic: String::new(),
            host_chunk: None,
            count_copies: true,
            names: None,
            source: "test".to_owned(),
        }
    }

    fn resident() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").expect("this system has it");
        4096 * text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages")
    }

    async fn connected(port: u16) -> ZmqTransport {
        let mut transport = ZmqTransport::new(&registration(port), &StreamConfig::default().into(), None);
        let incoming = tokio::time::timeout(Duration::from_secs(60), poll_fn(|cx| transport.poll_next(cx))).await;
        assert!(matches!(incoming, Ok(TransportEvent::Connected)), "{:?}", incoming.is_ok());
        transport
    }

    /// Returns the number of bytes written, once it has not increased for a second.
    async fn all_taken(written: &AtomicU64) -> u64 {
        let mut before = u64::MAX;
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = written.swap(written.load(Relaxed), Relaxed);
            if now == before {
                return now;
            }
            before = now;
        }
    }

    #[tokio::test]
    async fn what_is_not_read_stays_at_the_engine() {
        let (engine, written) = flood(message(&[b"", &[0; 8], &vec![0; 15 << 20]]), 2 << 30);
        let mut transport = connected(engine.port()).await;
        let first = poll_fn(|cx| transport.poll_next(cx)).await;
        assert!(matches!(&first, TransportEvent::Live { seq: 0, .. }));
        let taken = all_taken(&written).await;
        assert!(taken < BOUND, "{taken} bytes were taken of a reader that reads nothing");
        for _ in 0..8 {
            assert!(matches!(poll_fn(|cx| transport.poll_next(cx)).await, TransportEvent::Live { seq: 0, .. }));
        }
    }

    #[tokio::test]
    async fn a_message_without_end_takes_no_memory() {
        let (engine, written) = flood(frame(true, &vec![0; 1 << 20]), 1 << 30);
        let mut transport = connected(engine.port()).await;
        let before = resident();
        let mut read = Box::pin(poll_fn(|cx| transport.poll_next(cx)));
        while written.load(Relaxed) < 1 << 30 {
            let mut incoming = std::pin::pin!(tokio::time::timeout(Duration::from_millis(50), &mut read));
            if poll_fn(|cx| incoming.as_mut().poll(cx)).await.is_ok() {
                break;
            }
            let grown = resident().saturating_sub(before);
            assert!(grown < 4 * BOUND, "{grown} bytes for a message without end");
        }
    }
}
