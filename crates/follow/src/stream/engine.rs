//! An engine as the source of a stream: its sockets, and the stream machine that decides about their events.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use kvatlas_index::snapshot::Dictionary;
use kvatlas_stream::machine::{Effects, Machine, Verdict};
use tokio::sync::oneshot;

use super::holdings::Holdings;
use super::report::{counts, is_news, report};
use super::task::{self, RestorePoint, StreamNews, StreamSource};
use super::transport::{Transport, TransportEvent};
use crate::context::StreamContext;
use crate::state::{Keyspace, Stream};

/// Error of a stream to which a second publisher has connected.
const RIVAL: &str = "two publishers with this topic are connected: the second one is not read before the first is gone, \
                     and the stream is not trusted until then, or until the replay socket has shown that the first is the engine";

/// Follows an engine's stream until it is stopped. `transport`: makes its sockets.
pub(super) async fn follow<T: Transport>(
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
    context: StreamContext,
    transport: impl Fn() -> T,
    stop: oneshot::Receiver<()>,
) {
    let source = || EngineSource::new(&stream, &context, transport());
    task::follow(keyspace, stream.clone(), context.clone(), source, stop).await;
}

/// An engine's sockets, and the stream machine.
struct EngineSource<T: Transport> {
    stream: Arc<Stream>,
    machine: Machine<T::Payload>,
    transport: T,
    can_replay: bool,
}
impl<T: Transport> EngineSource<T> {
    fn new(stream: &Arc<Stream>, context: &StreamContext, transport: T) -> Self {
        let can_replay = stream.registration.replay_endpoint.is_some();
        let (config, shared) = ((&context.config).into(), context.shared.clone());
        let machine = Machine::new(config, shared, can_replay, counts(&stream.status), Duration::ZERO);
        Self { stream: stream.clone(), machine, transport, can_replay }
    }
}

impl<T: Transport> StreamSource for EngineSource<T> {
    type Rules = Machine<T::Payload>;
    type Event = TransportEvent<T::Payload>;

    fn rules(&self) -> &Self::Rules {
        &self.machine
    }

    fn can_prove(&self, _: &RestorePoint) -> bool {
        true
    }

    fn restored(&mut self, point: RestorePoint, dictionary: Arc<Dictionary>, holdings: &mut Holdings) {
        holdings.restores(dictionary);
        self.machine.restore(point.mark, point.first, point.partial);
        let (worker, rank, partial) = (&*self.stream.worker, self.stream.registration.rank, point.partial);
        tracing::debug!(worker, rank, partial, "restored blocks are held until the engine has proved to be the same");
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Self::Event> {
        self.transport.poll_next(cx)
    }

    fn take_in(&mut self, event: Self::Event, now: Duration, holdings: &mut Holdings) -> StreamNews {
        let speaks = match event {
            TransportEvent::Reply { .. } | TransportEvent::ReplyEnd => true,
            TransportEvent::Live { .. } => !self.can_replay,
            _ => false,
        };
        let mut actions = EngineActions::new(holdings, &mut self.transport);
        take_in(event, now, &self.stream, &mut self.machine, &mut actions);
        let is_urgent = actions.acted || is_news(&self.stream.status, &self.machine, speaks);
        StreamNews { speaks, is_urgent }
    }

    fn tick(&mut self, now: Duration, holdings: &mut Holdings) {
        self.machine.tick(now, &mut EngineActions::new(holdings, &mut self.transport));
    }

    fn wake(&self, now: Duration) -> Option<Duration> {
        self.machine.wake(now)
    }

    fn report(&mut self, now: Duration, speaks: bool, holdings: &mut Holdings, context: &StreamContext) {
        report(holdings, context, &mut self.machine, now, speaks);
    }
}

/// Actions of the machine: on the holdings, and on the sockets.
struct EngineActions<'a, T> {
    holdings: &'a mut Holdings,
    transport: &'a mut T,
    /// True after any action but applying a batch.
    acted: bool,
}

impl<'a, T> EngineActions<'a, T> {
    fn new(holdings: &'a mut Holdings, transport: &'a mut T) -> Self {
        Self { holdings, transport, acted: false }
    }
}

impl<T: Transport> Effects<T::Payload> for EngineActions<'_, T> {
    fn apply(&mut self, seq: u64, payload: &T::Payload, live: bool) -> Verdict {
        self.holdings.apply(seq, payload.as_ref(), live)
    }
    fn clear(&mut self) {
        self.acted = true;
        self.holdings.clear();
    }
    fn ask(&mut self, from: u64) {
        self.acted = true;
        self.transport.ask(from);
    }
    fn cancel(&mut self) {
        self.acted = true;
        self.transport.cancel();
    }
    fn reconnect(&mut self) {
        self.acted = true;
        self.transport.reconnect();
    }
}

/// Hands an event of the sockets to the machine, or to the status.
fn take_in<T: Transport>(
    event: TransportEvent<T::Payload>,
    now: Duration,
    stream: &Stream,
    machine: &mut Machine<T::Payload>,
    actions: &mut EngineActions<'_, T>,
) {
    let status = &stream.status;
    match event {
        TransportEvent::Live { seq, payload } => {
            machine.live(now, seq, payload, actions);
            actions.holdings.heard = true;
        }
        TransportEvent::Reply { seq, payload } => {
            machine.reply(now, seq, payload, actions);
            actions.holdings.heard = true;
        }
        TransportEvent::ReplyEnd => {
            machine.reply_end(now, actions);
            actions.holdings.heard = true;
        }
        TransportEvent::Connected => machine.connected(now, actions),
        TransportEvent::Disconnected(why) => {
            machine.disconnected(actions);
            tracing::info!(worker = &*stream.worker, rank = stream.registration.rank, why, "disconnected");
            status.set_error(why);
        }
        TransportEvent::Rival(from) => {
            machine.rival();
            let (worker, rank) = (&*stream.worker, stream.registration.rank);
            tracing::warn!(worker, rank, from, "{RIVAL}");
            status.set_error(RIVAL.to_owned());
        }
        TransportEvent::Alone => machine.alone(),
        TransportEvent::Unreachable(why) => status.set_error(why),
        TransportEvent::OtherTopic(its) => {
            status.counters.other_topic_batches.fetch_add(1, Relaxed);
            actions.holdings.note_other_topic(&its);
        }
        TransportEvent::SeveralTopics(first, second) => actions.holdings.note_several_topics(&first, &second),
        TransportEvent::BadFrames => {
            status.counters.malformed_messages.fetch_add(1, Relaxed);
            status.set_error("a message does not consist of topic, 8-byte sequence number and payload".to_owned());
        }
    }
}
