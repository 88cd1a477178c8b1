//! Follows one stream: sockets to machine, machine to index, and all that to the status.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use kvatlas_wire::compact::Status;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::copier::StreamCopier;
use super::holdings::Holdings;
use super::restore::restore;
use super::state_copier::StateCopier;
use super::transport::{Transport, TransportEvent};
use crate::context::StreamContext;
use crate::snapshot::StreamRestore;
use crate::state::{CopyRequest, Counters, Keyspace, SnapshotOutcome, State, Stream, StreamStatus};
use kvatlas_stream::Outcome;
use kvatlas_stream::machine::{Counts, Effects, Machine, Verdict};

/// Text that is told of a stream whose batches keep contradicting each other.
const MIXED: &str = "batches of two publishers are mixed here: each rank of each engine needs its own endpoint";

/// Text that is told of a stream to which a second publisher has connected.
const RIVAL: &str = "two publishers with this topic are connected: the second one is not read before the first is gone, \
                     and the stream is not trusted until then, or until the replay socket has shown that the first is the engine";

/// Number of messages after which others have their turn. Up to as many are taken in at once if they are there: the
/// clock is read, and counts are told, once for all of them.
pub(super) const TURN: u32 = 128;
/// Pause before a stream begins anew whose task has failed.
pub(super) const AFTER_PANIC: Duration = Duration::from_secs(1);
/// Longest sleep without a look at the clock.
const LOOK: Duration = Duration::from_secs(3600);

/// Follows a stream until told to stop. A panic costs what it held, and it begins anew.
pub(crate) async fn follow<T: Transport>(
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
    context: StreamContext,
    transport: impl Fn() -> T,
    mut stop: oneshot::Receiver<()>,
) {
    let mut copies = stream.copies().listen();
    let mut restoring = tokio::select! {
        restoring = context.snapshots.take(&keyspace, &stream) => restoring,
        _ = &mut stop => return stream.status.set_state(State::Stopped),
    };
    loop {
        let ended = {
            let asked = TaskRequests { stop: &mut stop, copies: &mut copies };
            let life = pin!(live(&keyspace, &stream, &context, &transport, asked, restoring.take()));
            caught(life).await
        };
        let panic = match ended {
            Ok(End::Stopped) => break,
            // All of its blocks are gone.
            Ok(End::Rebuilt) => {
                stream.status.set_state(State::Connecting);
                continue;
            }
            Err(panic) => panic,
        };
        let what = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        tracing::error!(worker = &*stream.worker, panic = what, "a stream's task failed and is being restarted");
        stream.status.counters.task_restarts.fetch_add(1, Relaxed);
        stream.status.set_error(format!("internal error: {}", what.unwrap_or("unknown")));
        stream.status.set_state(State::Connecting);
        stream.status.set_trusted(false);
        keyspace.trust_changed(&stream);
        publish_status(&stream);
        let clear = AssertUnwindSafe(|| Holdings::new(keyspace.clone(), stream.clone(), &context).clear());
        if catch_unwind(clear).is_err() {
            tracing::error!(worker = &*stream.worker, "the stream's blocks cannot be cleared");
        }
        if tokio::time::timeout(AFTER_PANIC, &mut stop).await.is_ok() {
            break;
        }
    }
    stream.status.set_state(State::Stopped);
    if let Some(outlet) = stream.outlet() {
        outlet.close();
    }
}

/// Returns what a future comes to, or what it panics with.
pub(super) async fn caught<F: Future>(mut future: Pin<&mut F>) -> std::thread::Result<F::Output> {
    let poll = |cx: &mut Context<'_>| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    };
    poll_fn(poll).await
}

/// The machine's hands.
struct TaskEffects<'a, T> {
    holdings: &'a mut Holdings,
    transport: &'a mut T,
    /// True if the hands did anything but apply batches.
    acted: bool,
}

impl<'a, T> TaskEffects<'a, T> {
    fn new(holdings: &'a mut Holdings, transport: &'a mut T) -> Self {
        Self { holdings, transport, acted: false }
    }
}

