//! The sockets of a stream.
//!
//! Both are of one engine: they are made anew together, so that a name that has come to mean another host, or an address
//! that another process has taken, does so for both. If both have the same name, they have the same address.
//!
//! `dialled` has the live connection that we make, `bound` those that engines make, `replay` the one that is asked.

use std::task::{Context, Poll};

use super::address::Address;
use super::inbound::InboundStream;
use super::outbound::OutboundStream;
use super::publishers::Route;
use super::replay::Replay;
use super::transport::{Transport, TransportEvent};
use crate::context::StreamContext;
use crate::state::Registration;

/// Connection that live batches come by, made by this side or by the engine.
enum LiveConnection {
    Dialled(Box<OutboundStream>),
    Bound(Box<InboundStream>),
}

impl LiveConnection {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        match self {
            Self::Dialled(dialled) => dialled.poll(cx),
            Self::Bound(bound) => bound.poll(cx),
        }
    }
}

/// The sockets of a stream.
pub(crate) struct ZmqTransport {
    live: LiveConnection,
    replay: Option<Replay>,
    /// True if the replay socket is read first.
    replies_first: bool,
    worker: String,
    rank: u32,
    /// Reason why there was no connection, as the log was last told.
    told: Option<String>,
}

impl ZmqTransport {
    /// `route`: where the engine's connections come, if it is the engine that connects.
    pub(super) fn new(registration: &Registration, context: &StreamContext, route: Option<Route>) -> Self {
        let live = match route {
            None => LiveConnection::Dialled(Box::new(OutboundStream::new(registration, context))),
            Some(route) => LiveConnection::Bound(Box::new(InboundStream::new(route))),
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
            LiveConnection::Dialled(dialled) => dialled.place(),
            LiveConnection::Bound(_) => None,
        };
        replay.poll(cx, live).map(|incoming| match incoming {
            TransportEvent::Unreachable(why) => self.unreachable("replay: ", &why),
            other => other,
        })
    }

    /// Logs why there is no connection, once and not with each attempt. The status does not say why: everybody may
    /// read it, and could look by it for what listens where.
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
            LiveConnection::Dialled(dialled) => dialled.reconnect(),
            LiveConnection::Bound(bound) => bound.reconnect(),
        }
    }
}
