//! Listening, accepting, and the threads that serve.
//!
//! The threads have one of two shapes, by what they are for. In both, one task a listener accepts.
//!
//! * [`Threads::Shared`]: one runtime with a thread a core, which take work from each other. A runtime of its own for each
//!   core answers some 5 % more short queries on an idle machine; but when something else wants a core too, the connections
//!   of that core wait, and the slowest hundredth of answers takes twice as long.
//! * [`Threads::Own`]: each thread has a runtime of its own, with its own connections to clients and engines: a request
//!   stays on the thread on which it came, and nothing of it wakes another one. A connection goes to the thread that has
//!   the fewest.

use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::atomic::{AtomicUsize, Ordering, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Request, Response};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Notify, mpsc, watch};

use crate::body::RequestBody;
use crate::connection;
use crate::counts::Counts;
use crate::limits::Limits;
use crate::places::{Place, Places};
use crate::sniff::Protocol as Spoken;
use crate::{Config, Denial, Error, Gate, Memory, lock, sniff};

/// Connections that the system keeps while none is accepted.
const BACKLOG: i32 = 4096;

/// The longest time from a connection to its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(5);

/// Connections at the listener for administrators.
const ADMIN_CONNECTIONS: usize = 64;

/// The time that threads may take to end.
const END: Duration = Duration::from_secs(2);

/// The time that a thread for long work waits for the next: what it remembers goes with it.
const HELPERS_STAY: Duration = Duration::from_secs(600);

/// The listener by which a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// The listener for everybody.
    Main,
    /// The listener for administrators: a few routes, without a key.
    Admin,
}

/// The shape of the threads that serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// Number of threads that take work from each other.
    Shared(usize),
    /// Number of threads, each with connections of its own.
    Own(usize),
}

/// The part of a server that both it and its handler use: settings, keys, memory, places.
pub struct Front {
    /// The settings.
    pub config: Config,
    /// The keys and certificates in force.
    pub gate: Arc<Gate>,
    /// The memory for bodies.
    pub memory: Arc<Memory>,
    counts: Arc<Counts>,
    places: Arc<Places>,
}

/// The circumstances of a request.
pub struct Call {
    /// The number of the thread that serves it, among [`Threads::Own`].
    pub thread: usize,
    /// The listener by which it came.
    pub kind: ListenerKind,
    /// The place of its connection.
    pub place: Arc<Place>,
    /// The time by which the request's body must be here.
    pub until: Instant,
}

/// Whoever answers.
pub trait Handler: Send + Sync + 'static {
    /// The bodies of answers.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// True if clients may speak HTTP/2.
    const HTTP2: bool;

    /// True if a client that ends what it sends in the middle of an answer has left, so that what it asked for is given up.
    const LATE_END_IS_LEAVING: bool;

    /// The front of the server that the handler answers for.
    fn front(&self) -> &Front;

    /// Answers a request.
    fn answer(
        handler: Arc<Self>,
        call: Call,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// Puts a refusal into the form that its clients know.
    fn refuse(denied: Denial) -> Response<Self::Body>;
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    /// The signal to those who accept and to connections: take no more, finish what runs.
    stop: watch::Sender<bool>,
    /// The signal to the listener for administrators, which stays open until all else is done, and to all threads: end now.
    end: watch::Sender<bool>,
    open: Arc<OpenCounts>,
    running: Mutex<Option<ServerThreads>>,
    handle: Option<Handle>,
}

enum ServerThreads {
    Shared(Runtime),
    Own(Vec<JoinHandle<()>>),
}

/// Counts of open connections, and of tasks that accept them, at the main listener.
#[derive(Default)]
struct OpenCounts {
    count: AtomicUsize,
    accepting: AtomicUsize,
    changed: Notify,
}

impl OpenCounts {
    fn less(&self, of: &AtomicUsize) {
        if of.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.changed.notify_waiters();
        }
    }
}

/// The part that all connections of a listener and thread share.
struct ListenerContext<H> {
    handler: Arc<H>,
    kind: ListenerKind,
    number: usize,
    limits: Limits,
    stop: watch::Receiver<bool>,
    open: Arc<OpenCounts>,
    load: AtomicUsize,
}

/// A connection for a thread of its own.
type NewConnection = (StdStream, ListenerKind, Arc<Place>);

