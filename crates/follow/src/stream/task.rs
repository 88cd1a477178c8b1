//! Task of one stream, which applies the batches of the stream's source to the index, and keeps the stream's status up
//! to date.
//!
//! The source is an engine (`engine`) or a NATS log to which a relay publishes (`relayed`): see [`StreamSource`].

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use kvatlas_index::snapshot::Dictionary;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::copier::{Copier, LogSink, Moment, SnapshotSink};
use super::engine::{end_restored, publish_status};
use super::holdings::Holdings;
use super::restore::restore;
use crate::context::StreamContext;
use crate::log::panic_text;
use crate::snapshot::StreamRestore;
use crate::state::{CopyRequest, Keyspace, SnapshotOutcome, State, Stream};
use kvatlas_stream::{Mark, Outcome};

/// Maximum number of events handled before other tasks on the thread may run. The clock is read and counts are reported
/// once for all of these events.
const TURN: u32 = 128;
/// Pause before a stream whose task has panicked is read anew.
const AFTER_PANIC: Duration = Duration::from_secs(1);
/// Maximum time for which the task sleeps without checking the clock.
const LOOK: Duration = Duration::from_secs(3600);

/// Source of a stream's batches, an engine or a NATS log, with the rules that decide which batches are applied.
pub(super) trait StreamSource: Send {
    /// Type of the rules that decide which batches are applied.
    type Rules: Moment;
    /// Event of the engine's sockets or of the NATS log, such as a received batch.
    type Event;

    fn rules(&self) -> &Self::Rules;

    /// True if the engine or log can prove that blocks restored up to this point are still held.
    fn can_prove(&self, point: &RestorePoint) -> bool;

    /// Continues from held blocks that were restored from a snapshot and must still be proved.
    fn restored(&mut self, point: RestorePoint, dictionary: Arc<Dictionary>, holdings: &mut Holdings);

    /// Returns the next event of the engine's sockets or of the NATS log.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Self::Event>;

    /// Handles an event of the engine's sockets or of the NATS log. Returns its consequences for the stream's status.
    fn take_in(&mut self, event: Self::Event, now: Duration, holdings: &mut Holdings) -> StreamNews;

    /// Performs all actions of the stream that are due at time `now`, such as repeating a request.
    fn tick(&mut self, now: Duration, holdings: &mut Holdings);

    /// Returns the time at which [`tick`](Self::tick) must be called next, if no event comes before; `None` if no call
    /// is needed.
    fn wake(&self, now: Duration) -> Option<Duration>;

    /// Updates the stream's status. `speaks` is true if the last event shows that the engine or relay works.
    fn report(&mut self, now: Duration, speaks: bool, holdings: &mut Holdings, context: &StreamContext);
}

/// Consequences that an event has for the stream's status.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamNews {
    /// True if the event shows that the engine or relay works.
    pub(super) speaks: bool,
    /// True if the status must be updated before the next event.
    pub(super) is_urgent: bool,
}

/// Position in a stream up to which a snapshot includes the held blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct RestorePoint {
    pub(super) mark: Mark,
    /// Number of the first batch applied since the held blocks were last cleared.
    pub(super) first: u64,
    /// True if the engine may have held more blocks than were known.
    pub(super) partial: bool,
    /// Sequence number of the last message read from the NATS log; `None` if the stream was read from an engine.
    pub(super) sequence: Option<u64>,
}

/// Follows a stream until stopped. After a panic, the held blocks are cleared, and the stream is read anew.
pub(super) async fn follow<S: StreamSource>(
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
    context: StreamContext,
    source: impl Fn() -> S,
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
            let life = pin!(live(&keyspace, &stream, &context, &source, asked, restoring.take()));
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
        let what = panic_text(&*panic);
        tracing::error!(worker = &*stream.worker, panic = what, "a stream's task failed and is being restarted");
        stream.status.counters.task_restarts.fetch_add(1, Relaxed);
        stream.status.set_error(format!("internal error: {what}"));
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

/// Runs a future and returns its output, or the payload of its panic.
async fn caught<F: Future>(mut future: Pin<&mut F>) -> std::thread::Result<F::Output> {
    let poll = |cx: &mut Context<'_>| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    };
    poll_fn(poll).await
}

/// Reason why a run of a stream's task has ended.
enum End {
    Stopped,
    /// The index was replaced by an empty one after a failed change.
    Rebuilt,
}

/// Requests to a stream's task: to stop, or to copy the held blocks.
struct TaskRequests<'a> {
    stop: &'a mut oneshot::Receiver<()>,
    copies: &'a mut mpsc::Receiver<CopyRequest>,
}

