//! Follows one stream: sockets to machine, machine to index, and all that to the report.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::copier::{StateCopier, StreamCopier};
use super::holdings::Holdings;
use super::report::{counts, end_restored, is_news, publish_status, report, status_of};
use super::restore::restore;
use super::transport::{Transport, TransportEvent};
use crate::context::StreamContext;
use crate::snapshot::StreamRestore;
use crate::state::{CopyRequest, Keyspace, SnapshotOutcome, State, Stream};
use kvatlas_stream::machine::{Effects, Machine, Verdict};

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

/// True if the engine says something by `incoming` that shows whether all is well.
fn speaks<P>(incoming: &TransportEvent<P>, can_replay: bool) -> bool {
    match incoming {
        TransportEvent::Reply { .. } | TransportEvent::ReplyEnd => true,
        TransportEvent::Live { .. } => !can_replay,
        _ => false,
    }
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
        TransportEvent::OtherTopic(its) => {
            status.counters.other_topic_batches.fetch_add(1, Relaxed);
            hands.holdings.note_other_topic(&its);
        }
        TransportEvent::SeveralTopics(first, second) => hands.holdings.note_several_topics(&first, &second),
        TransportEvent::BadFrames => {
            status.counters.malformed_messages.fetch_add(1, Relaxed);
            status.set_error("a message does not consist of topic, 8-byte sequence number and payload".to_owned());
        }
    }
}