impl Front {
    /// Returns the part for these settings, with the keys and certificates read from their files.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn new(config: Config, http2: bool) -> Result<Self, Error> {
        let alpn: &[&str] = if http2 { &["h2", "http/1.1"] } else { &["http/1.1"] };
        let gate = Arc::new(Gate::new(&config, alpn)?);
        let (memory, places) = (Memory::new(config.body_memory()), Places::new(config.max_connections));
        Ok(Self { config, gate, memory, counts: Arc::default(), places })
    }

    /// The number of threads that the settings ask for.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self.config.threads {
            0 => available_parallelism().map_or(1, Into::into),
            threads => threads,
        }
    }

    /// Open connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        let ended = self.counts.ended.load(Relaxed);
        self.counts.begun.load(Relaxed).saturating_sub(ended)
    }

    /// Connections that came.
    #[must_use]
    pub fn all_connections(&self) -> u64 {
        self.counts.begun.load(Relaxed)
    }

    /// Connections that were closed before they had shown a key, to make room for others.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.places.evicted.load(Relaxed)
    }

    /// Streams of HTTP/2 that were reset because their clients did not take the answer.
    #[must_use]
    pub fn stalled_streams(&self) -> u64 {
        self.counts.stalled_streams.load(Relaxed)
    }
}

impl Server {
    /// Listens, and serves from now on.
    ///
    /// # Errors
    /// If an address cannot be listened at, or there are no threads to be had.
    pub fn start<H: Handler>(handler: &Arc<H>, threads: Threads) -> Result<Self, Error> {
        let front = handler.front();
        let config = &front.config;
        let (listener, address) = listen(config.bind)?;
        let admin = config.admin_bind.map(listen).transpose()?;
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let open = Arc::new(OpenCounts::default());
        let limits = Limits {
            idle: config.idle_timeout,
            request: config.request_timeout,
            write: config.write_timeout,
            first_byte: FIRST_BYTE.min(config.idle_timeout),
            max_head: config.max_head,
            max_headers: config.max_headers,
            late_end_is_leaving: H::LATE_END_IS_LEAVING,
        };
        let common = |kind, number| {
            let stop = if kind == ListenerKind::Main { stopped.clone() } else { ended.clone() };
            let (handler, open) = (handler.clone(), open.clone());
            Arc::new(ListenerContext { handler, kind, number, limits, stop, open, load: AtomicUsize::new(0) })
        };
        let mut listeners = vec![(listener, ListenerKind::Main, front.places.clone())];
        let admin_address = admin.map(|(listener, address)| {
            listeners.push((listener, ListenerKind::Admin, Places::new(ADMIN_CONNECTIONS)));
            address
        });
        let (running, handle) = match threads {
            Threads::Shared(threads) => {
                let runtime = Builder::new_multi_thread()
                    .worker_threads(threads)
                    .thread_name("kvatlas-http")
                    .enable_all()
                    .build()
                    .map_err(|error| Error(format!("cannot start a runtime: {error}")))?;
                for (listener, kind, places) in listeners {
                    let common = common(kind, 0);
                    let (accepting, serving) = (common.clone(), common);
                    runtime.spawn(async move {
                        let give = |stream, place| serving.clone().spawn(stream, place);
                        accepting.accept(listener, &places, give).await;
                    });
                }
                let handle = runtime.handle().clone();
                (ServerThreads::Shared(runtime), Some(handle))
            }
            Threads::Own(threads) => {
                let (mut handles, mut senders) = (Vec::new(), Vec::new());
                for number in 0..threads {
                    let (sender, incoming) = mpsc::unbounded_channel();
                    let served = [common(ListenerKind::Main, number), common(ListenerKind::Admin, number)];
                    senders.push((sender, served.clone()));
                    let ended = ended.clone();
                    handles.push(spawn(format!("kvatlas-http-{number}"), move || run(serve(served, incoming), ended))?);
                }
                let senders = Arc::new(senders);
                for (listener, kind, places) in listeners {
                    let (accepting, senders, ended) = (common(kind, 0), senders.clone(), ended.clone());
                    handles.push(spawn("kvatlas-accept".to_owned(), move || {
                        let give = |stream: TcpStream, place| {
                            let fewest = senders.iter().min_by_key(|(_, served)| load(served));
                            if let (Ok(stream), Some((sender, served))) = (stream.into_std(), fewest) {
                                served[0].load.fetch_add(1, Relaxed);
                                let _ = sender.send((stream, kind, place));
                            }
                        };
                        run(accepting.accept(listener, &places, give), ended);
                    })?);
                }
                (ServerThreads::Own(handles), None)
            }
        };
        Ok(Self { address, admin_address, stop, end, open, running: Mutex::new(Some(running)), handle })
    }

    /// The address of the main listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the listener for administrators, if there is one.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// The runtime of the server's threads, if they are shared.
    #[must_use]
    pub fn handle(&self) -> Option<&Handle> {
        self.handle.as_ref()
    }

