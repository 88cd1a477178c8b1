//! Connection of a client: hyper handles HTTP on it, and a watchdog closes it when the client is too slow.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::header::{CONNECTION, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use crate::Denial;
use crate::activity::{self, Streams};
use crate::activity::{Activity, PIECE, Phase};
use crate::body::RequestBody;
use crate::heads::{self, Head};
use crate::heads::{GRACE, Protocol};
use crate::ledger::{Counts, HTTP2, Ledger, Limits, STRANGER_READ};

/// Number of bytes that are read at once from a client, in addition to a request's head. With this size, a body that
/// arrives in one piece, as most prompts do, is not copied.
const READ: usize = 64 << 10;

/// Time allowed to a client for closing its connection after the server has asked for it.
const GOODBYE: Duration = Duration::from_secs(1);

/// Number of bytes of a request with a too large head that are read and dropped. The client can then still read the
/// refusal.
const THROWN_AWAY: usize = 256 << 10;

/// Settings and limits under which a client's connection is served.
pub(crate) struct Terms {
    pub(crate) protocol: Protocol,
    pub(crate) limits: Limits,
    pub(crate) counts: Arc<Counts>,
    pub(crate) activity: Arc<Activity>,
    /// Signal to close the connection after its running requests.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Wrapper of a client's socket or TLS stream that records reads and writes in [`Activity`], for time limits.
struct Monitor<S, B> {
    stream: S,
    activity: Arc<Activity>,
    counts: Arc<Counts>,
    protocol: Protocol,
    limits: Limits,
    head: Head,
    /// Number of bytes of the head counted in the memory limit, on a connection without a key.
    held: usize,
    /// Number of the poll of the connection's task in which a part of a head was last read, on a connection without a
    /// key.
    turn: u32,
    /// Record of the open HTTP/2 streams, until the client sends a key; None afterwards.
    ledger: Option<Box<Ledger>>,
    refuse: fn(Denial) -> Response<B>,
}

impl<S: AsyncRead + AsyncWrite + Unpin, B: Body<Data = Bytes> + Unpin> Monitor<S, B> {
    /// Returns the record of the open HTTP/2 streams, if the client has sent no key yet; None otherwise.
    fn ledger(&mut self) -> Option<&mut Ledger> {
        if self.ledger.is_some() && !self.activity.place.is_stranger() {
            self.ledger = None;
        }
        self.ledger.as_deref_mut()
    }

    /// Reads HTTP/2 frames from a client without a key, up to the end of one request.
    fn poll_frames(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let Some(ledger) = &mut self.ledger else { return Poll::Ready(Ok(())) };
        if ledger.is_over(self.activity.turn()) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(poll_some(&mut self.stream, context, buffer, ledger.most()))?;
        let came = ledger.came(&buffer.filled()[before..], &self.activity.place);
        self.activity.set_waiting(ledger.waiting_since());
        Poll::Ready(came.map_err(|_| {
            self.counts.stranger_streams.fetch_add(1, Relaxed);
            tracing::debug!("a connection was closed: it opened too many streams before it sent a key");
            std::io::Error::from(std::io::ErrorKind::PermissionDenied)
        }))
    }

