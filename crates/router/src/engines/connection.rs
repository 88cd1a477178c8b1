//! HTTP/1.1 connection to an engine, for one request at a time.
//!
//! The task that handles the client's request reads and writes the connection itself, without a further task or a
//! channel, and is woken only by the socket. Each thread has one read buffer for all its connections, so that ten
//! thousand open answers need no buffers of their own.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use hyper::Method;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::Error as TlsError;
use tokio_rustls::rustls::pki_types::ServerName;

use super::address::Address;
use super::answer::{BodyPart, Framing, Head, parse, take, take_from};
use super::fault::Fault;

/// Size of each thread's buffer for reading from connections, in bytes.
const READ: usize = 64 << 10;

/// Maximum size of the head of an engine's answer, in bytes.
const MAX_HEAD: usize = 256 << 10;

/// Size of the first part of an answer's head, in bytes, that is parsed after every read, so that data other than HTTP
/// are rejected early.
const BEGINNING: usize = 1 << 10;

/// Number of bytes read from a connection before the task yields to others, so that an engine that sends continuously
/// cannot occupy a thread.
const TURN: usize = 64 << 10;

/// Maximum number of interim answers, such as `100 Continue`, before the final one.
const MAX_INTERIM: u8 = 16;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into_boxed_slice());
}

/// True if a failure to connect was caused by the engine's TLS certificate.
fn is_of_certificate(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(TlsError::InvalidCertificate(_) | TlsError::NoCertificatesPresented))
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// HTTP/1.1 connection to an engine.
pub(crate) struct Connection {
    stream: Stream,
    /// Bytes read from the connection that are not parsed yet.
    rest: BytesMut,
    /// Number of bytes read since the task last yielded to others.
    in_turn: usize,
    /// Number of interim answers (status 1xx) to the current request so far.
    interim: u8,
    /// Part of the request that had not been sent when the head of the answer arrived, if any.
    unsent: SendFailure,
    /// Time at which the connection became idle.
    pub(crate) idle_since: Instant,
    /// Number of requests sent on the connection.
    pub(crate) served: u32,
}

/// Result of a failure to send the whole of a request before its answer begins: the bytes that are still unsent, if
/// any.
enum SendFailure {
    /// No failure: the whole request has been sent.
    Nothing,
    /// Unsent bytes, which are sent while the answer is being read.
    Rest(Bytes),
    /// Unsent bytes that were abandoned and will never be sent, so that the connection cannot be reused.
    Given,
}

