//! The threads that answer, and how connections come to them.
//!
//! One runtime with a thread a core, which take work from each other. A runtime of its own for each core, with the
//! connections dealt out among them, answers some 5 % more on an idle machine; but when something else wants a core
//! too, the connections of that core wait, and the slowest hundredth of answers takes twice as long.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::app::App;
use super::connection::{self, Limits};
use super::dispatch;
use crate::error::Error;

/// Connections that the system keeps while none is accepted.
const BACKLOG: i32 = 1024;

/// How long threads may take to end.
const END: Duration = Duration::from_secs(2);

/// A running server.
pub(crate) struct Server {
    address: SocketAddr,
    /// To connections: finish what runs.
    stop: watch::Sender<bool>,
    permits: Arc<Semaphore>,
    connections: u32,
    runtime: Mutex<Option<Runtime>>,
}

/// What is common to all connections.
struct Common {
    app: Arc<App>,
    limits: Limits,
    stop: watch::Receiver<bool>,
}

impl Server {
    /// Listens, and answers from now on.
    pub(crate) fn start(app: Arc<App>) -> Result<Self, Error> {
        let config = &app.config;
        let listener = listen(config.bind)
            .map_err(|error| Error::Start { message: format!("cannot listen at {}: {error}", config.bind) })?;
        let address = listener.local_addr().map_err(|error| Error::Start { message: error.to_string() })?;
        let connections = u32::try_from(config.max_connections.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let permits = Arc::new(Semaphore::new(connections as usize));
        let (stop, stopped) = watch::channel(false);
        let runtime = Builder::new_multi_thread()
            .worker_threads(app.threads())
            .thread_name("kvatlas-http")
            .enable_all()
            .build()
            .map_err(|error| Error::Start { message: format!("cannot start a runtime: {error}") })?;
        let limits = Limits { idle: config.idle_timeout, request: config.request_timeout };
        let common = Arc::new(Common { app: app.clone(), limits, stop: stopped.clone() });
        runtime.spawn(accept(listener, common, permits.clone(), stopped));
        runtime.spawn(app.trust.clone().watch());
        runtime.spawn(async move { app.pulses.http.beat().await });
        Ok(Self { address, stop, permits, connections, runtime: Mutex::new(Some(runtime)) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more, lets what runs be answered, closes all connections. False if some were cut off after
    /// `timeout`.
    pub(crate) async fn drain(&self, timeout: Duration) -> bool {
        self.stop.send_replace(true);
        tokio::time::timeout(timeout, self.permits.acquire_many(self.connections)).await.is_ok()
    }

    /// Ends the threads, with whatever runs on them.
    pub(crate) fn end(&self) {
        self.stop.send_replace(true);
        if let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take() {
            runtime.shutdown_timeout(END);
        }
    }
}

fn listen(address: SocketAddr) -> std::io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A service that starts again takes its address from connections that are still winding down.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

async fn accept(listener: StdListener, common: Arc<Common>, permits: Arc<Semaphore>, mut stop: watch::Receiver<bool>) {
    let accepting = async {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot accept connections"),
        };
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(common.clone().serve(stream, permit))),
                // Too many open files, or a client that left already: neither ends the service.
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
}

impl Common {
    /// One connection, counted for as long as it is open.
    async fn serve(self: Arc<Self>, stream: TcpStream, _permit: OwnedSemaphorePermit) {
        self.app.counts.connections.fetch_add(1, Relaxed);
        let _ = stream.set_nodelay(true);
        self.speak(stream).await;
        self.app.counts.connections.fetch_sub(1, Relaxed);
    }

    async fn speak(&self, stream: TcpStream) {
        let handle = |request, until| dispatch::answer(self.app.clone(), request, until);
        let stop = self.stop.clone();
        match self.app.trust.tls() {
            None => connection::serve(TokioIo::new(stream), self.limits, stop, handle).await,
            Some(tls) => match tokio::time::timeout(self.limits.request, tls.accept(stream)).await {
                Ok(Ok(stream)) => connection::serve(TokioIo::new(stream), self.limits, stop, handle).await,
                // No TLS, or none that we speak; the client was told in TLS's own words.
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            },
        }
    }
}
