//! Sockets of a stream's task: the trait, which a fake for tests implements too, and the real ones.
//!
//! Both real sockets belong to one engine. They are made anew together, so that a host name with a changed address, or
//! an address that another process has taken, changes for both. If both have the same host name, they have the same
//! address.

use std::task::{Context, Poll};

use super::outbound::{Address, OutboundStream, Replay};
use super::publishers::{InboundStream, Route};
use crate::context::StreamContext;
use crate::state::Registration;

/// Event of a stream's sockets.
#[derive(Debug)]
pub(crate) enum TransportEvent<P> {
    /// The live socket is connected and subscribed.
    Connected,
    /// The live socket has lost its connection, for the given reason.
    Disconnected(String),
    /// Another publisher has connected under the same name, from the given address. It is not read while the first is
    /// connected.
    Rival(String),
    /// All publishers but one have disconnected from the socket.
    Alone,
    /// A socket cannot be connected, for the given reason, and will be tried again.
    Unreachable(String),
    /// A batch of the live connection, with its sequence number.
    Live { seq: u64, payload: P },
    /// A batch in answer to a replay request, with its sequence number.
    Reply { seq: u64, payload: P },
    /// The answer to a replay request is complete.
    ReplyEnd,
    /// A batch that is left out because it has the given topic, which is not the stream's.
    OtherTopic(Box<[u8]>),
    /// Two topics were received by a stream that takes any. Batches of both are read.
    SeveralTopics(Box<[u8]>, Box<[u8]>),
    /// A message whose frames do not form a batch.
    BadFrames,
}

/// Sockets of a stream: a live socket, which reconnects by itself, and a replay socket.
pub(crate) trait Transport: Send {
    /// Encoded bytes of a batch.
    type Payload: AsRef<[u8]> + Send;

    /// Next event of the sockets. After `Disconnected`, no event of the old connection follows.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Self::Payload>>;

    /// Asks the replay socket for all batches from sequence number `from` on.
    fn ask(&mut self, from: u64);

    /// Cancels the replay request: no further answer to it is returned.
    fn cancel(&mut self);

    /// Drops the live connection with the batches still on their way, and reconnects, without a `Disconnected` event.
    fn reconnect(&mut self);
}

/// Live connection to an engine, made by this service or by the engine.
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

/// The real sockets of a stream, which speak ZeroMQ's protocol.
pub(crate) struct ZmqTransport {
    live: LiveConnection,
    replay: Option<Replay>,
    /// True if the replay socket is read before the live one.
    replies_first: bool,
    worker: String,
    rank: u32,
    /// Reason for the lack of a connection, as last logged; `None` if none was.
    told: Option<String>,
}

impl ZmqTransport {
    /// Creates sockets that are not connected yet. `route`: route of the engine's connections, if the engine connects
    /// to this service.
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

    /// Logs why a socket cannot connect, once and not with each attempt. The stream's status does not say why: all
    /// clients may read it, and could probe with it for open ports.
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

    /// Maximum memory, in bytes, that an engine's messages may take in this process, including the system's buffers of
    /// the connection.
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

    /// Number of bytes written, once it has not grown for a second.
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