impl<T: Transport> Effects<T::Payload> for TaskEffects<'_, T> {
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

/// Reason why a stream is not followed any more, or not with what was known.
enum End {
    Stopped,
    /// The index that it fed was replaced by an empty one.
    Rebuilt,
}

/// Channels by which others ask the task to stop, or for a copy.
struct TaskRequests<'a> {
    stop: &'a mut oneshot::Receiver<()>,
    copies: &'a mut mpsc::Receiver<CopyRequest>,
}

enum Wakeup {
    End(End),
    /// Everything that there was to read is taken in. `speaks`: the last of it shows whether all is well.
    Incoming {
        speaks: bool,
    },
    Time,
}

async fn live<T: Transport>(
    keyspace: &Arc<Keyspace>,
    stream: &Arc<Stream>,
    context: &StreamContext,
    transport: impl Fn() -> T,
    asked: TaskRequests<'_>,
    restoring: Option<StreamRestore>,
) -> End {
    let TaskRequests { stop, copies } = asked;
    let start = Instant::now();
    let status = &stream.status;
    let can_replay = stream.registration.replay_endpoint.is_some();
    let mut machine =
        Machine::new((&context.config).into(), context.shared.clone(), can_replay, counts(status), Duration::ZERO);
    let mut rebuilds = keyspace.watch_rebuilds();
    let mut rebuilt = pin!(rebuilds.changed());
    let mut holdings = Holdings::new(keyspace.clone(), stream.clone(), context);
    if let Some(restoring) = restoring {
        take_up(restoring, &mut holdings, &mut machine, context).await;
    }
    let mut copier: Option<StreamCopier> = None;
    let mut published: Option<StateCopier> = None;
    if let Some(outlet) = stream.outlet().filter(|_| machine.last().is_some()) {
        // A snapshot's, of which nobody was told.
        outlet.break_off();
    }
    let mut transport = transport();
    let mut timer = pin!(sleep_until(start));
    let mut turn = 0;
    let mut now = Duration::ZERO;
    loop {
        let woken = poll_fn(|cx| {
            if Pin::new(&mut *stop).poll(cx).is_ready() {
                return Poll::Ready(Wakeup::End(End::Stopped));
            }
            let mut taken = None;
            while turn < TURN
                && let Poll::Ready(incoming) = transport.poll_next(cx)
            {
                if taken.is_none() {
                    now = start.elapsed();
                }
                turn += 1;
                let speaks = speaks(&incoming, can_replay);
                taken = Some(speaks);
                let mut hands = TaskEffects::new(&mut holdings, &mut transport);
                take_in(incoming, now, stream, &mut machine, &mut hands);
                if hands.acted || is_news(status, &machine, speaks) {
                    break;
                }
            }
            if copier.is_none()
                && let Poll::Ready(Some(request)) = copies.poll_recv(cx)
            {
                copier = StreamCopier::begin(request, &holdings, &machine);
            }
            if published.is_none()
                && let Some(outlet) = stream.outlet()
                && outlet.poll_asked(cx).is_ready()
            {
                published = Some(StateCopier::new(&holdings));
            }
            if let Some(speaks) = taken {
                Poll::Ready(Wakeup::Incoming { speaks })
            } else if is_due(copier.as_ref().map(StreamCopier::due)) || is_due(published.as_ref().map(StateCopier::due))
            {
                Poll::Ready(Wakeup::Time)
            } else if rebuilt.as_mut().poll(cx).is_ready() {
                Poll::Ready(Wakeup::End(End::Rebuilt))
            } else {
                timer.as_mut().poll(cx).map(|()| Wakeup::Time)
            }
        });
        let speaks = match woken.await {
            Wakeup::End(end) => return end,
            Wakeup::Incoming { speaks } => speaks,
            Wakeup::Time => {
                now = start.elapsed();
                machine.tick(now, &mut TaskEffects::new(&mut holdings, &mut transport));
                false
            }
        };
        copier = copier.and_then(|copier| copier.step(&mut holdings, &machine));
        published = published.and_then(|published| published.step(&mut holdings));
        holdings.tell();
        report(&mut holdings, context, &mut machine, now, speaks);
        publish_status(stream);
        // The timer may go off too early, never too late: it is set anew only then, not for each message.
        let mut wake = machine.wake(now).unwrap_or(LOOK + now);
        if !status.is_settled() {
            wake = wake.min(context.config.settle_timeout.max(now + Duration::from_millis(10)));
        }
        let mut wake = start + wake;
        if let Some(copier) = &copier {
            wake = wake.min(copier.due().into());
        }
        if let Some(published) = &published {
            wake = wake.min(published.due().into());
        }
        if timer.deadline() > wake || timer.is_elapsed() || timer.deadline() <= start + now {
            timer.as_mut().reset(wake.max(start + now));
        }
        if turn >= TURN {
            turn = 0;
            // One that is never idle hears no news.
            if !Arc::ptr_eq(&holdings.index, &keyspace.index()) {
                return End::Rebuilt;
            }
            tokio::task::yield_now().await;
            // Nor does its timer go off.
            if wake <= Instant::now() {
                let now = start.elapsed();
                machine.tick(now, &mut TaskEffects::new(&mut holdings, &mut transport));
                report(&mut holdings, context, &mut machine, now, false);
                publish_status(stream);
            }
        }
    }
}

