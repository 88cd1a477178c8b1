//! Connections of engines that connect their publishing socket to the service, instead of listening.
//!
//! A connection is assigned to a stream by its first batch: by the port at which it was accepted, and the batch's
//! topic. Until that stream is registered, the connection's batches are counted and dropped. When the stream is
//! registered, it gets the connection at once, and can request earlier batches without waiting for the next one.
//!
//! The first connection of a stream is read. A second one may come from the same engine, whose first connection was
//! lost unnoticed, or from another publisher; its messages do not show which. So the second connection waits, with its
//! newest batches kept, until the first is closed. A PING is sent over the first one to find out if it still works.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use kvatlas_stream::zmtp::{Budget, Connection, Event, Kind, Room, Socket};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};

use super::topics::live_batch;
use super::transport::TransportEvent;

/// Maximum number of topics and addresses that are logged, each once.
const MOST_NAMED: usize = 1000;
/// Pause after a failure to accept an engine's connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Port and topic that identify a [`Route`], by which an engine's connections reach their stream.
type Name = (u16, Box<[u8]>);

/// Connections of engines to the service, and the routes by which they are passed to their streams.
#[derive(Debug)]
pub(crate) struct Publishers {
    /// Semaphore that limits the number of engines' connections to the service.
    places: Arc<Semaphore>,
    most: usize,
    ports: Mutex<BTreeSet<u16>>,
    routes: Mutex<HashMap<Name, (u64, UnboundedSender<Connection>)>>,
    /// Number of the newest route (assignment of a port and topic to a stream). When it changes, connections without a
    /// stream search for their route again.
    number: watch::Sender<u64>,
    topics_named: Mutex<HashSet<Name>>,
    addresses_named: Mutex<HashSet<IpAddr>>,
    not_allowed: AtomicU64,
    too_many: AtomicU64,
    unknown_topics: AtomicU64,
}

/// Assignment of all connections with one port and topic to a stream. The stream owns the assignment, and receives the
/// connections from it.
pub(super) struct Route {
    publishers: Arc<Publishers>,
    name: Name,
    number: u64,
    receiver: UnboundedReceiver<Connection>,
}

impl Route {
    pub(super) fn topic(&self) -> &[u8] {
        &self.name.1
    }

    /// Returns the next new connection with the port and topic of this route.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Connection> {
        match self.receiver.poll_recv(cx) {
            Poll::Ready(Some(connection)) => Poll::Ready(connection),
            // Another has taken the topic over; this one ends soon.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        let mut routes = self.publishers.routes.lock();
        if routes.get(&self.name).is_some_and(|(number, _)| *number == self.number) {
            routes.remove(&self.name);
        }
    }
}

