//! One client's connection: hyper speaks HTTP on it, a watchdog ends it when the client takes too long.
//!
//! What happens on the connection only notes the time, and one timer a connection looks at the note when the earliest
//! possible deadline is over: a timer for every request would cost more than many another part of it.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, TRANSFER_ENCODING};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::watch;

use super::heads::Head;
use crate::answer::Answer;
use crate::clock::millis;
use crate::refusal::Refusal;

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No request has begun since the last one.
    Idle,
    /// The head of a request is coming.
    Head,
    /// A request is at work: whoever does it keeps its limits.
    Busy,
    /// The client does not take what is there for it.
    Stuck,
    /// Nothing has come yet.
    Fresh,
}

const PHASES: [Phase; 5] = [Phase::Idle, Phase::Head, Phase::Busy, Phase::Stuck, Phase::Fresh];

/// How long each may take, and how much a head may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) idle: Duration,
    pub(super) request: Duration,
    pub(super) write: Duration,
    pub(super) first_byte: Duration,
    pub(super) max_head: usize,
    pub(super) max_headers: usize,
}

/// The phase, since when, and how many requests are at work.
#[derive(Debug)]
struct Note {
    phase: AtomicU64,
    requests: AtomicU64,
    /// Whether the head of the request that has just come says twice how long its body is.
    ambiguous: AtomicBool,
}

impl Note {
    fn new() -> Self {
        let note = Self { phase: AtomicU64::new(0), requests: AtomicU64::new(0), ambiguous: AtomicBool::new(false) };
        note.set(Phase::Fresh);
        note
    }

    fn set(&self, phase: Phase) {
        self.phase.store(millis() << 3 | phase as u64, Relaxed);
    }

    fn get(&self) -> (Phase, u64) {
        let word = self.phase.load(Relaxed);
        (PHASES.get((word & 7) as usize).copied().unwrap_or(Phase::Idle), word >> 3)
    }

    /// How much time is left, at most `look`: another phase may begin meanwhile and end sooner.
    fn left(&self, limits: &Limits, look: Duration) -> Duration {
        let (phase, since) = self.get();
        let limit = match phase {
            Phase::Idle => limits.idle,
            Phase::Fresh => limits.first_byte,
            Phase::Head => limits.request,
            Phase::Stuck => limits.write,
            Phase::Busy => return look,
        };
        limit.saturating_sub(Duration::from_millis(millis().saturating_sub(since))).min(look)
    }

    fn wrote<T>(&self, written: &Poll<std::io::Result<T>>) {
        match (written, self.get().0) {
            (Poll::Pending, Phase::Stuck) => {}
            (Poll::Pending, _) => self.set(Phase::Stuck),
            (Poll::Ready(Ok(_)), Phase::Stuck) => self.set(Phase::Busy),
            _ => {}
        }
    }
}

/// Notes what goes through.
struct Noted<S> {
    stream: S,
    note: Arc<Note>,
    head: Head,
}

thread_local! {
    /// Where the beginnings of requests are read, to be looked at.
    static LOOKED_AT: RefCell<Box<[u8]>> = RefCell::new(vec![0; 64 << 10].into_boxed_slice());
}

impl<S: Read + Unpin> Read for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let phase = self.note.get().0;
        if !matches!(phase, Phase::Idle | Phase::Fresh | Phase::Head) {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        // The beginning of a request is looked at on its way.
        LOOKED_AT.with_borrow_mut(|bytes| {
            let mut buffer = buffer;
            let room = buffer.remaining().min(bytes.len());
            let mut read = ReadBuf::new(&mut bytes[..room]);
            std::task::ready!(Pin::new(&mut self.stream).poll_read(context, read.unfilled()))?;
            if phase != Phase::Head {
                self.note.set(Phase::Head);
                self.head = Head::default();
            }
            self.head.look(read.filled());
            self.note.ambiguous.store(self.head.is_ambiguous(), Relaxed);
            buffer.put_slice(read.filled());
            Poll::Ready(Ok(()))
        })
    }
}

impl<S: Write + Unpin> Write for Noted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note.wrote(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() && self.note.requests.load(Relaxed) == 0 && self.note.get().0 == Phase::Busy {
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
        self.note.wrote(&written);
        written
    }
}

/// A request at work, until the last of its answer is handed over.
struct AtWork(Arc<Note>);

impl AtWork {
    fn new(note: &Arc<Note>) -> Self {
        note.requests.fetch_add(1, Relaxed);
        note.set(Phase::Busy);
        Self(note.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Relaxed);
    }
}