impl Connection {
    /// Opens a connection to an engine, with TLS if the address requires TLS.
    pub(crate) async fn connect(
        address: &Address,
        tls: Option<&Arc<tokio_rustls::rustls::ClientConfig>>,
        timeout: Duration,
    ) -> Result<Self, Fault> {
        let connect = async {
            let stream = TcpStream::connect((&*address.host, address.port)).await?;
            stream.set_nodelay(true)?;
            let stream = match tls.filter(|_| address.https) {
                None => Stream::Plain(stream),
                Some(tls) => {
                    let name = address.certified.as_ref().unwrap_or(&address.host).clone();
                    let name = ServerName::try_from(name).map_err(io::Error::other)?;
                    Stream::Tls(Box::new(TlsConnector::from(tls.clone()).connect(name, stream).await?))
                }
            };
            Ok::<_, io::Error>(stream)
        };
        let stream = match tokio::time::timeout(timeout, connect).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if is_of_certificate(&error) => return Err(Fault::Certificate(error.to_string())),
            Ok(Err(error)) => return Err(Fault::Connect(error.to_string())),
            Err(_) => return Err(Fault::ConnectTimeout),
        };
        let (rest, unsent) = (BytesMut::new(), SendFailure::Nothing);
        Ok(Self { stream, rest, in_turn: 0, interim: 0, unsent, idle_since: Instant::now(), served: 0 })
    }

    /// True if an idle connection can be used for a request: the connection is open, and no data have arrived on it.
    pub(crate) fn is_quiet(&mut self) -> bool {
        if !self.rest.is_empty() {
            return false;
        }
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let context = &mut Context::from_waker(Waker::noop());
        self.poll_read(context, &mut buffer).is_pending()
    }

    /// Sends a request and reads the head of its answer at the same time, as an engine may answer before it has read
    /// the whole request and then stop reading. `method`: the request's method.
    pub(crate) async fn ask(&mut self, head: &[u8], body: &[u8], method: &Method) -> Result<Head, Fault> {
        let (mut sent, mut sends) = (0, true);
        self.interim = 0;
        std::future::poll_fn(|context| {
            if sends {
                // One that is not written to any more may still have said why.
                sends = self.poll_send(context, [head, body], &mut sent).is_pending();
            }
            let answer = ready!(self.poll_head(context, method))
                // Nothing was sent that an engine could have acted on.
                .map_err(|fault| if sent == 0 && fault == Fault::Stale { Fault::Unsent } else { fault })?;
            self.unsent = match sent.checked_sub(head.len()).and_then(|sent| body.get(sent..)) {
                Some([]) if !sends => SendFailure::Nothing,
                // An engine that wants to close wants no more of what it refuses (RFC 9112, 9.3).
                Some(rest) if sends && (answer.keep || answer.status.as_u16() < 400) => {
                    SendFailure::Rest(Bytes::copy_from_slice(rest))
                }
                _ => SendFailure::Given,
            };
            self.served += 1;
            Poll::Ready(Ok(answer))
        })
        .await
    }

    /// Sends the unsent bytes of a request's head and body; `sent` counts the bytes sent so far.
    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        [head, body]: [&[u8]; 2],
        sent: &mut usize,
    ) -> Poll<io::Result<()>> {
        while *sent < head.len() + body.len() {
            let head_left = head.get(*sent..).unwrap_or_default();
            let body_left = &body[sent.saturating_sub(head.len())..];
            let written = ready!(self.poll_write(context, [head_left, body_left]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *sent += written;
        }
        match &mut self.stream {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    /// Sends the remaining bytes of a request while its answer is being read.
    fn poll_rest(&mut self, context: &mut Context<'_>) {
        let SendFailure::Rest(rest) = &self.unsent else { return };
        let (mut sent, rest) = (0, rest.clone());
        self.unsent = match self.poll_send(context, [&rest, &[]], &mut sent) {
            Poll::Pending => SendFailure::Rest(rest.slice(sent..)),
            Poll::Ready(Ok(())) => SendFailure::Nothing,
            Poll::Ready(Err(_)) => SendFailure::Given,
        };
    }

    /// Reads the head of the answer to a request of method `method`; interim answers (status 1xx) before it are
    /// skipped.
    fn poll_head(&mut self, context: &mut Context<'_>, method: &Method) -> Poll<Result<Head, Fault>> {
        loop {
            let read = match ready!(self.poll_more(context)) {
                Ok(0) | Err(_) if self.rest.is_empty() => return Poll::Ready(Err(self.end_fault())),
                Ok(0) => return Poll::Ready(Err(Fault::Malformed("its head ends too early"))),
                Ok(read) => read,
                Err(error) => return Poll::Ready(Err(Fault::Broken(error.to_string()))),
            };
            let new = &self.rest[self.rest.len() - read..];
            // A head is whole with the end of a line only; one that comes letter by letter is not read each time.
            if self.rest.len() <= BEGINNING || new.contains(&b'\n') {
                while !self.rest.is_empty()
                    && let Some((head, is_interim)) = parse(&mut self.rest, method)?
                {
                    if !is_interim {
                        return Poll::Ready(Ok(head));
                    }
                    self.interim += 1;
                    if self.interim > MAX_INTERIM {
                        return Poll::Ready(Err(Fault::Malformed("it sends interim answers without end")));
                    }
                }
            }
            if self.rest.len() > MAX_HEAD {
                return Poll::Ready(Err(Fault::Malformed("its head is too long")));
            }
        }
    }

    fn end_fault(&self) -> Fault {
        if self.served > 0 { Fault::Stale } else { Fault::Closed }
    }

    /// Reads the next piece of the answer's body; None after the body's end.
    pub(crate) fn poll_data(
        &mut self,
        context: &mut Context<'_>,
        framing: &mut Framing,
    ) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            if matches!(framing, Framing::Done | Framing::Length(0)) {
                *framing = Framing::Done;
                return Poll::Ready(None);
            }
            self.poll_rest(context);
            if !self.rest.is_empty() {
                match take(framing, &mut self.rest) {
                    Ok(data) if data.is_empty() => continue,
                    Ok(data) => return Poll::Ready(Some(Ok(data))),
                    Err(why) => return Poll::Ready(Some(Err(Fault::Malformed(why)))),
                }
            }
            let found = SCRATCH.with_borrow_mut(|scratch| {
                let mut buffer = ReadBuf::new(scratch);
                ready!(self.poll_read_in_turn(context, &mut buffer))?;
                Poll::Ready(Ok::<_, io::Error>(take_from(framing, buffer.filled(), &mut self.rest)))
            });
            return Poll::Ready(match ready!(found) {
                Ok(Ok(BodyPart::Data(data))) => Some(Ok(data)),
                Ok(Ok(BodyPart::Nothing)) => continue,
                Ok(Ok(BodyPart::End)) => match framing {
                    Framing::UntilClose => {
                        *framing = Framing::Done;
                        None
                    }
                    _ => Some(Err(Fault::Broken("it was closed before the end of the answer".to_owned()))),
                },
                Ok(Err(why)) => Some(Err(Fault::Malformed(why))),
                // Closing resets the connection where an engine has not read all of the request (RFC 9112, 9.6).
                Err(_) if matches!(framing, Framing::UntilClose) && !matches!(self.unsent, SendFailure::Nothing) => {
                    *framing = Framing::Done;
                    None
                }
                Err(error) => Some(Err(Fault::Broken(error.to_string()))),
            });
        }
    }

    /// True if the last request was sent and its answer was read completely, so that the connection can be reused.
    pub(crate) fn is_clean(&self) -> bool {
        self.rest.is_empty() && matches!(self.unsent, SendFailure::Nothing)
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(self.poll_read_in_turn(context, &mut buffer))?;
            self.rest.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }

    /// Reads from the connection; after [`TURN`] bytes, yields to other tasks first.
    fn poll_read_in_turn(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.in_turn >= TURN {
            self.in_turn = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = self.poll_read(context, buffer);
        self.in_turn = if read.is_pending() { 0 } else { self.in_turn + buffer.filled().len() };
        read
    }

    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>, pieces: [&[u8]; 2]) -> Poll<io::Result<usize>> {
        let slices = pieces.map(IoSlice::new);
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, &slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, &slices),
        }
    }
}

