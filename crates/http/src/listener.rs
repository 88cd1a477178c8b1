//! Acceptance of the connections of one listener, and service of each connection until it closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, Ordering::Relaxed};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use crate::activity::Activity;
use crate::connection;
use crate::connection::Terms;
use crate::handler::{Call, Handler, ListenerKind};
use crate::heads;
use crate::heads::Protocol as Spoken;
use crate::ledger::{HANDSHAKE, Limits, TLS};
use crate::places::{Place, Places};
use crate::server::ListeningSocket;

/// Counts, at the main listener, of open connections and of tasks that accept connections.
#[derive(Default)]
pub(crate) struct OpenCounts {
    pub(crate) count: AtomicUsize,
    pub(crate) accepting: AtomicUsize,
    pub(crate) changed: Notify,
}

impl OpenCounts {
    fn less(&self, of: &AtomicUsize) {
        if of.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.changed.notify_waiters();
        }
    }
}

/// State shared by all connections of one listener and thread.
pub(crate) struct ListenerContext<H> {
    pub(crate) handler: Arc<H>,
    pub(crate) kind: ListenerKind,
    pub(crate) number: usize,
    pub(crate) limits: Limits,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) open: Arc<OpenCounts>,
    pub(crate) load: AtomicUsize,
}

impl<H: Handler> ListenerContext<H> {
    /// Accepts connections and passes them to the function `give` until the listener is told to stop; then passes on
    /// the connections that still wait in the system's queue.
    pub(crate) async fn accept(
        self: Arc<Self>,
        listener: ListeningSocket,
        places: &Arc<Places>,
        give: impl Fn(TcpStream, Arc<Place>),
    ) {
        let counted = self.kind == ListenerKind::Main;
        if counted {
            self.open.accepting.fetch_add(1, Ordering::SeqCst);
        }
        let mut stop = self.stop.clone();
        match TcpListener::from_std(listener.socket) {
            Ok(accepting) => {
                tokio::select! {
                    () = self.accept_all(&accepting, places, &give) => {}
                    _ = stop.wait_for(|stop| *stop) => {}
                }
                // Clients that have already connected would otherwise be cut off when the listener closes. A socket of
                // systemd stays open: they wait for the next process.
                while !listener.is_inherited
                    && let Ok(Ok((stream, _))) = tokio::time::timeout(Duration::ZERO, accepting.accept()).await
                {
                    give(stream, places.beyond());
                }
            }
            Err(error) => tracing::error!(%error, "cannot accept connections"),
        }
        if counted {
            self.open.less(&self.open.accepting);
        }
    }

    async fn accept_all(&self, listener: &TcpListener, places: &Arc<Places>, give: &impl Fn(TcpStream, Arc<Place>)) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let known = self.kind == ListenerKind::Main && !self.handler.front().gate.has_strangers();
                    let Some(place) = places.take(known).await else { return };
                    give(stream, place);
                }
                // Too many open files, or a client that has already left: neither ends the server.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn speak(&self, stream: TcpStream, place: &Arc<Place>) {
        let (limits, stop, front) = (self.limits, self.stop.clone(), self.handler.front());
        let from = stream.peer_addr().ok().map(|address| address.ip());
        let handle = |request, until| {
            let call = Call { thread: self.number, kind: self.kind, from, until };
            H::answer(self.handler.clone(), call, request)
        };
        let shows_key = |request: &_| self.kind == ListenerKind::Main && front.gate.is_shown_key(request);
        let terms = |protocol, stop| Terms {
            protocol,
            limits,
            counts: front.counts.clone(),
            activity: Arc::new(Activity::new(place.clone())),
            stop,
        };
        let Some(tls) = front.gate.tls().filter(|_| self.kind == ListenerKind::Main) else {
            let spoken = if H::HTTP2 {
                Box::pin(heads::protocol(&stream, limits.first_byte, stop.clone())).await
            } else {
                Some(Spoken::Http1)
            };
            let Some(spoken) = spoken else { return };
            return connection::serve(stream, terms(spoken, stop), handle, shows_key, H::refuse).await;
        };
        // Boxed: otherwise every connection without TLS would be as large.
        Box::pin(async move {
            // Until its first bytes the connection counts like any other.
            if heads::first(&stream, &mut [0], limits.first_byte, stop.clone()).await.is_none() {
                return;
            }
            place.hold(HANDSHAKE);
            match tokio::time::timeout(limits.request, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    place.release(HANDSHAKE - TLS);
                    if !front.gate.asks_for_key() {
                        place.make_known();
                    }
                    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let spoken = if is_h2 { Spoken::Http2 } else { Spoken::Http1 };
                    connection::serve(stream, terms(spoken, stop), handle, shows_key, H::refuse).await;
                }
                // Not TLS, or no common version; the client has received a TLS alert.
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        })
        .await;
    }
}

/// Guard of an open connection, which is counted as open until this value is dropped.
pub(crate) struct OpenConnection<H: Handler>(Arc<ListenerContext<H>>);

impl<H: Handler> OpenConnection<H> {
    /// Creates the guard of a connection that has just been accepted. The connection is counted as open from then on,
    /// so that a server that shuts down waits for it.
    pub(crate) fn new(common: Arc<ListenerContext<H>>) -> Self {
        common.handler.front().counts.begun.fetch_add(1, Relaxed);
        if common.kind == ListenerKind::Main {
            common.load.fetch_add(1, Relaxed);
            common.open.count.fetch_add(1, Ordering::SeqCst);
        }
        Self(common)
    }

    /// Serves the connection in a separate task, until it closes or is evicted.
    pub(crate) fn serve(self, stream: TcpStream, place: Arc<Place>) {
        drop(tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            tokio::select! {
                biased;
                () = place.must_leave() => {
                    tracing::debug!("a connection was closed before it sent a key, to make room for others");
                }
                () = self.0.speak(stream, &place) => {}
            }
        }));
    }
}

impl<H: Handler> Drop for OpenConnection<H> {
    fn drop(&mut self) {
        let common = &self.0;
        common.handler.front().counts.ended.fetch_add(1, Relaxed);
        if common.kind == ListenerKind::Main {
            common.load.fetch_sub(1, Relaxed);
            common.open.less(&common.open.count);
        }
    }
}
