//! HTTP/2 streams: a stream whose client does not take its answer is reset, without closing its connection.
//!
//! hyper sends an answer piece by piece, as the flow-control windows of stream and connection allow, and waits for them
//! without a limit. It runs each stream on an executor given by the server: this one checks, whenever a stream is
//! pending, whether it waits for the client, and drops it after too long, which resets the stream and frees its memory.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::limits::Counts;

thread_local! {
    /// The number of pieces that the stream being polled has sent of its answer, and whether it waits for the next one.
    static PIECES: Cell<(u32, bool)> = const { Cell::new((0, true)) };
}

/// Records that the stream being polled asked for the next piece of its answer.
pub(crate) fn asked(has_got: bool) {
    PIECES.set(match PIECES.get() {
        (pieces, _) if has_got => (pieces.wrapping_add(1), false),
        (pieces, _) => (pieces, true),
    });
}

/// An executor of streams, each run for as long as its client takes the available data.
#[derive(Clone)]
pub(crate) struct Streams {
    /// The time limit for a piece.
    pub(crate) write: Duration,
    pub(crate) counts: Arc<Counts>,
}

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Streams {
    fn execute(&self, stream: S) {
        let Self { write, counts } = self.clone();
        drop(tokio::spawn(async move {
            let mut stream = pin!(stream);
            let mut waiting = Stall { write, pieces: (0, true), since: Instant::now(), timer: None };
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

/// A stream that may be waiting for its client.
struct Stall {
    write: Duration,
    pieces: (u32, bool),
    since: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    /// Ready when the client has taken too long for a piece.
    fn look(&mut self, pieces: (u32, bool), context: &mut Context<'_>) -> Poll<()> {
        if pieces != self.pieces {
            (self.pieces, self.since) = (pieces, Instant::now());
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
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    }
}
