//! Stream that is read from an engine: its sockets, the stream machine that decides about the sockets' events, and
//! reports of changes to the stream's status, to readers of the NATS log, and as log lines.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll};
use std::time::Duration;

use kvatlas_index::snapshot::Dictionary;
use kvatlas_stream::Outcome;
use kvatlas_stream::machine::{Counts, Effects, Machine, Verdict};
use kvatlas_wire::compact::Status;
use tokio::sync::oneshot;

use super::holdings::Holdings;
use super::task::{self, RestorePoint, StreamNews, StreamSource};
use super::transport::{Transport, TransportEvent};
use crate::context::StreamContext;
use crate::state::{Counters, Keyspace, SnapshotOutcome, State, Stream, StreamStatus};

/// Error message for a stream to which a second publisher with the same topic has connected.
const RIVAL: &str = "two publishers with this topic are connected: the second one is not read before the first is gone, \
                     and the stream is not trusted until then, or until the replay socket has shown that the first is the engine";

/// Follows an engine's stream until stopped. `transport` creates the engine's sockets.
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

/// Sockets of an engine, and the stream machine that decides about their events.
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

/// Executor of the actions that the stream machine (the rules for a stream's batches) decides on. Acts on the held
/// blocks and on the engine's sockets.
struct EngineActions<'a, T> {
    holdings: &'a mut Holdings,
    transport: &'a mut T,
    /// True if the stream machine (the rules for a stream's batches) has taken any action other than applying a batch.
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

/// Passes an event of the engine's sockets to the stream machine (the rules for a stream's batches), or records the
/// event in the stream's status.
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

/// Error message for a stream whose batches repeatedly contradict each other.
const MIXED: &str = "batches of two publishers are mixed here: each rank of each engine needs its own endpoint";

/// Publishes the stream's status to readers of the NATS log, if it has changed.
pub(super) fn publish_status(stream: &Stream) {
    let Some(outlet) = stream.outlet() else { return };
    let status = &stream.status;
    let is_hybrid = status.upper_bound.load(Relaxed);
    outlet.status(Status {
        trusted: status.is_trusted(),
        partial: status.partial.load(Relaxed),
        upper_bound: is_hybrid,
        no_salts: status.no_salts.load(Relaxed),
        late: false,
        unverified: status.unverified.load(Relaxed),
    });
}

/// Counts, reports and logs the outcome for held blocks that were restored from a snapshot.
pub(super) fn end_restored(stream: &Stream, context: &StreamContext, outcome: Outcome) {
    context.snapshots.counts.ended(outcome);
    let Some(it) = stream.status.from_snapshot() else { return };
    stream.status.set_from_snapshot(SnapshotOutcome { outcome: Some(outcome), ..it });
    let (worker, rank, from, blocks, outcome) =
        (&*stream.worker, stream.registration.rank, it.kind, it.blocks, outcome.name());
    if outcome == Outcome::Kept.name() {
        tracing::info!(worker, rank, from, blocks, "the engine is the one of the snapshot; its blocks are kept");
    } else {
        tracing::warn!(worker, rank, from, blocks, outcome, "the blocks that a snapshot had of the stream are dropped");
    }
}

/// True if the status must be updated before the next event is handled. Changes of trust must be visible at once, and
/// so must the end of an error, because a later update would end newer errors too. Counts can wait until no event is
/// available. `speaks` is true if the last event shows that the engine works.
pub(super) fn is_news<P: AsRef<[u8]>>(status: &StreamStatus, machine: &Machine<P>, speaks: bool) -> bool {
    let trusted = machine.trusted() && status.limit().is_none();
    let recovers = || speaks && trusted && !machine.partial() && status.is_failing();
    let is_marked = |flag: &AtomicBool, now: bool| flag.load(Relaxed) != now;
    trusted != status.is_trusted()
        || is_marked(&status.partial, machine.partial())
        || is_marked(&status.unverified, machine.unverified())
        || recovers()
}

/// Updates the stream's status from the stream machine (the rules for a stream's batches). `speaks` is true if the last
/// event shows that the engine works.
pub(super) fn report<P: AsRef<[u8]>>(
    holdings: &mut Holdings,
    context: &StreamContext,
    machine: &mut Machine<P>,
    now: Duration,
    speaks: bool,
) {
    if let Some(outcome) = machine.take_restored() {
        holdings.restored(outcome);
        end_restored(&holdings.stream, context, outcome);
    }
    let forgotten = holdings.take_forgotten();
    let Holdings { keyspace, stream, .. } = &*holdings;
    let status = &stream.status;
    let is_limited = status.limit().is_some();
    let state = if is_limited { State::Limited } else { machine.state(now) };
    let changed = state != status.state();
    status.set_state(state);
    log_changes(stream, machine, state, changed, forgotten);
    if machine.is_mixed() && machine.counts.contradictions > status.counters.contradictions.load(Relaxed) {
        status.set_error(MIXED.to_owned());
    }
    status.set_last_seq(machine.last());
    let flags = [(&status.partial, machine.partial()), (&status.unverified, machine.unverified())];
    set_flags(keyspace, stream, flags);
    status.buffered.store(machine.waiting() as u64, Relaxed);
    for (counter, count) in pairs(&status.counters, &mut machine.counts.clone()) {
        counter.store(*count, Relaxed);
    }
    status.epoch.store(machine.counts.epochs, Relaxed);
    let trusted = machine.trusted() && !is_limited;
    let recovers = trusted && (speaks || !status.is_trusted());
    let absent = matches!(state, State::Connecting | State::Stale) && now >= context.config.settle_timeout;
    settle(holdings, trusted, absent);
    // A partial stream keeps its error, which explains it.
    if recovers && !machine.partial() {
        holdings.stream.status.recover();
    }
}