/// Idle connections to one engine, in a separate list for each thread.
pub(crate) struct Pool {
    shards: Box<[Mutex<VecDeque<Connection>>]>,
    most: usize,
    idle: Duration,
}

impl Pool {
    pub(crate) fn new(shards: usize, most: usize, idle: Duration) -> Self {
        Self { shards: (0..shards).map(|_| Mutex::default()).collect(), most, idle }
    }

    /// Removes and returns the most recently used idle connection of the thread `shard` that is still open; None if the
    /// thread has none.
    pub(crate) fn take(&self, shard: usize) -> Option<Connection> {
        let mut connections = self.shards.get(shard)?.lock();
        while let Some(mut connection) = connections.pop_back() {
            if connection.idle_since.elapsed() > self.idle {
                // Those below are older.
                connections.clear();
                return None;
            }
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// Adds an idle connection to the list of the thread `shard`, or closes the connection if the list is full.
    pub(crate) fn put(&self, shard: usize, mut connection: Connection) {
        let Some(shard) = self.shards.get(shard) else { return };
        connection.idle_since = Instant::now();
        let mut connections = shard.lock();
        if connections.len() < self.most {
            connections.push_back(connection);
        }
    }

    /// Closes the connections that have been idle too long. Returns the number of idle connections that stay open.
    pub(crate) fn sweep(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| {
                let mut connections = shard.lock();
                while connections.front().is_some_and(|first| first.idle_since.elapsed() > self.idle) {
                    connections.pop_front();
                }
                connections.len()
            })
            .sum()
    }

    /// Closes the idle connections of the thread `shard`.
    pub(crate) fn clear_shard(&self, shard: usize) {
        if let Some(shard) = self.shards.get(shard) {
            shard.lock().clear();
        }
    }

    /// Closes all idle connections to the engine.
    pub(crate) fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }
}