fn is_due(at: Option<std::time::Instant>) -> bool {
    at.is_some_and(|at| at <= Instant::now().into_std())
}

/// Tells those who read the stream from a log what is known of it, if that is news.
fn publish_status(stream: &Stream) {
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

/// Begins with what a snapshot has of the stream, if that can be used.
async fn take_up<P: AsRef<[u8]>>(
    restoring: StreamRestore,
    holdings: &mut Holdings,
    machine: &mut Machine<P>,
    context: &StreamContext,
) {
    let head = &restoring.stream.head;
    let (mark, first, partial) = (head.mark, head.first, head.partial);
    let (kind, created, blocks) = (restoring.kind, restoring.created, restoring.stream.blocks());
    let stream = holdings.stream.clone();
    stream.status.set_from_snapshot(SnapshotOutcome { kind, created, blocks, outcome: None });
    let dictionary = restoring.dictionary.clone();
    match restore(holdings, restoring).await {
        Ok(_) => {
            holdings.restores(dictionary);
            machine.restore(mark, first, partial);
            status_of(&stream, partial);
        }
        Err(outcome) => {
            holdings.clear();
            end_restored(&stream, context, outcome);
        }
    }
}

/// Logs that what a snapshot has of the stream is held, and not trusted yet.
fn status_of(stream: &Stream, partial: bool) {
    let (worker, rank) = (&*stream.worker, stream.registration.rank);
    tracing::debug!(
        worker,
        rank,
        partial,
        "a snapshot's blocks are held until the engine has shown that it is the same"
    );
}

/// Counts, tells and logs what became of what a snapshot had of the stream.
pub(super) fn end_restored(stream: &Stream, context: &StreamContext, outcome: Outcome) {
    context.snapshots.counts.ended(outcome);
    let Some(it) = stream.status.from_snapshot() else { return };
    stream.status.set_from_snapshot(SnapshotOutcome { outcome: Some(outcome), ..it });
    let (worker, rank, from, blocks, outcome) =
        (&*stream.worker, stream.registration.rank, it.kind, it.blocks, outcome.name());
    if outcome == Outcome::Kept.name() {
        tracing::info!(worker, rank, from, blocks, "the engine is the one of the snapshot; its blocks are kept");
    } else {
        tracing::warn!(worker, rank, from, blocks, outcome, "what a snapshot had of the stream is dropped");
    }
}

/// True if the engine says something by `incoming` that shows whether all is well.
fn speaks<P>(incoming: &TransportEvent<P>, can_replay: bool) -> bool {
    match incoming {
        TransportEvent::Reply { .. } | TransportEvent::ReplyEnd => true,
        TransportEvent::Live { .. } => !can_replay,
        _ => false,
    }
}

/// True if the status must be told before the next message is read. Counts can wait until there is nothing to read;
/// whether answers are right cannot, nor can the end of an error, which would end those that come after it too.
fn is_news<P: AsRef<[u8]>>(status: &StreamStatus, machine: &Machine<P>, speaks: bool) -> bool {
    let trusted = machine.trusted() && status.limit().is_none();
    let recovers = || speaks && trusted && !machine.partial() && status.is_failing();
    let is_marked = |flag: &AtomicBool, now: bool| flag.load(Relaxed) != now;
    trusted != status.is_trusted()
        || is_marked(&status.partial, machine.partial())
        || is_marked(&status.unverified, machine.unverified())
        || recovers()
}

/// Takes in one thing that came from the sockets.
fn take_in<T: Transport>(
    incoming: TransportEvent<T::Payload>,
    now: Duration,
    stream: &Stream,
    machine: &mut Machine<T::Payload>,
    hands: &mut TaskEffects<'_, T>,
) {
    let status = &stream.status;
    match incoming {
        TransportEvent::Live { seq, payload } => {
            machine.live(now, seq, payload, hands);
            hands.holdings.heard = true;
        }
        TransportEvent::Reply { seq, payload } => {
            machine.reply(now, seq, payload, hands);
            hands.holdings.heard = true;
        }
        TransportEvent::ReplyEnd => {
            machine.reply_end(now, hands);
            hands.holdings.heard = true;
        }
        TransportEvent::Connected => machine.connected(now, hands),
        TransportEvent::Disconnected(why) => {
            machine.disconnected(hands);
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
        TransportEvent::BadFrames => {
            status.counters.malformed_messages.fetch_add(1, Relaxed);
            status.set_error("a message does not consist of topic, 8-byte sequence number and payload".to_owned());
        }
    }
}

/// Tells the status. `speaks`: the engine has just said something that shows whether all is well.
fn report<P: AsRef<[u8]>>(
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
    let Holdings { keyspace, stream, index, .. } = holdings;
    let status = &stream.status;
    let is_limited = status.limit().is_some();
    let state = if is_limited { State::Limited } else { machine.state(now) };
    let changed = state != status.state();
    status.set_state(state);
    tell(stream, machine, state, changed, forgotten);
    if machine.is_mixed() && machine.counts.contradictions > status.counters.contradictions.load(Relaxed) {
        status.set_error(MIXED.to_owned());
    }
    status.set_last_seq(machine.last());
    if machine.partial() != status.partial.load(Relaxed) {
        status.partial.store(machine.partial(), Relaxed);
        keyspace.trust_changed(stream);
    }
    if status.unverified.swap(machine.unverified(), Relaxed) != machine.unverified() {
        keyspace.trust_changed(stream);
    }
    status.buffered.store(machine.waiting() as u64, Relaxed);
    for (counter, count) in pairs(&status.counters, &mut machine.counts.clone()) {
        counter.store(*count, Relaxed);
    }
    status.epoch.store(machine.counts.epochs, Relaxed);
    let trusted = machine.trusted() && !is_limited;
    let recovers = trusted && (speaks || !status.is_trusted());
    if trusted != status.is_trusted() {
        keyspace.set_trusted(stream, index, trusted);
    }
    // What is `partial` is explained by its error.
    if recovers && !machine.partial() {
        status.recover();
    }
    // An engine that is not there holds readiness back for a while only.
    let absent = matches!(state, State::Connecting | State::Stale) && now >= context.config.settle_timeout;
    if (trusted || absent || is_limited) && !status.is_settled() {
        status.settle();
    }
}

/// A line for each change of state, and one that matters more for each event that costs answers.
fn tell<P: AsRef<[u8]>>(stream: &Stream, machine: &Machine<P>, state: State, changed: bool, forgotten: u64) {
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
        tracing::warn!(worker, rank, state, seq, "the engine is silent: not trusted until it sends something");
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

/// The machine's counts, taken up again after a panic.
fn counts(status: &StreamStatus) -> Counts {
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
