//! Clients that have said all they will say, and those that are gone: both end what they send in the same way.
//!
//! The end of what a client sends is kept from hyper, which would give the request up, until the answer is there. While
//! there is no answer, the client gets an interim one now and then: a socket that nobody reads any more answers that with
//! a reset, and the request is given up. docs/design/http.md has the reasons.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

use crate::note::Note;

/// The answer for a client that may be gone. Every client of HTTP/1.1 skips it (RFC 9110, 15.2).
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The time after a client's end of sending at which a body that has not come to its end is known to be cut off.
const SETTLE: Duration = Duration::from_millis(50);

/// The interval at which a reset of the connection is looked for.
const LOOK: Duration = Duration::from_millis(250);

/// The time until the first interim answer; each later one comes after twice the time, and at most [`MOST`].
const FIRST: Duration = Duration::from_secs(2);
const MOST: Duration = Duration::from_secs(16);

/// The interval of the system's keepalive probes to a client that may be gone and takes no interim answers.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A stream over a TCP socket.
pub(crate) trait Tcp {
    /// The socket.
    fn tcp(&self) -> &TcpStream;
}

impl Tcp for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Tcp for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// A client that sends nothing more, and waits for an answer or is gone.
pub(crate) struct HalfClose {
    timer: Pin<Box<Sleep>>,
    next: Instant,
    pause: Duration,
    /// The rest of an interim answer that has begun; empty if there is none.
    rest: &'static [u8],
}

impl HalfClose {
    pub(crate) fn new(socket: &TcpStream, note: &Note) -> Self {
        if !note.takes_interim() {
            let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
            let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
        }
        let wait = if note.is_whole() { LOOK } else { SETTLE };
        Self { timer: Box::pin(sleep(wait)), next: Instant::now() + FIRST, pause: FIRST, rest: b"" }
    }

    /// Ready if the request is to be given up: the client is gone, or the body cut off. `quiet`: whether nothing of an
    /// answer has been written.
    pub(crate) fn poll<S: AsyncWrite + Tcp + Unpin>(
        &mut self,
        stream: &mut S,
        note: &Note,
        quiet: bool,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        while self.timer.as_mut().poll(context).is_ready() {
            let is_gone = !matches!(stream.tcp().take_error(), Ok(None));
            // A body that has come and not been read yet is no reason to give up.
            if is_gone || note.wants_body() {
                return Poll::Ready(());
            }
            if quiet && self.rest.is_empty() && note.takes_interim() && self.next <= Instant::now() {
                self.rest = INTERIM;
                self.pause = (self.pause * 2).min(MOST);
                self.next = Instant::now() + self.pause;
            }
            while !self.rest.is_empty() {
                match Pin::new(&mut *stream).poll_write(context, self.rest) {
                    Poll::Ready(Ok(written)) if written > 0 => self.rest = &self.rest[written..],
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => break,
                }
            }
            let _ = Pin::new(&mut *stream).poll_flush(context);
            self.timer.set(sleep(LOOK));
        }
        Poll::Pending
    }

    /// Writes the rest of an interim answer that has begun. Nothing else may be written until this is ready.
    pub(crate) fn poll_out<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        while !self.rest.is_empty() {
            let written = std::task::ready!(Pin::new(&mut *stream).poll_write(context, self.rest))?;
            self.rest = &self.rest[written..];
        }
        Poll::Ready(Ok(()))
    }
}