    /// Records that the first `count` bytes of the buffers `bytes` were sent over HTTP/2 to a client without a key.
    fn went(&mut self, bytes: &[std::io::IoSlice<'_>], mut count: usize) {
        if self.ledger().is_none() {
            return;
        }
        let Some(ledger) = &mut self.ledger else { return };
        for bytes in bytes {
            let part = count.min(bytes.len());
            ledger.went(&bytes[..part], &self.activity.place);
            count -= part;
        }
        self.activity.set_waiting(ledger.waiting_since());
    }

    /// Returns the maximum number of bytes of an HTTP/1.1 request to read at once.
    fn most(&self, phase: Phase) -> usize {
        // One byte more shows that a head is too large.
        let of_head = if phase == Phase::Head {
            self.limits.max_head.saturating_add(1).saturating_sub(self.head.bytes()).max(1)
        } else {
            usize::MAX
        };
        if self.activity.place.is_stranger() { of_head.min(STRANGER_READ) } else { of_head }
    }

    /// Counts the bytes of an incomplete head in the memory limit for clients without a key.
    fn hold_head(&mut self) {
        self.turn = self.activity.turn();
        let bytes = 2 * self.head.bytes().next_multiple_of(STRANGER_READ);
        if bytes > self.held.max(2 * STRANGER_READ) {
            self.activity.place.hold(bytes - self.held);
            self.held = bytes;
        }
    }

    /// Refuses a request with a too large head: sends the refusal as the answer, reads and drops the rest of the head,
    /// and closes the connection.
    fn refuse_head(&mut self, context: &mut Context<'_>) -> std::io::Error {
        let answer = heads::raw((self.refuse)(heads::too_large(self.limits.max_head, self.limits.max_headers)));
        // Bytes after a request that was answered early may belong to its body; a client that reads no answer gets
        // none.
        if self.activity.is_whole() && !self.activity.is_stuck() {
            let _ = Pin::new(&mut self.stream).poll_write(context, &answer);
            let _ = Pin::new(&mut self.stream).poll_flush(context);
        }
        let (mut bytes, mut thrown) = ([0; STRANGER_READ], 0);
        while thrown < THROWN_AWAY {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => thrown += buffer.filled().len(),
                _ => break,
            }
        }
        let _ = Pin::new(&mut self.stream).poll_shutdown(context);
        std::io::Error::from(std::io::ErrorKind::InvalidData)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, B: Body<Data = Bytes> + Unpin> AsyncRead for Monitor<S, B> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        let phase = this.activity.phase();
        let filled = buffer.filled().len();
        if this.protocol == Protocol::Http1 {
            // Other connections may have to evict this one before it reads more.
            if phase == Phase::Head && this.turn == this.activity.turn() && this.activity.place.is_stranger() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let most = this.most(phase);
            ready!(poll_some(&mut this.stream, context, buffer, most))?;
        } else if this.ledger().is_some() {
            ready!(this.poll_frames(context, buffer))?;
        } else {
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        }
        let bytes = &buffer.filled()[filled..];
        if this.protocol == Protocol::Http2 {
            // Bytes between two requests do not make the connection less idle.
            if phase == Phase::Fresh {
                this.activity.set(Phase::Idle);
            }
        } else if phase != Phase::Busy {
            if phase != Phase::Head {
                this.activity.set(Phase::Head);
                this.head = Head::default();
            }
            if let Some(seen) = this.head.take(bytes) {
                this.activity.set_head(seen);
            } else if this.head.bytes() > this.limits.max_head
                && (this.activity.is_whole() || this.activity.place.is_stranger())
            {
                return Poll::Ready(Err(this.refuse_head(context)));
            } else if this.activity.place.is_stranger() {
                this.hold_head();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, B: Body<Data = Bytes> + Unpin> AsyncWrite for Monitor<S, B> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.activity.wrote(&written);
        if let Poll::Ready(Ok(count)) = written {
            self.went(&[std::io::IoSlice::new(bytes)], count);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.activity.record_flush();
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
        self.activity.wrote(&written);
        if let Poll::Ready(Ok(count)) = written {
            self.went(bytes, count);
        }
        written
    }
}

/// Reads at most `most` bytes from the stream into `buffer`.
fn poll_some<S: AsyncRead + Unpin>(
    stream: &mut S,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
    most: usize,
) -> Poll<std::io::Result<()>> {
    if most >= buffer.remaining() {
        return Pin::new(stream).poll_read(context, buffer);
    }
    let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
    let read = Pin::new(stream).poll_read(context, &mut part);
    let count = part.filled().len();
    buffer.advance(count);
    read
}

/// Guard of a running request. The request counts as running until its answer has been sent and this value is dropped.
struct Exchange {
    activity: Arc<Activity>,
    protocol: Protocol,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // An HTTP/1.1 connection is idle as soon as all is written.
        if self.activity.end() && self.protocol == Protocol::Http2 {
            self.activity.set(Phase::Idle);
        }
    }
}

/// Body of an answer. Its request counts as running until the body is dropped.
struct AnswerBody<B> {
    body: B,
    /// Unsent rest of the handler's current piece of the body. It is sent in parts of at most [`PIECE`] bytes, each
    /// with a time limit.
    rest: Bytes,
    work: Exchange,
}

impl<B: Body<Data = Bytes> + Unpin> Body for AnswerBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if self.work.protocol == Protocol::Http1 {
            return Pin::new(&mut self.body).poll_frame(context);
        }
        if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            activity::asked(polled.is_ready());
            match ready!(polled) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                over => return Poll::Ready(over),
            }
        } else {
            activity::asked(true);
        }
        let most = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(most)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(body.lower() + rest);
        hint
    }
}