impl Publishers {
    /// Creates an empty set of routes. `most` is the maximum number of simultaneous connections.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let most = most.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            places: Arc::new(Semaphore::new(most)),
            most,
            ports: Mutex::default(),
            routes: Mutex::default(),
            number: watch::Sender::new(0),
            topics_named: Mutex::default(),
            addresses_named: Mutex::default(),
            not_allowed: AtomicU64::new(0),
            too_many: AtomicU64::new(0),
            unknown_topics: AtomicU64::new(0),
        })
    }

    /// Returns the ports at which engines' connections are accepted.
    pub(crate) fn ports(&self) -> BTreeSet<u16> {
        self.ports.lock().clone()
    }

    pub(crate) fn listens_at(&self, port: u16) {
        self.ports.lock().insert(port);
    }

    /// Returns the number of engines' connections to the service.
    pub(crate) fn connections(&self) -> usize {
        self.most - self.places.available_permits()
    }

    /// Returns the numbers of refused connections, by reason: a forbidden address, or too many connections.
    pub(crate) fn refused(&self) -> [(&'static str, u64); 2] {
        [("not_allowed", self.not_allowed.load(Relaxed)), ("too_many", self.too_many.load(Relaxed))]
    }

    /// Returns the number of batches whose topic belongs to no registered stream.
    pub(crate) fn unknown_topics(&self) -> u64 {
        self.unknown_topics.load(Relaxed)
    }

    pub(super) fn route(self: &Arc<Self>, port: u16, topic: &str) -> Route {
        let (sender, receiver) = unbounded_channel();
        let name = (port, topic.as_bytes().into());
        let mut number = 0;
        self.number.send_modify(|newest| {
            *newest += 1;
            number = *newest;
            self.routes.lock().insert(Name::clone(&name), (number, sender));
        });
        Route { publishers: self.clone(), name, number, receiver }
    }

    /// Accepts connections at a port for as long as the service runs. `allowed` returns true for an address from which
    /// connections are accepted.
    pub(crate) async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        port: u16,
        room: Room,
        allowed: impl Fn(IpAddr) -> bool,
    ) {
        loop {
            let (peer, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, port, "a connection from an engine could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            if !allowed(from.ip()) {
                self.not_allowed.fetch_add(1, Relaxed);
                if is_news(&self.addresses_named, from.ip()) {
                    tracing::warn!(%from, port, "an engine's connection was refused: its address is not in streams.allow");
                }
                continue;
            }
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                self.too_many.fetch_add(1, Relaxed);
                continue;
            };
            let mut connection = Connection::new(Socket::of_peer(peer), Kind::Sub, "", Budget::new(&room));
            connection.keep(place);
            let publishers = self.clone();
            tokio::spawn(async move { publishers.attend(connection, from, port).await });
        }
    }

    /// Reads a connection until its stream is known, and passes the connection to that stream.
    async fn attend(self: Arc<Self>, mut connection: Connection, from: SocketAddr, port: u16) {
        let mut newest = self.number.subscribe();
        let mut name: Option<Name> = None;
        loop {
            let event = tokio::select! {
                event = poll_fn(|cx| connection.poll(cx)) => Some(event),
                // The sender is ours: this cannot fail.
                _ = newest.changed(), if name.is_some() => None,
            };
            match event {
                None => {}
                Some(Event::Open) => tracing::debug!(%from, port, "an engine has connected"),
                Some(Event::Ended(why)) => {
                    tracing::debug!(%from, port, why, "an engine without a registered stream has disconnected");
                    return;
                }
                Some(Event::Message(payload)) => {
                    let topic = connection.head().back(1).unwrap_or_default();
                    name = Some((port, topic.into()));
                    if !self.has_route(name.as_ref()) {
                        self.unknown_topics.fetch_add(1, Relaxed);
                        if is_news(&self.topics_named, (port, topic.into())) {
                            let topic = String::from_utf8_lossy(topic);
                            tracing::warn!(%from, port, ?topic, "no stream is registered for the topic of a connected engine");
                        }
                        continue;
                    }
                    connection.give_back(payload);
                }
            }
            let sender = name.as_ref().and_then(|name| self.routes.lock().get(name).map(|(_, sender)| sender.clone()));
            if let Some(sender) = sender {
                match sender.send(connection) {
                    Ok(()) => return,
                    // The stream has just ended.
                    Err(back) => connection = back.0,
                }
            }
        }
    }

    fn has_route(&self, name: Option<&Name>) -> bool {
        name.is_some_and(|name| self.routes.lock().contains_key(name))
    }
}

fn is_news<T: Eq + std::hash::Hash>(named: &Mutex<HashSet<T>>, it: T) -> bool {
    let mut named = named.lock();
    named.len() < MOST_NAMED && named.insert(it)
}

/// Maximum number of further connections of a stream that wait for the first one to close; the newest are kept.
const RIVALS: usize = 8;
/// Maximum number of batches kept for each waiting connection. The newest are kept; their sequence numbers show which
/// are missing.
const BATCHES: usize = 1024;
/// Maximum total size, in bytes, of the batches kept for each waiting connection; the newest are kept.
const BYTES: usize = 4 << 20;

/// Further connection of a stream, which waits until the stream's first connection is closed.
struct Rival {
    connection: Connection,
    /// Events that the waiting connection has delivered so far, each with its size in bytes.
    brought: VecDeque<(TransportEvent<Vec<u8>>, usize)>,
    bytes: usize,
}

