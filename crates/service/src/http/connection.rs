//! One client's connection: hyper speaks HTTP on it, a watchdog ends it when the client takes too long.
//!
//! A timer set and cleared for every request would cost more than many a query. So what happens on the connection
//! only notes the time, and one timer a connection looks at the note when the earliest possible deadline is over.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::sync::watch;

use super::answer::Answer;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No request has begun since the last one.
    Idle,
    /// The head of a request is coming.
    Head,
    /// Its body is read, its answer made.
    Handling,
    /// The answer goes out.
    Answering,
    /// Nothing has come yet.
    Fresh,
}

const PHASES: [Phase; 5] = [Phase::Idle, Phase::Head, Phase::Handling, Phase::Answering, Phase::Fresh];

/// How long each may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) idle: Duration,
    pub(crate) request: Duration,
    /// From the connection to the first byte.
    pub(crate) first_byte: Duration,
}

/// The phase and since when, in one word: nobody else writes it, but the compiler cannot know.
#[derive(Debug)]
pub(crate) struct Note(AtomicU64);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Note {
    fn new() -> Self {
        let note = Self(AtomicU64::new(0));
        note.set(Phase::Fresh);
        note
    }

    fn set(&self, phase: Phase) {
        let since = START.elapsed().as_millis() as u64;
        self.0.store(since << 3 | phase as u64, Relaxed);
    }

    fn get(&self) -> (Phase, Instant) {
        let word = self.0.load(Relaxed);
        let phase = PHASES.get((word & 7) as usize).copied().unwrap_or(Phase::Idle);
        (phase, *START + Duration::from_millis(word >> 3))
    }

    fn deadline(&self, limits: &Limits) -> Instant {
        let (phase, since) = self.get();
        since
            + match phase {
                Phase::Idle => limits.idle,
                Phase::Fresh => limits.first_byte,
                Phase::Head | Phase::Answering => limits.request,
                // The handler keeps the limit of the body itself, as it can say why it gave up.
                Phase::Handling => limits.request * 2,
            }
    }

    /// A request's head is here. Returns until when its body must be.
    pub(crate) fn begin(&self, limits: &Limits) -> Instant {
        let (phase, since) = self.get();
        self.set(Phase::Handling);
        if phase == Phase::Head { since + limits.request } else { Instant::now() + limits.request }
    }
}

/// Notes what goes through.
struct Noted<S> {
    stream: S,
    note: Arc<Note>,
}

impl<S: Read + Unpin> Read for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() && matches!(self.note.get().0, Phase::Idle | Phase::Fresh) {
            self.note.set(Phase::Head);
        }
        read
    }
}

impl<S: Write + Unpin> Noted<S> {
    fn wrote(&self, written: &Poll<std::io::Result<usize>>) {
        // Slow readers of long answers are fine as long as they read.
        if matches!(written, Poll::Ready(Ok(1..))) && self.note.get().0 != Phase::Handling {
            self.note.set(Phase::Answering);
        }
    }
}

impl<S: Write + Unpin> Write for Noted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() && self.note.get().0 == Phase::Answering {
            self.note.set(Phase::Idle);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.wrote(&written);
        written
    }
}

/// Answers requests on `stream` until the client leaves, takes too long, or `stop` says to end and what runs is done.
pub(crate) async fn serve<S, F>(
    stream: S,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
    handle: impl Fn(Request<Incoming>, Instant) -> F,
) where
    S: Read + Write + Unpin,
    F: Future<Output = Response<Answer>>,
{
    let note = Arc::new(Note::new());
    let service = service_fn(|request| {
        let answer = handle(request, note.begin(&limits));
        let note = note.clone();
        async move {
            let answer = answer.await;
            note.set(Phase::Answering);
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    // A client that has said all it will say, as `nc` does, still gets its answer.
    http.header_read_timeout(None).half_close(true);
    let mut connection = pin!(http.serve_connection(Noted { stream, note: note.clone() }, service));
    let mut timer = pin!(tokio::time::sleep_until(note.deadline(&limits).min(Instant::now() + limits.request).into()));
    let mut ending = false;
    loop {
        tokio::select! {
            biased;
            // Errors are the client's: it left, or spoke no HTTP, which hyper has told it.
            _ = connection.as_mut() => return,
            _ = stop.changed(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = timer.as_mut() => {
                let deadline = note.deadline(&limits);
                let now = Instant::now();
                if deadline <= now {
                    return;
                }
                // A phase that begins meanwhile may end sooner than this one.
                timer.as_mut().reset(deadline.min(now + limits.request).into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { idle: Duration::from_secs(75), request: Duration::from_secs(10), first_byte: Duration::from_secs(5) };

    #[test]
    fn each_phase_has_its_limit() {
        let limits = LIMITS;
        let note = Note::new();
        for (phase, seconds) in
            [(Phase::Fresh, 5), (Phase::Idle, 75), (Phase::Head, 10), (Phase::Handling, 20), (Phase::Answering, 10)]
        {
            note.set(phase);
            let (got, since) = note.get();
            assert_eq!(got, phase);
            assert_eq!(note.deadline(&limits) - since, Duration::from_secs(seconds));
        }
    }

    #[test]
    fn a_body_has_what_the_head_left_of_the_time() {
        let limits = LIMITS;
        let note = Note::new();
        note.set(Phase::Head);
        let (_, since) = note.get();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(note.begin(&limits), since + limits.request);
        assert!(note.begin(&limits) > since + limits.request);
    }
}
