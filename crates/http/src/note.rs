//! Notes of what happens on a connection, and since when.
//!
//! A timer for every request would cost more than many another part of it. So what happens only notes the time, and one
//! timer a connection looks at the note when the earliest possible deadline is over.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::heads::HeadSummary;
use crate::limits::{Limits, STRANGER_WRITE, UNREAD};
use crate::places::Place;

/// Bytes that a client must take within the write limit, or all that is there for it.
pub(crate) const PIECE: usize = 16 << 10;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since the first call.
pub(crate) fn millis() -> u64 {
    START.elapsed().as_millis() as u64
}

/// A connection's phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No request has begun since the last one.
    Idle,
    /// The head of a request is coming.
    Head,
    /// A request is at work: whoever does it keeps its limits.
    Busy,
    /// Nothing has come yet.
    Fresh,
}

const PHASES: [Phase; 4] = [Phase::Idle, Phase::Head, Phase::Busy, Phase::Fresh];

/// The phase, since when, how many requests are at work, and what is known of the client.
pub(crate) struct Note {
    /// The connection's place: whether the client has shown a key.
    pub(crate) place: Arc<Place>,
    phase: AtomicU64,
    /// The time since which the socket takes nothing more, as [`millis`] and one; 0 if it takes something.
    stuck: AtomicU64,
    /// Bytes that the socket has taken since then.
    taken: AtomicUsize,
    /// The time since which a stream of a stranger's has got no piece of its answer, as [`millis`] and one; 0 if none waits.
    waiting: AtomicU64,
    /// The number of times that a stranger's connection had its turn.
    turn: AtomicU32,
    requests: AtomicU64,
    /// The head of the request that has just come, if it was seen: its length, and whether it is ambiguous.
    head: AtomicU64,
    /// True if all of the request that is at work has come (HTTP/1.1).
    is_whole: AtomicBool,
}

impl Note {
    pub(crate) fn new(place: Arc<Place>) -> Self {
        let note = Self {
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
        note.set(Phase::Fresh);
        note
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

    /// The time that is left, at most `look`: another phase may begin meanwhile and end sooner.
    pub(crate) fn left(&self, limits: &Limits, look: Duration) -> Duration {
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

    /// Notes that the connection's task has its turn.
    pub(crate) fn begin_turn(&self) {
        if self.place.is_stranger() {
            self.turn.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn turn(&self) -> u32 {
        self.turn.load(Relaxed)
    }

    /// Notes since when a stream of a stranger's has got no piece of its answer.
    pub(crate) fn set_waiting(&self, since: Option<u64>) {
        self.waiting.store(since.map_or(0, |since| since + 1), Relaxed);
    }

    /// True if the client has shown no key, and does not take what is there for it.
    pub(crate) fn is_unread_stranger(&self) -> bool {
        self.place.is_stranger() && (self.is_stuck() || self.waiting.load(Relaxed) > 0)
    }

    /// True if the socket takes nothing more.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Relaxed) > 0
    }

    fn unstick(&self) {
        self.stuck.store(0, Relaxed);
        self.place.release(UNREAD);
    }

    /// Notes the outcome of a write.
    pub(crate) fn wrote(&self, written: &Poll<std::io::Result<usize>>) {
        let is_stuck = self.is_stuck();
        match written {
            Poll::Pending if !is_stuck => {
                self.taken.store(0, Relaxed);
                self.stuck.store(millis() + 1, Relaxed);
                self.place.hold(UNREAD);
            }
            // A client that takes a byte now and then has not begun to read.
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

    /// Notes that all is written that is there.
    pub(crate) fn note_flush(&self) {
        if self.is_stuck() {
            self.unstick();
        }
        if self.phase() == Phase::Busy && self.requests.load(Relaxed) == 0 {
            self.set(Phase::Idle);
        }
    }

    /// Notes that a request begins.
    pub(crate) fn begin(&self, is_whole: bool) {
        self.requests.fetch_add(1, Relaxed);
        self.is_whole.store(is_whole, Relaxed);
        self.set(Phase::Busy);
    }

    /// Notes that a request is over. True if there are no others.
    pub(crate) fn end(&self) -> bool {
        self.requests.fetch_sub(1, Relaxed) == 1
    }

    /// Notes that a piece of the body has come. `is_whole`: true if it is the last one.
    pub(crate) fn body_came(&self, is_whole: bool) {
        self.is_whole.store(is_whole, Relaxed);
    }

    /// True if all of the request has come.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Relaxed)
    }

    pub(crate) fn set_head(&self, seen: HeadSummary) {
        self.head.store((seen.bytes as u64) << 1 | u64::from(seen.is_ambiguous), Relaxed);
    }

    /// The head of the request that has just come, if it was seen.
    pub(crate) fn take_head(&self) -> Option<HeadSummary> {
        match self.head.swap(0, Relaxed) {
            0 => None,
            word => Some(HeadSummary { bytes: (word >> 1) as usize, is_ambiguous: word & 1 == 1 }),
        }
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
        let note = Note::new(Places::new(1, 1).beyond());
        let about = |seconds: u32| {
            let left = note.left(&limits, 99 * second);
            assert!(left <= second * seconds && left + second > second * seconds, "{seconds}: {left:?}");
        };
        for (phase, seconds) in [(Phase::Fresh, 5), (Phase::Idle, 75), (Phase::Head, 10), (Phase::Busy, 99)] {
            note.set(phase);
            assert_eq!(note.phase(), phase);
            about(seconds);
        }
        note.wrote(&Poll::Pending);
        about(20);
        note.wrote(&Poll::Ready(Ok(PIECE - 1)));
        about(20);
        note.wrote(&Poll::Ready(Ok(1)));
        about(99);
        note.wrote(&Poll::Pending);
        note.note_flush();
        about(75);
    }
}
