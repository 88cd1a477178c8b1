//! Activity of a client's connection: its present phase, with the time of the last change, for time limits.
//!
//! A timer for every request would be one of the largest costs of a request. Events therefore only store the time, and
//! one timer per connection checks the stored time when the earliest possible deadline has passed.
//!
//! For HTTP/2, a stream whose client does not read its answer is reset, without closing the connection. hyper sends an
//! answer piece by piece, as the flow-control windows of stream and connection allow, and waits for these windows
//! without a limit. Each stream runs on an executor given by the server. The executor checks, whenever a stream is
//! pending, whether the stream waits for the client. If the wait is too long, the executor drops the stream, which
//! resets the stream and frees its memory.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::Executor;
use tokio::time::{self, Sleep, sleep_until};

use crate::heads::HeadSummary;
use crate::ledger::{Counts, Limits, STRANGER_WRITE, UNREAD};
use crate::places::Place;

/// Number of bytes of an answer that a client must read within the write limit, unless fewer are available.
pub(crate) const PIECE: usize = 16 << 10;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the milliseconds since the first call of this function.
pub(crate) fn millis() -> u64 {
    START.elapsed().as_millis() as u64
}

/// Phase of a connection, which determines the time limit in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No request has begun on the connection since the last request ended.
    Idle,
    /// The head of a request is arriving, and is not complete yet.
    Head,
    /// A request is being processed; the handler's own time limits apply.
    Busy,
    /// No byte has arrived on the connection yet.
    Fresh,
}

const PHASES: [Phase; 4] = [Phase::Idle, Phase::Head, Phase::Busy, Phase::Fresh];

/// Activity of a client's connection: its phase with the time when the phase began, the number of running requests, and
/// the times since which the client has not read.
pub(crate) struct Activity {
    /// Place that the connection occupies, which also records whether the client has sent a key.
    pub(crate) place: Arc<Place>,
    phase: AtomicU64,
    /// Time since which the socket has accepted no bytes, as [`millis`] plus one; 0 while the socket accepts bytes.
    stuck: AtomicU64,
    /// Number of bytes that the socket has accepted since the time in `stuck`; that time is reset once the number
    /// reaches [`PIECE`].
    taken: AtomicUsize,
    /// Time since which a stream has sent no piece of its answer, on a connection without a key, as [`millis`] plus
    /// one; 0 if no stream waits.
    waiting: AtomicU64,
    /// Number of times the connection's task was polled while the client had sent no key.
    turn: AtomicU32,
    requests: AtomicU64,
    /// Length of the current request's head in bytes, and whether the head is ambiguous; 0 if the head was not
    /// observed.
    head: AtomicU64,
    /// True if the running request has arrived completely (HTTP/1.1).
    is_whole: AtomicBool,
}

impl Activity {
    pub(crate) fn new(place: Arc<Place>) -> Self {
        let activity = Self {
            place,
            phase: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            taken: AtomicUsize::new(0),
            waiting: AtomicU64::new(0),
            turn: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            head: AtomicU64::new(0),
            is_whole: AtomicBool::new(true),
        };
        activity.set(Phase::Fresh);
        activity
    }

    pub(crate) fn set(&self, phase: Phase) {
        self.phase.store(millis() << 2 | phase as u64, Relaxed);
    }

    pub(crate) fn phase(&self) -> Phase {
        self.get().0
    }

    fn get(&self) -> (Phase, u64) {
        let word = self.phase.load(Relaxed);
        (PHASES[(word & 3) as usize], word >> 2)
    }