impl Rival {
    fn bring(&mut self, incoming: TransportEvent<Vec<u8>>, bytes: usize) {
        self.bytes += bytes;
        self.brought.push_back((incoming, bytes));
        while self.brought.len() > BATCHES || self.bytes > BYTES {
            let Some((_, bytes)) = self.brought.pop_front() else { return };
            self.bytes -= bytes;
        }
    }
}

pub(super) struct InboundStream {
    route: Route,
    first: Option<Connection>,
    /// Further connections of the stream that wait for the first one to close, in the order of their arrival.
    rivals: VecDeque<Rival>,
    /// Events of the stream's connection that are returned before new ones are read.
    next: VecDeque<TransportEvent<Vec<u8>>>,
}

impl InboundStream {
    pub(super) fn new(route: Route) -> Self {
        Self { route, first: None, rivals: VecDeque::new(), next: VecDeque::new() }
    }

    /// Closes the connection that is read, whose publisher then connects again. Another connection that waits replaces
    /// it.
    pub(super) fn reconnect(&mut self) {
        self.next.clear();
        self.first = None;
        self.succeed();
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        if let Some(incoming) = self.next.pop_front() {
            return Poll::Ready(incoming);
        }
        if let Some(first) = &mut self.first
            && let Poll::Ready(event) = first.poll(cx)
        {
            match event {
                // It was open when it came.
                Event::Open => {}
                Event::Message(payload) => return Poll::Ready(batch(first, self.route.topic(), payload)),
                Event::Ended(why) => {
                    self.first = None;
                    self.succeed();
                    return Poll::Ready(TransportEvent::Disconnected(why));
                }
            }
        }
        if let Poll::Ready(connection) = self.route.poll(cx) {
            return Poll::Ready(self.accept(connection));
        }
        let (before, topic) = (self.rivals.len(), self.route.topic());
        self.rivals.retain_mut(|rival| {
            // A few at a time, as the connection waits anyway.
            for _ in 0..BATCHES {
                match rival.connection.poll(cx) {
                    Poll::Pending => return true,
                    Poll::Ready(Event::Open) => {}
                    Poll::Ready(Event::Message(payload)) => {
                        let bytes = payload.len();
                        let incoming = batch(&rival.connection, topic, payload);
                        rival.bring(incoming, bytes);
                    }
                    Poll::Ready(Event::Ended(_)) => return false,
                }
            }
            cx.waker().wake_by_ref();
            true
        });
        if before > 0 && self.rivals.is_empty() { Poll::Ready(TransportEvent::Alone) } else { Poll::Pending }
    }

    fn accept(&mut self, connection: Connection) -> TransportEvent<Vec<u8>> {
        let Some(first) = &mut self.first else {
            self.first = Some(connection);
            return TransportEvent::Connected;
        };
        first.doubt();
        if self.rivals.len() >= RIVALS {
            self.rivals.pop_front();
        }
        let from = connection.peer();
        self.rivals.push_back(Rival { connection, brought: VecDeque::new(), bytes: 0 });
        TransportEvent::Rival(from)
    }

    /// Closes the connection that was read, and reads from the connection that has waited longest.
    fn succeed(&mut self) {
        let Some(Rival { connection, brought, .. }) = self.rivals.pop_front() else { return };
        self.first = Some(connection);
        self.next.push_back(TransportEvent::Connected);
        // The others are rivals of this one.
        self.next.push_back(
            self.rivals.front().map_or(TransportEvent::Alone, |rival| TransportEvent::Rival(rival.connection.peer())),
        );
        self.next.extend(brought.into_iter().map(|(incoming, _)| incoming));
    }
}

/// Converts a message to an event: a batch if the message has the stream's topic, else a report of another topic or of
/// invalid frames.
fn batch(connection: &Connection, topic: &[u8], payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
    match (live_batch(connection.head(), payload), connection.head().back(1)) {
        (TransportEvent::Live { .. }, Some(its)) if its != topic => TransportEvent::OtherTopic(its.into()),
        (event, _) => event,
    }
}