/// An answer's body, at work as long as it is there.
struct Watched {
    body: Answer,
    _work: AtWork,
}

impl http_body::Body for Watched {
    type Data = bytes::Bytes;
    type Error = crate::answer::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Answers requests on `stream` until the client leaves, takes too long, or `stop` says to end and what runs is done.
pub(super) async fn serve<S, F>(
    stream: S,
    protocol: Protocol,
    limits: Limits,
    stop: watch::Receiver<bool>,
    handle: impl Fn(Request<Incoming>, Instant) -> F,
) where
    S: Read + Write + Unpin + Send + 'static,
    F: Future<Output = Response<Answer>> + Send + 'static,
{
    let note = Arc::new(Note::new());
    let service = service_fn(|request| {
        let ambiguous = note.ambiguous.swap(false, Relaxed);
        // Where a body with a coding ends is for two parties to agree on: nothing follows it here.
        let closes = request.headers().contains_key(TRANSFER_ENCODING);
        let answer = (!ambiguous).then(|| handle(request, Instant::now() + limits.request));
        let work = AtWork::new(&note);
        async move {
            let mut answer = match answer {
                Some(answer) => answer.await,
                None => {
                    let message = "a request may have Content-Length or Transfer-Encoding, not both";
                    Refusal::bad("ambiguous_framing", message).closing().response()
                }
            };
            if closes && protocol == Protocol::Http1 {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(answer.map(|body| Watched { body, _work: work }))
        }
    });
    let stream = Noted { stream, note: note.clone(), head: Head::default() };
    match protocol {
        Protocol::Http1 => {
            let mut http = http1::Builder::new();
            // A client that closes its side has left, and its request is given up: an engine's time is dear.
            http.header_read_timeout(None).half_close(false).max_headers(limits.max_headers);
            http.max_buf_size(limits.max_head.max(8192));
            let connection = http.serve_connection(stream, service);
            watch(pin!(connection), http1::Connection::graceful_shutdown, &note, limits, stop).await;
        }
        // In a place of its own: every connection that speaks HTTP/1.1 would be as large.
        Protocol::Http2 => {
            Box::pin(async {
                let mut http = http2::Builder::new(TokioExecutor::new());
                http.timer(TokioTimer::new())
                    .max_header_list_size(u32::try_from(limits.max_head).unwrap_or(u32::MAX))
                    .initial_stream_window_size(1 << 20)
                    .initial_connection_window_size(4 << 20)
                    .max_concurrent_streams(1000)
                    .keep_alive_interval(limits.idle.min(Duration::from_secs(30)))
                    .keep_alive_timeout(Duration::from_secs(20));
                let connection = http.serve_connection(stream, service);
                watch(pin!(connection), http2::Connection::graceful_shutdown, &note, limits, stop).await;
            })
            .await
        }
    }
}

async fn watch<C: Future>(
    mut connection: Pin<&mut C>,
    end: impl Fn(Pin<&mut C>),
    note: &Note,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let look = limits.request.min(limits.write).min(limits.idle);
    let mut timer = pin!(tokio::time::sleep(note.left(&limits, look)));
    let mut ending = *stop.borrow();
    if ending {
        // What it asks is here already: it is answered, and nothing after it.
        let done = std::future::poll_fn(|context| Poll::Ready(connection.as_mut().poll(context).is_ready())).await;
        if done {
            return;
        }
        end(connection.as_mut());
    }
    loop {
        tokio::select! {
            biased;
            // Errors are the client's: it left, or spoke no HTTP, which hyper has told it.
            _ = connection.as_mut() => return,
            changed = stop.changed(), if !ending => {
                ending = changed.is_err() || *stop.borrow();
                if ending {
                    end(connection.as_mut());
                }
            }
            () = timer.as_mut() => {
                let left = note.left(&limits, look);
                if left.is_zero() {
                    return;
                }
                timer.as_mut().reset(tokio::time::Instant::now() + left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_limit() {
        let second = Duration::from_secs(1);
        let limits = Limits {
            idle: 75 * second,
            request: 10 * second,
            write: 20 * second,
            first_byte: 5 * second,
            max_head: 1,
            max_headers: 1,
        };
        let note = Note::new();
        for (phase, seconds) in
            [(Phase::Fresh, 5), (Phase::Idle, 75), (Phase::Head, 10), (Phase::Stuck, 20), (Phase::Busy, 99)]
        {
            note.set(phase);
            assert_eq!(note.get().0, phase);
            let left = note.left(&limits, 99 * second);
            assert!(left <= second * seconds && left + second > second * seconds, "{phase:?}: {left:?}");
        }
    }
}