    /// Returns the time until the next deadline, but at most `look`, because another phase with an earlier deadline may
    /// begin in the meantime.
    pub(crate) fn remaining(&self, limits: &Limits, look: Duration) -> Duration {
        let now = millis();
        let left = |since: u64, limit: Duration| limit.saturating_sub(Duration::from_millis(now.saturating_sub(since)));
        let (phase, since) = self.get();
        let of_phase = match phase {
            Phase::Idle => left(since, limits.idle),
            Phase::Fresh => left(since, limits.first_byte),
            Phase::Head => left(since, limits.request),
            Phase::Busy => look,
        };
        let is_stranger = self.place.is_stranger();
        let (write, look) = match is_stranger {
            true => (limits.write.min(STRANGER_WRITE), look.min(STRANGER_WRITE)),
            false => (limits.write, look),
        };
        let of_writing = |since: &AtomicU64| match since.load(Relaxed) {
            0 => look,
            since => left(since - 1, write),
        };
        let of_streams = if is_stranger { of_writing(&self.waiting) } else { look };
        of_phase.min(of_writing(&self.stuck)).min(of_streams).min(look)
    }

    /// Records that the connection's task is being polled, by an increase of the number of polls (`turn`).
    pub(crate) fn begin_turn(&self) {
        if self.place.is_stranger() {
            self.turn.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn turn(&self) -> u32 {
        self.turn.load(Relaxed)
    }

    /// Records the time since which a stream has sent no piece of its answer, on a connection without a key; None if no
    /// stream waits.
    pub(crate) fn set_waiting(&self, since: Option<u64>) {
        self.waiting.store(since.map_or(0, |since| since + 1), Relaxed);
    }

    /// True if the client has sent no key (a stranger), and does not read available data of an answer.
    pub(crate) fn is_unread_stranger(&self) -> bool {
        self.place.is_stranger() && (self.is_stuck() || self.waiting.load(Relaxed) > 0)
    }

    /// True if the connection's socket accepts no bytes, as the client does not read.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Relaxed) > 0
    }

    fn unstick(&self) {
        self.stuck.store(0, Relaxed);
        self.place.release(UNREAD);
    }

    /// Records the result of a write to the connection's socket: the number of accepted bytes, or that the socket
    /// accepts none.
    pub(crate) fn wrote(&self, written: &Poll<std::io::Result<usize>>) {
        let is_stuck = self.is_stuck();
        match written {
            Poll::Pending if !is_stuck => {
                self.taken.store(0, Relaxed);
                self.stuck.store(millis() + 1, Relaxed);
                self.place.hold(UNREAD);
            }
            // A client that takes a byte now and then still counts as not reading.
            Poll::Ready(Ok(bytes)) if is_stuck => {
                let taken = self.taken.load(Relaxed) + bytes;
                self.taken.store(taken, Relaxed);
                if taken >= PIECE {
                    self.unstick();
                }
            }
            _ => {}
        }
    }

    /// Records that the connection's write buffer is empty, so that no data wait for the client to read.
    pub(crate) fn record_flush(&self) {
        if self.is_stuck() {
            self.unstick();
        }
        if self.phase() == Phase::Busy && self.requests.load(Relaxed) == 0 {
            self.set(Phase::Idle);
        }
    }

    /// Records the beginning of a request. `is_whole`: true if the whole request has already arrived.
    pub(crate) fn begin(&self, is_whole: bool) {
        self.requests.fetch_add(1, Relaxed);
        self.is_whole.store(is_whole, Relaxed);
        self.set(Phase::Busy);
    }

    /// Records the end of a request. Returns true if no other request is running on the connection.
    pub(crate) fn end(&self) -> bool {
        self.requests.fetch_sub(1, Relaxed) == 1
    }

    /// Records the arrival of a piece of a request's body. `is_whole`: true for the last piece.
    pub(crate) fn body_came(&self, is_whole: bool) {
        self.is_whole.store(is_whole, Relaxed);
    }

    /// True if the running request has arrived completely.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Relaxed)
    }

    pub(crate) fn set_head(&self, seen: HeadSummary) {
        self.head.store((seen.bytes as u64) << 1 | u64::from(seen.is_ambiguous), Relaxed);
    }

    /// Removes and returns the summary of the current request's head; None if the head was not observed.
    pub(crate) fn take_head(&self) -> Option<HeadSummary> {
        match self.head.swap(0, Relaxed) {
            0 => None,
            word => Some(HeadSummary { bytes: (word >> 1) as usize, is_ambiguous: word & 1 == 1 }),
        }
    }
}

