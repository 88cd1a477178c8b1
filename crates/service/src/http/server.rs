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
use tokio::sync::watch;

use super::app::App;
use super::connection::{self, Limits};
use super::dispatch;
use super::page;
use super::places::{Place, Places};
use super::routes::Door;
use crate::error::Error;

/// Connections that the system keeps while none is accepted.
const BACKLOG: i32 = 1024;

/// From a connection to its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(5);

/// Connections at the door for administrators.
const ADMIN_CONNECTIONS: usize = 64;

/// How long threads may take to end.
const END: Duration = Duration::from_secs(2);

/// A running server.
pub(crate) struct Server {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    /// To connections: finish what runs.
    stop: watch::Sender<bool>,
    places: Arc<Places>,
    /// To those at the door for administrators, which stays open until all else is done.
    stop_admin: watch::Sender<bool>,
    runtime: Mutex<Option<Runtime>>,
}

/// What is common to all connections.
struct Common {
    app: Arc<App>,
    door: Door,
    places: Arc<Places>,
    limits: Limits,
    stop: watch::Receiver<bool>,
}

impl Server {
    /// Listens, and answers from now on.
    pub(crate) fn start(app: Arc<App>) -> Result<Self, Error> {
        let config = &app.config;
        let (listener, address) = listen(config.bind)?;
        let admin = config.admin_bind.map(listen).transpose()?;
        let places = app.places.clone();
        let (stop, stopped) = watch::channel(false);
        let (stop_admin, admin_stopped) = watch::channel(false);
        let runtime = Builder::new_multi_thread()
            .worker_threads(app.threads())
            .thread_name("kvatlas-http")
            .enable_all()
            .build()
            .map_err(|error| Error::Start { message: format!("cannot start a runtime: {error}") })?;
        let first_byte = FIRST_BYTE.min(config.idle_timeout);
        let limits = Limits { idle: config.idle_timeout, request: config.request_timeout, first_byte };
        let common = |door, places, stop| Arc::new(Common { app: app.clone(), door, places, limits, stop });
        runtime.spawn(common(Door::Main, places.clone(), stopped).accept(listener));
        let admin_address = admin.map(|(listener, address)| {
            runtime.spawn(common(Door::Admin, Places::new(ADMIN_CONNECTIONS), admin_stopped).accept(listener));
            address
        });
        runtime.spawn(app.trust.clone().watch());
        runtime.spawn(page::run(app.clone()));
        runtime.spawn(async move { app.pulses.http.beat().await });
        Ok(Self { address, admin_address, stop, places, stop_admin, runtime: Mutex::new(Some(runtime)) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for administrators, if it does.
    pub(crate) fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Accepts no more, lets what runs be answered, closes all connections. False if some were cut off after
    /// `timeout`.
    pub(crate) async fn drain(&self, timeout: Duration) -> bool {
        self.stop.send_replace(true);
        tokio::time::timeout(timeout, self.places.all_free()).await.is_ok()
    }

    /// Ends the threads, with whatever runs on them.
    pub(crate) fn end(&self) {
        self.stop.send_replace(true);
        self.stop_admin.send_replace(true);
        if let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take() {
            runtime.shutdown_timeout(END);
        }
    }
}

fn listen(at: SocketAddr) -> Result<(StdListener, SocketAddr), Error> {
    let listening = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        // A service that starts again takes its address from connections that are still winding down.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        let listener: StdListener = socket.into();
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listening().map_err(|error: std::io::Error| Error::Start { message: format!("cannot listen at {at}: {error}") })
}

impl Common {
    async fn accept(self: Arc<Self>, listener: StdListener) {
        let mut stop = self.stop.clone();
        let accepting = async {
            let listener = match TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "cannot accept connections"),
            };
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let give_way = self.door == Door::Main && self.app.trust.keys().asked_for();
                        let Some(place) = self.places.take(give_way).await else { return };
                        drop(tokio::spawn(self.clone().serve(stream, place)));
                    }
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

    /// One connection, counted for as long as it is open.
    async fn serve(self: Arc<Self>, stream: TcpStream, place: Arc<Place>) {
        self.app.counts.connections.fetch_add(1, Relaxed);
        let _ = stream.set_nodelay(true);
        tokio::select! {
            biased;
            () = place.must_leave() => tracing::debug!("a connection was closed before it sent a key, to make room for others"),
            () = self.speak(stream, &place) => {}
        }
        self.app.counts.connections.fetch_sub(1, Relaxed);
    }

    async fn speak(&self, stream: TcpStream, place: &Arc<Place>) {
        let handle = |request, until| {
            let place = (self.door == Door::Main).then(|| place.clone());
            dispatch::answer(self.app.clone(), place, request, until)
        };
        let stop = self.stop.clone();
        let tls = self.app.trust.tls().filter(|_| self.door == Door::Main);
        match tls {
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