/// Sets flags of the stream's status. If any flag has changed, updates the doubts about the stream (such as lost
/// batches) that queries read.
pub(super) fn set_flags<const N: usize>(keyspace: &Keyspace, stream: &Stream, flags: [(&AtomicBool, bool); N]) {
    let mut changed = false;
    for (flag, is_set) in flags {
        changed |= flag.swap(is_set, Relaxed) != is_set;
    }
    if changed {
        keyspace.trust_changed(stream);
    }
}

/// Sets the trust in a stream. If the stream is trusted, has reached a limit or its engine is absent, the service no
/// longer waits for the stream before it is ready. `absent` is true if the engine has not been connected for a long
/// time.
pub(super) fn settle(holdings: &Holdings, trusted: bool, absent: bool) {
    let Holdings { keyspace, stream, index, .. } = holdings;
    let status = &stream.status;
    if trusted != status.is_trusted() {
        keyspace.set_trusted(stream, index, trusted);
    }
    if (trusted || absent || status.limit().is_some()) && !status.is_settled() {
        status.settle();
    }
}

/// Logs a change of the stream's state, and a loss of held blocks. `forgotten` is the number of blocks lost.
fn log_changes<P: AsRef<[u8]>>(stream: &Stream, machine: &Machine<P>, state: State, changed: bool, forgotten: u64) {
    let (worker, rank, state, epoch) = (&*stream.worker, stream.registration.rank, state.name(), machine.counts.epochs);
    let (seq, partial, counters) = (machine.last(), machine.partial(), &stream.status.counters);
    let lost = machine.counts.lost_batches.saturating_sub(counters.lost_batches.load(Relaxed));
    if machine.is_mixed() && machine.counts.contradictions > counters.contradictions.load(Relaxed) {
        tracing::warn!(worker, rank, state, epoch, "{MIXED}");
    } else if epoch > stream.status.epoch.load(Relaxed) {
        let what = "the engine has restarted: its blocks are dropped";
        tracing::warn!(worker, rank, state, epoch, lost, forgotten, "{what}");
    } else if machine.counts.resets > counters.resets.load(Relaxed) {
        let what = "lost batches could not be recovered: the stream's blocks are dropped";
        tracing::warn!(worker, rank, state, seq, lost, forgotten, "{what}");
    } else if lost > 0 {
        tracing::warn!(worker, rank, state, seq, lost, partial, "earlier batches could not be recovered");
    } else if changed && state == State::Stale.name() {
        tracing::warn!(worker, rank, state, seq, "no events come: the stream is not trusted until one does");
    } else if changed && state == State::Unreadable.name() {
        tracing::warn!(worker, rank, state, seq, "more events of unknown types came: the stream is not trusted");
    } else if forgotten > 0 && state != State::Limited.name() {
        tracing::warn!(worker, rank, state, seq, forgotten, "the stream's blocks are dropped and will be read again");
    } else if changed && state == State::Live.name() {
        tracing::info!(worker, rank, state, seq, epoch, partial, "live: its blocks are known and trusted");
    } else if changed {
        tracing::info!(worker, rank, state, seq, epoch, partial, "the stream's state has changed");
    }
}

/// Returns the initial counts for a new stream machine (the rules for a stream's batches). The counts are taken from
/// the stream's status, which is kept if the task panics.
pub(super) fn counts(status: &StreamStatus) -> Counts {
    let mut counts = Counts { epochs: status.epoch.load(Relaxed), ..Counts::default() };
    for (counter, count) in pairs(&status.counters, &mut counts) {
        *count = counter.load(Relaxed);
    }
    counts
}

fn pairs<'a>(counters: &'a Counters, counts: &'a mut Counts) -> [(&'a AtomicU64, &'a mut u64); 13] {
    [
        (&counters.gaps, &mut counts.gaps),
        (&counters.recovered_batches, &mut counts.recovered_batches),
        (&counters.lost_batches, &mut counts.lost_batches),
        (&counters.resets, &mut counts.resets),
        (&counters.duplicate_batches, &mut counts.duplicate_batches),
        (&counters.overflowed_batches, &mut counts.overflowed_batches),
        (&counters.replays, &mut counts.replays),
        (&counters.failed_replays, &mut counts.failed_replays),
        (&counters.truncated_replays, &mut counts.truncated_replays),
        (&counters.reconnects, &mut counts.reconnects),
        (&counters.unverified_reconnects, &mut counts.unverified_reconnects),
        (&counters.contradictions, &mut counts.contradictions),
        (&counters.rivals, &mut counts.rivals),
    ]
}
