//! The threads that serve, and how connections come to them.
//!
//! Each thread has a runtime of its own, with its own connections to clients and engines: a request stays on the thread
//! on which it came, and nothing of it wakes another one. One task accepts, and gives each connection to the thread
//! that has the fewest.

mod connection;
mod heads;
mod sniff;

use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use self::connection::{Limits, Protocol as Spoken};
use crate::app::App;
use crate::dispatch::{self, Door};
use crate::error::Error;
use crate::lock;

/// Connections that the system keeps while none is accepted.
const BACKLOG: i32 = 4096;

/// From a connection to its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(5);

/// Connections at the door for administrators.
const ADMIN_CONNECTIONS: usize = 64;

/// How long a thread that reads long prompts waits for the next: its tokenizer's memory of words goes with it.
const HELPERS_STAY: Duration = Duration::from_secs(600);

/// A running server.
pub(crate) struct Server {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    /// To those who accept and to connections: take no more, finish what runs.
    stop: watch::Sender<bool>,
    /// To all: end now.
    end: watch::Sender<bool>,
    open: Arc<Open>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

/// How many connections are open.
#[derive(Default)]
struct Open {
    count: AtomicUsize,
    accepting: AtomicUsize,
    changed: Notify,
}

/// What is common to all connections of a thread.
struct Thread {
    app: Arc<App>,
    /// Which one it is, among [`Pool`](crate::engine::Pool)'s shards too.
    number: usize,
    limits: Limits,
    stop: watch::Receiver<bool>,
    open: Arc<Open>,
    load: Arc<AtomicUsize>,
}

type Incoming = (StdStream, Door, Option<tokio::sync::OwnedSemaphorePermit>);

impl Server {
    /// Listens, and serves from now on, with `threads` threads.
    pub(crate) fn start(app: &Arc<App>, threads: usize) -> Result<Self, Error> {
        let config = &app.config.http;
        let (listener, address) = listen(config.bind)?;
        let admin = config.admin_bind.map(listen).transpose()?;
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let open = Arc::new(Open::default());
        let limits = Limits {
            idle: config.idle_timeout,
            request: config.request_timeout,
            write: config.write_timeout,
            first_byte: FIRST_BYTE.min(config.idle_timeout),
            max_head: config.max_head,
            max_headers: config.max_headers,
        };
        let mut handles = Vec::new();
        let mut senders = Vec::new();
        for number in 0..threads {
            let (sender, receiver) = mpsc::unbounded_channel();
            let load = Arc::new(AtomicUsize::new(0));
            let thread = Arc::new(Thread {
                app: app.clone(),
                number,
                limits,
                stop: stopped.clone(),
                open: open.clone(),
                load: load.clone(),
            });
            senders.push((sender, load));
            let ended = ended.clone();
            handles.push(spawn(format!("kvatlas-http-{number}"), move || thread.run(receiver, ended))?);
        }
        let senders = Arc::new(senders);
        let mut doors =
            vec![(listener, Door::Main, Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS))))];
        let admin_address = admin.map(|(listener, address)| {
            doors.push((listener, Door::Admin, Arc::new(Semaphore::new(ADMIN_CONNECTIONS))));
            address
        });
        for (listener, door, places) in doors {
            let (senders, stopped, ended, open) = (senders.clone(), stopped.clone(), ended.clone(), open.clone());
            open.accepting.fetch_add(1, Relaxed);
            handles.push(spawn("kvatlas-accept".to_owned(), move || {
                let accepting = accept(listener, door, places, &senders, stopped);
                run(async {
                    let mut ended = ended;
                    tokio::select! {
                        () = accepting => {}
                        _ = ended.wait_for(|ended| *ended) => {}
                    }
                });
                open.accepting.fetch_sub(1, Relaxed);
                open.changed.notify_waiters();
            })?);
        }
        Ok(Self { address, admin_address, stop, end, open, threads: Mutex::new(handles) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Accepts no more, lets what runs be answered, closes all connections. False if some were left after `timeout`.
    pub(crate) async fn drain(&self, timeout: Duration) -> bool {
        self.stop.send_replace(true);
        let all = async {
            loop {
                let changed = self.open.changed.notified();
                if self.open.accepting.load(Ordering::SeqCst) == 0 && self.open.count.load(Ordering::SeqCst) == 0 {
                    return;
                }
                // A change between the look and the wait is noticed a little later.
                let _ = tokio::time::timeout(Duration::from_millis(20), changed).await;
            }
        };
        tokio::time::timeout(timeout, all).await.is_ok()
    }

    /// Ends the threads, with whatever runs on them.
    pub(crate) fn end(&self) {
        self.stop.send_replace(true);
        self.end.send_replace(true);
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            let _ = thread.join();
        }
    }
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>, Error> {
    let failed = |error: std::io::Error| Error::start(format!("cannot start a thread: {error}"));
    std::thread::Builder::new().name(name).spawn(work).map_err(failed)
}

/// Runs on a runtime of this thread's own.
fn run(work: impl Future<Output = ()>) {
    match Builder::new_current_thread().enable_all().thread_keep_alive(HELPERS_STAY).build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => tracing::error!(%error, "cannot start a runtime"),
    }
}

