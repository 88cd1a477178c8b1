//! Tells what is known of one stream: its status, to those who read it from a log, and in lines of the log.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_stream::Outcome;
use kvatlas_stream::machine::{Counts, Machine};
use kvatlas_wire::compact::Status;

use super::holdings::Holdings;
use crate::context::StreamContext;
use crate::state::{Counters, SnapshotOutcome, State, Stream, StreamStatus};

/// Text that is told of a stream whose batches keep contradicting each other.
const MIXED: &str = "batches of two publishers are mixed here: each rank of each engine needs its own endpoint";

/// Tells those who read the stream from a log what is known of it, if that is news.
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

/// Logs that what a snapshot has of the stream is held, and not trusted yet.
pub(super) fn status_of(stream: &Stream, partial: bool) {
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

/// True if the status must be told before the next message is read. Counts can wait until there is nothing to read;
/// whether answers are right cannot, nor can the end of an error, which would end those that come after it too.
pub(super) fn is_news<P: AsRef<[u8]>>(status: &StreamStatus, machine: &Machine<P>, speaks: bool) -> bool {
    let trusted = machine.trusted() && status.limit().is_none();
    let recovers = || speaks && trusted && !machine.partial() && status.is_failing();
    let is_marked = |flag: &AtomicBool, now: bool| flag.load(Relaxed) != now;
    trusted != status.is_trusted()
        || is_marked(&status.partial, machine.partial())
        || is_marked(&status.unverified, machine.unverified())
        || recovers()
}

/// Tells the status. `speaks`: the engine has just said something that shows whether all is well.
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