/// Serves requests on `stream` until the client leaves or is too slow, or until the connection is told to end and its
/// requests have ended. `shows_key`: function that returns true for a request with a valid key; `refuse`: function that
/// makes the answer to a request with an invalid head.
pub(crate) async fn serve<S, F, B>(
    stream: S,
    terms: Terms,
    handle: impl Fn(Request<RequestBody>, Instant) -> F,
    shows_key: impl Fn(&Request<hyper::body::Incoming>) -> bool,
    refuse: fn(Denial) -> Response<B>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Terms { protocol, limits, counts, activity, stop } = terms;
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        if activity.place.is_stranger() && shows_key(&request) {
            activity.place.make_known();
        }
        let checked = heads::check(&request, activity.take_head(), limits.max_head, limits.max_headers);
        // Two parties may disagree on where a body with a coding ends, so the connection ends with it.
        let mut closes = request.headers().contains_key(TRANSFER_ENCODING) || checked.is_err();
        closes &= protocol == Protocol::Http1;
        activity.begin(request.body().is_end_stream());
        let work = Exchange { activity: activity.clone(), protocol };
        let answer = match checked {
            Ok(()) => {
                let request = request.map(|body| RequestBody::new(body, activity.clone()));
                Ok(handle(request, Instant::now() + limits.request))
            }
            Err(denied) => Err(refuse(denied)),
        };
        async move {
            let mut answer = match answer {
                Ok(answer) => answer.await,
                Err(refused) => refused,
            };
            if closes {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(answer.map(|body| AnswerBody { body, rest: Bytes::new(), work }))
        }
    });
    let stream = TokioIo::new(Monitor {
        stream,
        activity: activity.clone(),
        counts: counts.clone(),
        protocol,
        limits,
        head: Head::default(),
        held: 0,
        turn: 0,
        ledger: (protocol == Protocol::Http2 && activity.place.is_stranger()).then(Box::default),
        refuse,
    });
    match protocol {
        Protocol::Http1 => {
            let mut http = http1::Builder::new();
            http.header_read_timeout(None).half_close(limits.half_close).max_headers(limits.max_headers);
            http.max_buf_size(limits.max_head.saturating_add(READ));
            let connection = http.serve_connection(stream, service);
            watch(pin!(connection), http1::Connection::graceful_shutdown, &activity, &counts, limits, stop).await;
        }
        // Boxed: otherwise every HTTP/1.1 connection would be as large.
        Protocol::Http2 => {
            activity.place.hold(HTTP2);
            Box::pin(async {
                let mut http = http2::Builder::new(Streams { write: limits.write, counts: counts.clone() });
                http.timer(TokioTimer::new())
                    .max_header_list_size(u32::try_from(limits.max_head).unwrap_or(u32::MAX))
                    // The window for bytes that a client may send before they are read.
                    .initial_stream_window_size(512 << 10)
                    .initial_connection_window_size(1 << 20)
                    .max_concurrent_streams(limits.streams)
                    .keep_alive_interval(limits.idle.min(Duration::from_secs(30)))
                    .keep_alive_timeout(Duration::from_secs(20));
                let connection = http.serve_connection(stream, service);
                watch(pin!(connection), http2::Connection::graceful_shutdown, &activity, &counts, limits, stop).await;
            })
            .await
        }
    }
}

async fn watch<C: Future>(
    mut connection: Pin<&mut C>,
    end: impl Fn(Pin<&mut C>),
    activity: &Activity,
    counts: &Counts,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let look = limits.request.min(limits.write).min(limits.idle);
    let mut ending = *stop.borrow();
    let mut goodbye = false;
    // A first request that has arrived or is on its way when the server stops is answered, and nothing after it.
    let mut awaits_first = ending;
    let left = activity.remaining(&limits, look);
    let mut timer = pin!(tokio::time::sleep(if awaits_first { left.min(GRACE) } else { left }));
    loop {
        tokio::select! {
            biased;
            // Errors are the client's: it left, or sent invalid HTTP, which hyper has answered.
            is_over = std::future::poll_fn(|context| {
                activity.begin_turn();
                match connection.as_mut().poll(context) {
                    Poll::Ready(_) => Poll::Ready(true),
                    Poll::Pending if awaits_first && activity.phase() != Phase::Fresh => Poll::Ready(false),
                    Poll::Pending => Poll::Pending,
                }
            }) => {
                if is_over {
                    return;
                }
                awaits_first = false;
                end(connection.as_mut());
            }
            changed = stop.changed(), if !ending => {
                ending = changed.is_err() || *stop.borrow();
                if ending && activity.phase() == Phase::Fresh {
                    awaits_first = true;
                    let left = activity.remaining(&limits, look).min(GRACE);
                    timer.as_mut().reset(tokio::time::Instant::now() + left);
                } else if ending {
                    end(connection.as_mut());
                }
            }
            () = timer.as_mut() => {
                if std::mem::take(&mut awaits_first) {
                    end(connection.as_mut());
                }
                let mut left = activity.remaining(&limits, look);
                if left.is_zero() {
                    if !goodbye && activity.is_unread_stranger() {
                        counts.unread_answers.fetch_add(1, Relaxed);
                    }
                    // A client of HTTP/2 is informed which of its requests were accepted.
                    if goodbye || activity.phase() != Phase::Idle {
                        return;
                    }
                    (goodbye, left) = (true, GOODBYE);
                    end(connection.as_mut());
                }
                timer.as_mut().reset(tokio::time::Instant::now() + left);
            }
        }
    }
}
