//! A stream that comes by a log instead of from its engine: messages of a relay to the index, and all that to the status.
//!
//! `follower` decides what to make of each message; here is the task that has the log's messages, the index and the
//! clock.

mod follower;
#[cfg(test)]
mod tests;

use std::future::{Future as _, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use kvatlas_wire::compact::FormatError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::follower::{Follower, StreamActions};
use super::copier::{Moment as _, StreamCopier};
use super::holdings::Holdings;
use super::report::end_restored;
use super::restore::restore;
use super::task::{AFTER_PANIC, TURN, caught};
use crate::context::StreamContext;
use crate::relay::{Delivery, Inbox, LinkState, Relay};
use crate::snapshot::StreamRestore;
use crate::state::{CopyRequest, Keyspace, SnapshotOutcome, State, Stream};
use kvatlas_stream::Outcome;

/// Follows a stream that comes by a log, until told to stop.
pub(super) async fn follow(
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
    context: StreamContext,
    inbox: Option<Inbox>,
    mut stop: oneshot::Receiver<()>,
) {
    let mut copies = stream.copies().listen();
    let mut restoring = tokio::select! {
        restoring = context.snapshots.take(&keyspace, &stream) => restoring,
        _ = &mut stop => return stream.status.set_state(State::Stopped),
    };
    let mut inbox = inbox.unwrap_or_else(Inbox::empty);
    loop {
        let ended = {
            let asked = TaskRequests { stop: &mut stop, copies: &mut copies };
            let life = pin!(live(&keyspace, &stream, &context, &mut inbox, asked, restoring.take()));
            caught(life).await
        };
        match ended {
            Ok(End::Stopped) => break,
            Ok(End::Rebuilt) => stream.status.set_state(State::Connecting),
            Err(panic) => {
                let what = crate::log::panic_text(&*panic).to_owned();
                tracing::error!(
                    worker = &*stream.worker,
                    panic = what,
                    "a stream's task failed and is being restarted"
                );
                stream.status.counters.task_restarts.fetch_add(1, Relaxed);
                stream.status.set_error(format!("internal error: {what}"));
                stream.status.set_state(State::Connecting);
                stream.status.set_trusted(false);
                keyspace.trust_changed(&stream);
                let clear = AssertUnwindSafe(|| Holdings::new(keyspace.clone(), stream.clone(), &context).clear());
                if catch_unwind(clear).is_err() {
                    tracing::error!(worker = &*stream.worker, "the stream's blocks cannot be cleared");
                }
                if timeout(AFTER_PANIC, &mut stop).await.is_ok() {
                    break;
                }
            }
        }
    }
    stream.status.set_state(State::Stopped);
}

enum End {
    Stopped,
    /// The index that it fed was replaced by an empty one.
    Rebuilt,
}

struct TaskRequests<'a> {
    stop: &'a mut oneshot::Receiver<()>,
    copies: &'a mut mpsc::Receiver<CopyRequest>,
}

struct StreamTarget<'a> {
    holdings: &'a mut Holdings,
    relay: &'a Relay,
    subject: &'a str,
}

impl StreamActions for StreamTarget<'_> {
    fn apply(&mut self, id: u64, rank: u32, changes: &[u8]) -> Result<(), FormatError> {
        self.holdings.apply_changes(id, rank, changes)
    }
    fn clear(&mut self) {
        self.holdings.clear();
    }
    fn ask(&mut self) {
        self.relay.ask(self.subject);
    }
    fn timestamp(&mut self, timestamp: f64) {
        self.holdings.note_timestamp(timestamp);
    }
}

async fn live(
    keyspace: &Arc<Keyspace>,
    stream: &Arc<Stream>,
    context: &StreamContext,
    inbox: &mut Inbox,
    asked: TaskRequests<'_>,
    restoring: Option<StreamRestore>,
) -> End {
    let TaskRequests { stop, copies } = asked;
    let Inbox { messages: inbox } = inbox;
    let (start, relay) = (Instant::now(), &context.relay);
    let subject = stream.registration.endpoint.log_subject().unwrap_or_default();
    let key = keyspace.identity().key_check();
    let mut follower = Follower::new(keyspace.block_size, key, relay.config.lost_after);
    let mut holdings = Holdings::new(keyspace.clone(), stream.clone(), context);
    // What the one before left is of another time.
    holdings.clear();
    let mut is_restored = match restoring {
        Some(restoring) => take_up(restoring, &mut holdings, &mut follower, context).await,
        None => false,
    };
    let mut rebuilds = keyspace.watch_rebuilds();
    let mut rebuilt = pin!(rebuilds.changed());
    let mut link = relay.link.watch();
    let mut copier: Option<StreamCopier> = None;
    let mut timer = pin!(sleep(Duration::ZERO));
    loop {
        let ended = {
            let mut changed = pin!(link.changed());
            poll_fn(|cx| {
                if Pin::new(&mut *stop).poll(cx).is_ready() {
                    return Poll::Ready(Some(End::Stopped));
                }
                let mut is_news = false;
                for _ in 0..TURN {
                    let Poll::Ready(Some(Delivery { payload, sequence, heard })) = inbox.poll_recv(cx) else { break };
                    let heard = heard.map(|heard| heard.saturating_duration_since(start.into_std()));
                    let mut hands = StreamTarget { holdings: &mut holdings, relay, subject };
                    follower.message(start.elapsed(), heard, &payload, sequence, &mut hands);
                    holdings.heard = true;
                    is_news = true;
                    if follower.trusted(start.elapsed()) != stream.status.is_trusted() {
                        break;
                    }
                }
                if copier.is_none()
                    && let Poll::Ready(Some(request)) = copies.poll_recv(cx)
                {
                    copier = StreamCopier::begin(request, &holdings, &follower);
                    is_news = true;
                }
                if rebuilt.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(End::Rebuilt));
                }
                if is_news || changed.as_mut().poll(cx).is_ready() || timer.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                Poll::Pending
            })
            .await
        };
        if let Some(end) = ended {
            return end;
        }
        let now = start.elapsed();
        follower.tick(now, &mut StreamTarget { holdings: &mut holdings, relay, subject });
        copier = copier.and_then(|copier| copier.step(&mut holdings, &follower));
        holdings.tell();
        let up = *link.borrow_and_update();
        report(&mut holdings, context, &mut follower, now, (up, relay.link.trouble()));
        if is_restored && (follower.is_whole() || holdings.clears() > 1) {
            is_restored = false;
            end_restored(stream, context, if holdings.clears() > 1 { Outcome::Restarted } else { Outcome::Kept });
        }
        let mut wake = start + follower.wake(now);
        if !stream.status.is_settled() {
            wake = wake.min(start + context.config.settle_timeout.max(now + Duration::from_millis(10)));
        }
        if let Some(copier) = &copier {
            wake = wake.min(copier.due().into());
        }
        timer.set(sleep_until(wake));
        // Others have their turn.
        tokio::task::yield_now().await;
    }
}

