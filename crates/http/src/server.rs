//! HTTP server with its listeners and serving threads.
//!
//! The threads have one of two forms. In both, one task per listener accepts connections.
//!
//! - [`Threads::Shared`]: one runtime with a thread per core, with work stealing. A runtime for each core answers some
//!   5 % more short queries on an idle machine; but when another program uses a core too, the connections of this core
//!   wait, and the slowest hundredth of answers takes twice as long.
//! - [`Threads::Own`]: each thread has its own runtime, with its own connections to clients and engines, so that a
//!   request stays on its thread, and wakes no other one. A new connection goes to the thread with the fewest.

use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, watch};

use crate::Error;
use crate::handler::{Handler, ListenerKind};
use crate::ledger::{ADMIN_STRANGERS, KEYED_STREAMS, KEYLESS_STREAMS, Limits, STRANGER_STREAMS};
use crate::listener::{ListenerContext, OpenConnection, OpenCounts};
use crate::places::{Place, Places};

/// Maximum number of connections that wait in the system's queue to be accepted.
const BACKLOG: i32 = 4096;

/// Longest time from the opening of a connection to its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(5);

/// Maximum number of connections at the listener for administrators.
const ADMIN_CONNECTIONS: usize = 64;

/// Time limit for the server's threads to end, once the server is told to end.
const END: Duration = Duration::from_secs(2);

/// Time after which a helper thread without work, one of those for long computations, ends and frees its thread-local
/// memory.
const HELPERS_STAY: Duration = Duration::from_secs(600);

/// Form of the serving threads: one shared runtime, or a runtime for each thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// One runtime with the given number of threads.
    Shared(usize),
    /// The given number of threads, each with its own runtime and connections.
    Own(usize),
}

/// Running HTTP server.
pub struct Server {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    /// Signal to listeners and connections to accept no more requests and to finish running ones.
    stop: watch::Sender<bool>,
    /// Signal to end at once, for all threads and for the listener for administrators, which stays open until this
    /// signal.
    end: watch::Sender<bool>,
    open: Arc<OpenCounts>,
    running: Mutex<Option<ServerThreads>>,
    handle: Option<Handle>,
}

enum ServerThreads {
    Shared(Runtime),
    Own(Vec<JoinHandle<()>>),
}

/// New connection of a client that is passed to a thread of [`Threads::Own`] to be served: its socket, the guard that
/// counts the connection as open, and its place.
type NewConnection<H> = (StdStream, OpenConnection<H>, Arc<Place>);

impl Server {
    /// Starts the listeners and the serving threads.
    ///
    /// # Errors
    /// The server does not start if an address is not available, or threads cannot be started.
    pub fn start<H: Handler>(handler: &Arc<H>, threads: Threads) -> Result<Self, Error> {
        let front = handler.front();
        let config = &front.config;
        let listener = listen(config.bind)?;
        let address = listener.address;
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
            half_close: H::HALF_CLOSE,
            streams: if front.gate.asks_for_key() { KEYED_STREAMS } else { KEYLESS_STREAMS },
        };
        let common = |kind, number| {
            let (stop, limits) = match kind {
                ListenerKind::Main => (stopped.clone(), limits),
                ListenerKind::Admin => (ended.clone(), Limits { streams: STRANGER_STREAMS as u32, ..limits }),
            };
            let (handler, open) = (handler.clone(), open.clone());
            Arc::new(ListenerContext { handler, kind, number, limits, stop, open, load: AtomicUsize::new(0) })
        };
        let mut listeners = vec![(listener, ListenerKind::Main, front.places.clone())];
        let admin_address = admin.map(|listener| {
            let address = listener.address;
            listeners.push((listener, ListenerKind::Admin, Places::new(ADMIN_CONNECTIONS, ADMIN_STRANGERS)));
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
                        let give = |stream, place| OpenConnection::new(serving.clone()).serve(stream, place);
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
                    senders.push((sender, served));
                    let ended = ended.clone();
                    handles.push(spawn(format!("kvatlas-http-{number}"), move || run(serve(incoming), ended))?);
                }
                let senders = Arc::new(senders);
                for (listener, kind, places) in listeners {
                    let (accepting, senders, ended) = (common(kind, 0), senders.clone(), ended.clone());
                    handles.push(spawn("kvatlas-accept".to_owned(), move || {
                        let give = |stream: TcpStream, place| {
                            let fewest = senders.iter().min_by_key(|(_, served)| load(served));
                            if let (Ok(stream), Some((sender, served))) = (stream.into_std(), fewest) {
                                let context = &served[usize::from(kind == ListenerKind::Admin)];
                                let _ = sender.send((stream, OpenConnection::new(context.clone()), place));
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

    /// Returns the address of the main listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the listener for administrators; None if not configured.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Returns the runtime of [`Threads::Shared`]; None with [`Threads::Own`].
    #[must_use]
    pub fn handle(&self) -> Option<&Handle> {
        self.handle.as_ref()
    }

    /// Accepts no more connections, finishes running requests, and closes all connections. Returns false if some
    /// connections were still open after `timeout`.
    pub async fn drain(&self, timeout: Duration) -> bool {
        self.stop.send_replace(true);
        let all = async {
            loop {
                let changed = self.open.changed.notified();
                if self.open.accepting.load(Ordering::SeqCst) == 0 && self.open.count.load(Ordering::SeqCst) == 0 {
                    return;
                }
                // A change between the check and the wait is noticed a little later.
                let _ = tokio::time::timeout(Duration::from_millis(20), changed).await;
            }
        };
        tokio::time::timeout(timeout, all).await.is_ok()
    }

    /// Ends the threads at once, which cancels all running requests.
    pub fn end(&self) {
        self.stop.send_replace(true);
        self.end.send_replace(true);
        match self.running.lock().take() {
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

/// Runs the future `work` on a new runtime on the present thread, until the future or the signal `ended` ends.
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

/// Serves, on a thread of [`Threads::Own`], the connections that arrive through `incoming`.
async fn serve<H: Handler>(mut incoming: mpsc::UnboundedReceiver<NewConnection<H>>) {
    while let Some((stream, connection, place)) = incoming.recv().await {
        if let Ok(stream) = TcpStream::from_std(stream) {
            connection.serve(stream, place);
        }
    }
    // All accepting tasks have ended: running requests continue until the signal to end.
    std::future::pending::<()>().await;
}

fn load<H>(served: &[Arc<ListenerContext<H>>; 2]) -> usize {
    served[0].load.load(Relaxed)
}

/// Listening socket of the server.
pub struct ListeningSocket {
    /// Address at which the socket listens, with the port.
    pub address: SocketAddr,
    /// Listening socket itself, in non-blocking mode.
    pub socket: StdListener,
    /// True if the process inherited the socket at its start.
    pub is_inherited: bool,
}

/// Opens a listening socket at an address, or uses the one that the process [inherited](crate::inherited) at its start.
///
/// # Errors
/// The address may not be available.
pub fn listen(at: SocketAddr) -> Result<ListeningSocket, Error> {
    let failed = |error: std::io::Error| Error(format!("cannot listen at {at}: {error}"));
    if let Some(socket) = crate::inherited::take(at) {
        socket.set_nonblocking(true).map_err(failed)?;
        return Ok(ListeningSocket { address: at, socket, is_inherited: true });
    }
    let listening = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        // A restarted server takes over its address from connections that are still closing.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        let socket: StdListener = socket.into();
        Ok(ListeningSocket { address: socket.local_addr()?, socket, is_inherited: false })
    };
    listening().map_err(failed)
}
