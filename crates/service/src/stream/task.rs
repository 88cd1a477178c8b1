//! Follows one stream: sockets to machine, machine to index, and all that to the status.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::holdings::Holdings;
use super::machine::{Counts, Effects, Machine};
use super::transport::{Incoming, Transport};
use crate::config::StreamConfig;
use crate::state::{Counters, Keyspace, State, Stream, StreamStatus};

/// After so many messages others have their turn.
const TURN: u32 = 128;
/// Before a stream begins anew whose task has failed.
const AFTER_PANIC: Duration = Duration::from_secs(1);
/// Longest sleep without a look at the clock.
const LOOK: Duration = Duration::from_secs(3600);

/// Follows a stream until told to stop. A panic costs what it held, and it begins anew.
pub(crate) async fn follow<T: Transport>(
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
    config: StreamConfig,
    transport: impl Fn() -> T,
    mut stop: oneshot::Receiver<()>,
) {
    loop {
        let ended = {
            let mut life = pin!(live(&keyspace, &stream, &config, &transport, &mut stop));
            let caught = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| life.as_mut().poll(cx))) {
                Ok(poll) => poll.map(Ok),
                Err(panic) => Poll::Ready(Err(panic)),
            });
            caught.await
        };
        let Err(panic) = ended else { break };
        let what = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        tracing::error!(worker = &*stream.worker, panic = what, "a stream's task failed and starts again");
        stream.status.counters.task_restarts.fetch_add(1, Relaxed);
        stream.status.set_error(format!("internal error: {}", what.unwrap_or("unknown")));
        stream.status.set_state(State::Connecting);
        set_trusted(&keyspace, &stream, false);
        let clear = AssertUnwindSafe(|| Holdings::new(keyspace.clone(), stream.clone(), &config).clear());
        if catch_unwind(clear).is_err() {
            tracing::error!(worker = &*stream.worker, "the stream's blocks cannot be cleared");
        }
        if tokio::time::timeout(AFTER_PANIC, &mut stop).await.is_ok() {
            break;
        }
    }
    stream.status.set_state(State::Stopped);
}

/// The machine's hands.
struct Hands<'a, T> {
    holdings: &'a mut Holdings,
    transport: &'a mut T,
}

impl<T: Transport> Effects<T::Payload> for Hands<'_, T> {
    fn apply(&mut self, _: u64, payload: &T::Payload, live: bool) {
        self.holdings.apply(payload.as_ref(), live);
    }
    fn clear(&mut self) {
        self.holdings.clear();
    }
    fn ask(&mut self, from: u64) {
        self.transport.ask(from);
    }
    fn cancel(&mut self) {
        self.transport.cancel();
    }
    fn reconnect(&mut self) {
        self.transport.reconnect();
    }
}

enum Event<P> {
    Stop,
    Incoming(Incoming<P>),
    Time,
}