/// Begins with what a snapshot has of the stream, if that can be used.
async fn take_up(
    restoring: StreamRestore,
    holdings: &mut Holdings,
    follower: &mut Follower,
    context: &StreamContext,
) -> bool {
    let head = &restoring.stream.head;
    let (mark, first, sequence) = (head.mark, head.first, head.sequence);
    let (kind, created, blocks) = (restoring.kind, restoring.created, restoring.stream.blocks());
    let stream = holdings.stream.clone();
    stream.status.set_from_snapshot(SnapshotOutcome { kind, created, blocks, outcome: None });
    // One that came from the engine itself has the engine's names.
    let restored = if sequence.is_some() { restore(holdings, restoring).await } else { Err(Outcome::Settings) };
    match restored {
        Ok(_) => {
            follower.restore(mark, first, sequence);
            true
        }
        Err(outcome) => {
            holdings.clear();
            end_restored(&stream, context, outcome);
            false
        }
    }
}

/// Tells the status.
fn report(
    holdings: &mut Holdings,
    context: &StreamContext,
    follower: &mut Follower,
    now: Duration,
    line: (LinkState, Option<String>),
) {
    let (link, trouble) = line;
    let forgotten = holdings.take_forgotten();
    let Holdings { keyspace, stream, index, .. } = holdings;
    let (status, counters) = (&stream.status, &stream.status.counters);
    let is_limited = status.limit().is_some();
    let trusted = link == LinkState::Up && follower.trusted(now) && !is_limited;
    let state = if is_limited {
        State::Limited
    } else if link == LinkState::Down {
        State::Connecting
    } else if follower.is_stale(now) {
        State::Stale
    } else if follower.has_gap() {
        State::Gap
    } else if trusted {
        State::Live
    } else {
        State::Replaying
    };
    let (worker, rank, name) = (&*stream.worker, stream.registration.rank, state.name());
    if state != status.state() {
        tracing::info!(
            worker,
            rank,
            state = name,
            forgotten,
            "the state of a stream that comes by the log has changed"
        );
    }
    status.set_state(state);
    let counts = follower.counts;
    for (counter, count) in [
        (&counters.gaps, counts.gaps),
        (&counters.recovered_batches, counts.recovered),
        (&counters.lost_batches, counts.lost),
        (&counters.resets, counts.resets),
        (&counters.duplicate_batches, counts.duplicates),
        (&counters.other_relays, counts.other_relays),
        (&counters.undecodable_batches, counts.malformed),
        (&status.epoch, counts.epochs),
        (&status.buffered, follower.waiting() as u64),
    ] {
        counter.store(count, Relaxed);
    }
    status.set_last_seq(follower.last());
    status.set_gone(follower.is_gone());
    let told = follower.told();
    let mut changed = false;
    for (flag, is_set) in [
        (&status.partial, told.partial),
        (&status.unverified, told.unverified),
        (&status.upper_bound, told.upper_bound),
        (&status.no_salts, told.no_salts),
    ] {
        changed |= flag.swap(is_set, Relaxed) != is_set;
    }
    if changed {
        keyspace.trust_changed(stream);
    }
    if let Some(error) = follower.error.take().or(trouble.filter(|_| link == LinkState::Down)) {
        if status.last_error().as_ref() != Some(&error) {
            tracing::warn!(worker, rank, error, "a stream that comes by the log");
        }
        status.set_error(error);
    } else if trusted && !status.is_trusted() {
        status.recover();
    }
    if trusted != status.is_trusted() {
        keyspace.set_trusted(stream, index, trusted);
    }
    let absent = now >= context.config.settle_timeout;
    if (trusted || absent || is_limited) && !status.is_settled() {
        status.settle();
    }
}