    /// Accepts no more, lets what runs be answered, closes all connections. False if some were left after `timeout`.
    pub async fn drain(&self, timeout: Duration) -> bool {
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
    pub fn end(&self) {
        self.stop.send_replace(true);
        self.end.send_replace(true);
        match lock(&self.running).take() {
            Some(ServerThreads::Shared(runtime)) => runtime.shutdown_timeout(END),
            Some(ServerThreads::Own(threads)) => {
                for thread in threads {
                    let _ = thread.join();
                }
            }
            None => {}
        }
    }
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let failed = |error: std::io::Error| Error(format!("cannot start a thread: {error}"));
    std::thread::Builder::new().name(name).spawn(work).map_err(failed)
}

/// Runs on a runtime of this thread's own, until all is to end.
fn run(work: impl Future<Output = ()>, mut ended: watch::Receiver<bool>) {
    match Builder::new_current_thread().enable_all().thread_keep_alive(HELPERS_STAY).build() {
        Ok(runtime) => runtime.block_on(async {
            tokio::select! {
                () = work => {}
                _ = ended.wait_for(|ended| *ended) => {}
            }
        }),
        Err(error) => tracing::error!(%error, "cannot start a runtime"),
    }
}

/// Serves the connections that come to a thread of its own.
async fn serve<H: Handler>(served: [Arc<ListenerContext<H>>; 2], mut incoming: mpsc::UnboundedReceiver<NewConnection>) {
    let [main, admin] = served;
    while let Some((stream, kind, place)) = incoming.recv().await {
        let common = if kind == ListenerKind::Main { &main } else { &admin };
        if let Ok(stream) = TcpStream::from_std(stream) {
            common.clone().spawn(stream, place);
        }
    }
    // All who accept have ended: what runs goes on until all is told to end.
    std::future::pending::<()>().await;
}

fn load<H>(served: &[Arc<ListenerContext<H>>; 2]) -> usize {
    served[0].load.load(Relaxed)
}

fn listen(at: SocketAddr) -> Result<(StdListener, SocketAddr), Error> {
    let listening = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        // A server that starts again takes its address from connections that are still winding down.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        let listener: StdListener = socket.into();
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listening().map_err(|error: std::io::Error| Error(format!("cannot listen at {at}: {error}")))
}

impl<H: Handler> ListenerContext<H> {
    /// Gives connections to `give` until told to stop, and then those that are waiting already.
    async fn accept(
        self: Arc<Self>,
        listener: StdListener,
        places: &Arc<Places>,
        give: impl Fn(TcpStream, Arc<Place>),
    ) {
        let counted = self.kind == ListenerKind::Main;
        if counted {
            self.open.accepting.fetch_add(1, Ordering::SeqCst);
        }
        let mut stop = self.stop.clone();
        match TcpListener::from_std(listener) {
            Ok(listener) => {
                tokio::select! {
                    () = self.accept_all(&listener, places, &give) => {}
                    _ = stop.wait_for(|stop| *stop) => {}
                }
                // Whoever has connected already would otherwise be cut off when the listener closes.
                while let Ok(Ok((stream, _))) = tokio::time::timeout(Duration::ZERO, listener.accept()).await {
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
                    let give_way = self.kind == ListenerKind::Main && self.handler.front().gate.asks_for_key();
                    let Some(place) = places.take(give_way).await else { return };
                    give(stream, place);
                }
                // Too many open files, or a client that left already: neither ends the server.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Serves one connection, which is counted for as long as it is open.
    fn spawn(self: Arc<Self>, stream: TcpStream, place: Arc<Place>) {
        let counted = OpenConnection::new(self);
        drop(tokio::spawn(async move {
            let common = &counted.0;
            let _ = stream.set_nodelay(true);
            tokio::select! {
                biased;
                () = place.must_leave() => {
                    tracing::debug!("a connection was closed before it sent a key, to make room for others");
                }
                () = common.speak(stream, &place) => {}
            }
        }));
    }

    async fn speak(&self, stream: TcpStream, place: &Arc<Place>) {
        let (limits, stop, front) = (self.limits, self.stop.clone(), self.handler.front());
        let handle = |request, until| {
            let call = Call { thread: self.number, kind: self.kind, place: place.clone(), until };
            H::answer(self.handler.clone(), call, request)
        };
        let counts = front.counts.clone();
        let Some(tls) = front.gate.tls().filter(|_| self.kind == ListenerKind::Main) else {
            let spoken = if H::HTTP2 {
                Box::pin(sniff::protocol(&stream, limits.first_byte, stop.clone())).await
            } else {
                Some(Spoken::Http1)
            };
            let Some(spoken) = spoken else { return };
            return connection::serve(stream, spoken, limits, counts, stop, handle, H::refuse).await;
        };
        // In a place of its own: every connection without TLS would be as large.
        Box::pin(async move {
            match tokio::time::timeout(limits.request, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let spoken = if is_h2 { Spoken::Http2 } else { Spoken::Http1 };
                    connection::serve(stream, spoken, limits, counts, stop, handle, H::refuse).await;
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
struct OpenConnection<H: Handler>(Arc<ListenerContext<H>>);

impl<H: Handler> OpenConnection<H> {
    fn new(common: Arc<ListenerContext<H>>) -> Self {
        common.handler.front().counts.begun.fetch_add(1, Relaxed);
        if common.kind == ListenerKind::Main {
            common.open.count.fetch_add(1, Ordering::SeqCst);
        }
        Self(common)
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