thread_local! {
    /// Progress of the stream that is being polled on this thread: the number of pieces of its answer sent so far, and
    /// true if it waits for the handler's next piece.
    static PIECES: Cell<(u32, bool)> = const { Cell::new((0, true)) };
}

/// Records that the stream being polled on this thread requested the next piece of its answer from the handler.
/// `has_got`: true if a piece was available.
pub(crate) fn asked(has_got: bool) {
    PIECES.set(match PIECES.get() {
        (pieces, _) if has_got => (pieces.wrapping_add(1), false),
        (pieces, _) => (pieces, true),
    });
}

/// Executor of HTTP/2 streams, which resets a stream whose client does not read available data.
#[derive(Clone)]
pub(crate) struct Streams {
    /// Time limit for a client to read a piece of an answer.
    pub(crate) write: Duration,
    pub(crate) counts: Arc<Counts>,
}

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Streams {
    fn execute(&self, stream: S) {
        let Self { write, counts } = self.clone();
        drop(tokio::spawn(async move {
            let mut stream = pin!(stream);
            let mut waiting = Stall { write, pieces: (0, true), since: time::Instant::now(), timer: None };
            let taken = std::future::poll_fn(|context| {
                let before = PIECES.replace(waiting.pieces);
                let done = stream.as_mut().poll(context);
                let pieces = PIECES.replace(before);
                match done {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending => waiting.look(pieces, context).map(|()| false),
                }
            });
            if !taken.await {
                counts.stalled_streams.fetch_add(1, Relaxed);
                tracing::debug!("a stream was reset: its client did not take the answer in time");
            }
        }));
    }
}

/// Timer that finds out whether a stream has waited too long for its client to read a piece of the answer.
struct Stall {
    write: Duration,
    pieces: (u32, bool),
    since: time::Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    /// Checks whether the client has needed longer than the time limit to read a piece of the answer, in which case the
    /// result is ready; otherwise pending, with a timer set if necessary. `pieces`: the number of pieces sent so far,
    /// and true if the stream waits for the handler's next piece.
    fn look(&mut self, pieces: (u32, bool), context: &mut Context<'_>) -> Poll<()> {
        if pieces != self.pieces {
            (self.pieces, self.since) = (pieces, time::Instant::now());
        }
        if self.pieces.1 {
            return Poll::Pending;
        }
        let until = self.since + self.write;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.is_elapsed() && timer.deadline() < until {
            timer.as_mut().reset(until);
        }
        // A timer set for an earlier piece fires sooner: it is set again then.
        while timer.as_mut().poll(context).is_ready() {
            if until <= time::Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Places;

    fn limits() -> Limits {
        let second = Duration::from_secs(1);
        Limits {
            idle: 75 * second,
            request: 10 * second,
            write: 20 * second,
            first_byte: 5 * second,
            max_head: 1,
            max_headers: 1,
            streams: 1,
            half_close: false,
        }
    }

    #[test]
    fn each_phase_has_its_limit() {
        let (second, limits) = (Duration::from_secs(1), limits());
        let activity = Activity::new(Places::new(1, 1).beyond());
        let about = |seconds: u32| {
            let left = activity.remaining(&limits, 99 * second);
            assert!(left <= second * seconds && left + second > second * seconds, "{seconds}: {left:?}");
        };
        for (phase, seconds) in [(Phase::Fresh, 5), (Phase::Idle, 75), (Phase::Head, 10), (Phase::Busy, 99)] {
            activity.set(phase);
            assert_eq!(activity.phase(), phase);
            about(seconds);
        }
        activity.wrote(&Poll::Pending);
        about(20);
        activity.wrote(&Poll::Ready(Ok(PIECE - 1)));
        about(20);
        activity.wrote(&Poll::Ready(Ok(1)));
        about(99);
        activity.wrote(&Poll::Pending);
        activity.record_flush();
        about(75);
    }
}