async fn live<T: Transport>(
    keyspace: &Arc<Keyspace>,
    stream: &Arc<Stream>,
    config: &StreamConfig,
    transport: impl Fn() -> T,
    stop: &mut oneshot::Receiver<()>,
) {
    let start = Instant::now();
    let status = &stream.status;
    let can_replay = stream.registration.replay_endpoint.is_some();
    let mut machine = Machine::new(config, can_replay, counts(status), Duration::ZERO);
    let mut holdings = Holdings::new(keyspace.clone(), stream.clone(), config);
    let mut transport = transport();
    let mut timer = pin!(sleep_until(start));
    let mut turn = 0;
    loop {
        let event = poll_fn(|cx| {
            if Pin::new(&mut *stop).poll(cx).is_ready() {
                Poll::Ready(Event::Stop)
            } else if let Poll::Ready(incoming) = transport.poll_next(cx) {
                Poll::Ready(Event::Incoming(incoming))
            } else {
                timer.as_mut().poll(cx).map(|()| Event::Time)
            }
        });
        let event = event.await;
        let now = start.elapsed();
        let mut hands = Hands { holdings: &mut holdings, transport: &mut transport };
        match event {
            Event::Stop => return,
            Event::Time => machine.tick(now, &mut hands),
            Event::Incoming(incoming) => {
                match incoming {
                    Incoming::Live { seq, payload } => {
                        machine.live(now, seq, payload, &mut hands);
                        status.hear();
                    }
                    Incoming::Reply { seq, payload } => {
                        machine.reply(now, seq, payload, &mut hands);
                        status.hear();
                    }
                    Incoming::ReplyEnd => {
                        machine.reply_end(now, &mut hands);
                        status.hear();
                    }
                    Incoming::Connected => machine.connected(now, &mut hands),
                    Incoming::Disconnected(why) => {
                        machine.disconnected(&mut hands);
                        tracing::info!(worker = &*stream.worker, rank = stream.registration.rank, why, "disconnected");
                        status.set_error(why);
                    }
                    Incoming::Unreachable(why) => status.set_error(why),
                    Incoming::BadFrames => {
                        status.counters.malformed_messages.fetch_add(1, Relaxed);
                        status.set_error("a message is not topic, 8-byte sequence number and payload".to_owned());
                    }
                }
                turn += 1;
            }
        }
        report(keyspace, stream, config, &machine, now);
        // The timer may go off too early, never too late: it is set anew only then, not for each message.
        let mut wake = machine.wake(now).unwrap_or(LOOK + now);
        if !status.is_settled() {
            wake = wake.min(config.settle_timeout.max(now + Duration::from_millis(10)));
        }
        let wake = start + wake;
        if timer.deadline() > wake || timer.is_elapsed() || timer.deadline() <= Instant::now() {
            timer.as_mut().reset(wake.max(start + now));
        }
        if turn >= TURN {
            turn = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Tells the status.
fn report<P: AsRef<[u8]>>(
    keyspace: &Keyspace,
    stream: &Stream,
    config: &StreamConfig,
    machine: &Machine<P>,
    now: Duration,
) {
    let status = &stream.status;
    let is_limited = status.limit().is_some();
    let state = if is_limited { State::Limited } else { machine.state(now) };
    if state != status.state() {
        status.set_state(state);
        tell(stream, machine, state);
    }
    status.set_last_seq(machine.last());
    status.partial.store(machine.partial(), Relaxed);
    status.buffered.store(machine.waiting() as u64, Relaxed);
    for (counter, count) in pairs(&status.counters, &mut machine.counts.clone()) {
        counter.store(*count, Relaxed);
    }
    status.epoch.store(machine.counts.epochs, Relaxed);
    let trusted = machine.trusted() && !is_limited;
    if trusted != status.is_trusted() {
        set_trusted(keyspace, stream, trusted);
    }
    // An engine that is not there holds readiness back for a while only.
    let absent = matches!(state, State::Connecting | State::Stale) && now >= config.settle_timeout;
    if (trusted || absent || is_limited) && !status.is_settled() {
        status.settle();
    }
}

/// A line for each change, and one that matters more for each that costs answers.
fn tell<P: AsRef<[u8]>>(stream: &Stream, machine: &Machine<P>, state: State) {
    let (worker, rank, state, epoch) = (&*stream.worker, stream.registration.rank, state.name(), machine.counts.epochs);
    let (seq, partial) = (machine.last(), machine.partial());
    let resets = stream.status.counters.resets.load(Relaxed);
    if epoch > stream.status.epoch.load(Relaxed) {
        tracing::warn!(worker, rank, state, epoch, "the engine has restarted; its blocks are cleared");
    } else if machine.counts.resets > resets {
        tracing::warn!(worker, rank, state, seq, partial, "batches are lost for good; the stream's blocks are cleared");
    } else {
        tracing::info!(worker, rank, state, seq, epoch, partial, "state changed");
    }
}

fn set_trusted(keyspace: &Keyspace, stream: &Stream, trusted: bool) {
    stream.status.set_trusted(trusted);
    keyspace.trust_changed();
}

/// The machine's counts, taken up again after a panic.
fn counts(status: &StreamStatus) -> Counts {
    let mut counts = Counts { epochs: status.epoch.load(Relaxed), ..Counts::default() };
    for (counter, count) in pairs(&status.counters, &mut counts) {
        *count = counter.load(Relaxed);
    }
    counts
}

fn pairs<'a>(counters: &'a Counters, counts: &'a mut Counts) -> [(&'a AtomicU64, &'a mut u64); 11] {
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
    ]
}