fn listen(at: SocketAddr) -> Result<(StdListener, SocketAddr), Error> {
    let listening = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        // A router that starts again takes its address from connections that are still winding down.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        let listener: StdListener = socket.into();
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listening().map_err(|error: std::io::Error| Error::start(format!("cannot listen at {at}: {error}")))
}

/// Gives connections to threads until told to stop, and then those that are waiting already.
async fn accept(
    listener: StdListener,
    door: Door,
    places: Arc<Semaphore>,
    threads: &[(mpsc::UnboundedSender<Incoming>, Arc<AtomicUsize>)],
    mut stop: watch::Receiver<bool>,
) {
    let give = |stream: StdStream, place| {
        let Some((sender, load)) = threads.iter().min_by_key(|(_, load)| load.load(Relaxed)) else { return };
        load.fetch_add(1, Relaxed);
        let _ = sender.send((stream, door, place));
    };
    let waiting = match listener.try_clone().and_then(TcpListener::from_std) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot accept connections"),
    };
    let accepting = async {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match waiting.accept().await.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => give(stream, Some(place)),
                // Too many open files, or a client that left already: neither ends the router.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // Whoever has connected already would otherwise be cut off when the listener closes.
    while let Ok((stream, _)) = listener.accept() {
        if stream.set_nonblocking(true).is_ok() {
            give(stream, None);
        }
    }
}

impl Thread {
    fn run(self: Arc<Self>, mut incoming: mpsc::UnboundedReceiver<Incoming>, mut ended: watch::Receiver<bool>) {
        run(async {
            let serving = async {
                while let Some((stream, door, place)) = incoming.recv().await {
                    let thread = self.clone();
                    self.open.count.fetch_add(1, Ordering::SeqCst);
                    drop(tokio::spawn(async move {
                        let _place = place;
                        let open = Counted(&thread);
                        if let Ok(stream) = TcpStream::from_std(stream) {
                            thread.serve(stream, door).await;
                        }
                        drop(open);
                    }));
                }
                // All who accept have ended: what runs goes on until all is told to end.
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = serving => {}
                _ = ended.wait_for(|ended| *ended) => {}
            }
        });
    }

    async fn serve(self: &Arc<Self>, stream: TcpStream, door: Door) {
        self.app.counts.connections_begun.fetch_add(1, Relaxed);
        let _ = stream.set_nodelay(true);
        // In a place of its own: it is large, and gone when the head of the answer is here, while hyper keeps its place for
        // as long as the connection is open.
        let handle = |request, until| Box::pin(dispatch::answer(self.app.clone(), self.number, door, request, until));
        let stop = self.stop.clone();
        let Some(tls) = self.app.gate.tls().filter(|_| door == Door::Main) else {
            let sniffed = Box::pin(sniff::protocol(&stream, self.limits.first_byte, stop.clone())).await;
            let Some(spoken) = sniffed else { return };
            return connection::serve(TokioIo::new(stream), spoken, self.limits, stop, handle).await;
        };
        // In a place of its own: every connection without TLS would be as large.
        let limit = self.limits.request;
        Box::pin(async move {
            match tokio::time::timeout(limit, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let spoken = if is_h2 { Spoken::Http2 } else { Spoken::Http1 };
                    connection::serve(TokioIo::new(stream), spoken, self.limits, stop, handle).await;
                }
                // No TLS, or none that we speak; the client was told in TLS's own words.
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        })
        .await;
    }
}

/// An open connection, for as long as it is.
struct Counted<'a>(&'a Thread);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Relaxed);
        self.0.app.counts.connections_ended.fetch_add(1, Relaxed);
        if self.0.open.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.open.changed.notify_waiters();
        }
    }
}