enum Wakeup {
    End(End),
    /// All available events were handled. `speaks` is true if the last one shows that the engine or relay works.
    Incoming {
        speaks: bool,
    },
    Time,
}

/// Runs the stream's task once, from the start of its source until it is stopped or the index is replaced.
async fn live<S: StreamSource>(
    keyspace: &Arc<Keyspace>,
    stream: &Arc<Stream>,
    context: &StreamContext,
    source: &impl Fn() -> S,
    asked: TaskRequests<'_>,
    restoring: Option<StreamRestore>,
) -> End {
    let TaskRequests { stop, copies } = asked;
    let start = Instant::now();
    let status = &stream.status;
    let mut source = source();
    let mut rebuilds = keyspace.watch_rebuilds();
    let mut rebuilt = pin!(rebuilds.changed());
    let mut holdings = Holdings::new(keyspace.clone(), stream.clone(), context);
    if let Some(restoring) = restoring {
        take_up(restoring, &mut holdings, &mut source, context).await;
    }
    let mut copier: Option<Copier<SnapshotSink>> = None;
    let mut published: Option<Copier<LogSink>> = None;
    if let Some(outlet) = stream.outlet().filter(|_| source.rules().last().is_some()) {
        // Readers do not have the restored holdings.
        outlet.break_off();
    }
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
                && let Poll::Ready(event) = source.poll_event(cx)
            {
                if taken.is_none() {
                    now = start.elapsed();
                }
                turn += 1;
                let news = source.take_in(event, now, &mut holdings);
                taken = Some(news.speaks);
                if news.is_urgent {
                    break;
                }
            }
            if copier.is_none()
                && let Poll::Ready(Some(request)) = copies.poll_recv(cx)
            {
                copier = Some(Copier::new(SnapshotSink::new(request)));
            }
            if published.is_none()
                && let Some(outlet) = stream.outlet()
                && outlet.poll_asked(cx).is_ready()
            {
                published = Some(Copier::new(LogSink::new(outlet.clone())));
            }
            if let Some(speaks) = taken {
                Poll::Ready(Wakeup::Incoming { speaks })
            } else if is_due(copier.as_ref().map(Copier::due)) || is_due(published.as_ref().map(Copier::due)) {
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
                source.tick(now, &mut holdings);
                false
            }
        };
        copier = copier.and_then(|copier| copier.step(&mut holdings, source.rules()));
        published = published.and_then(|published| published.step(&mut holdings, source.rules()));
        holdings.tell();
        source.report(now, speaks, &mut holdings, context);
        publish_status(stream);
        // The timer may go off too early, never too late: it is set anew only then, not for each event.
        let mut wake = source.wake(now).unwrap_or(LOOK + now);
        if !status.is_settled() {
            wake = wake.min(context.config.settle_timeout.max(now + Duration::from_millis(10)));
        }
        let mut wake = start + wake;
        for due in [copier.as_ref().map(Copier::due), published.as_ref().map(Copier::due)].into_iter().flatten() {
            wake = wake.min(due.into());
        }
        if timer.deadline() > wake || timer.is_elapsed() || timer.deadline() <= start + now {
            timer.as_mut().reset(wake.max(start + now));
        }
        if turn >= TURN {
            turn = 0;
            // A stream that is never idle does not see that its index was replaced.
            if !Arc::ptr_eq(&holdings.index, &keyspace.index()) {
                return End::Rebuilt;
            }
            tokio::task::yield_now().await;
            // Nor does its timer go off.
            if wake <= Instant::now() {
                let now = start.elapsed();
                source.tick(now, &mut holdings);
                source.report(now, false, &mut holdings, context);
                publish_status(stream);
            }
        }
    }
}

fn is_due(at: Option<std::time::Instant>) -> bool {
    at.is_some_and(|at| at <= Instant::now().into_std())
}

/// Restores the blocks that a snapshot has of the stream, if they can be used.
async fn take_up(
    restoring: StreamRestore,
    holdings: &mut Holdings,
    source: &mut impl StreamSource,
    context: &StreamContext,
) {
    let head = &restoring.stream.head;
    let point = RestorePoint { mark: head.mark, first: head.first, partial: head.partial, sequence: head.sequence };
    let (kind, created, blocks) = (restoring.kind, restoring.created, restoring.stream.blocks());
    let stream = holdings.stream.clone();
    stream.status.set_from_snapshot(SnapshotOutcome { kind, created, blocks, outcome: None });
    let dictionary = restoring.dictionary.clone();
    let restored = if source.can_prove(&point) { restore(holdings, restoring).await } else { Err(Outcome::Settings) };
    match restored {
        Ok(_) => source.restored(point, dictionary, holdings),
        Err(outcome) => {
            holdings.clear();
            end_restored(&stream, context, outcome);
        }
    }
}
