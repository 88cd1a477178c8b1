//! Connections from the service to an engine: the live connection, and the one to the engine's replay socket. A
//! connection that ends is made again after a pause, which doubles with each failure. A host name is resolved again for
//! each connection, and its addresses are tried in turn.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use kvatlas_stream::zmtp::{Budget, ConnectAttempt, Connection, Event, Kind, Room, Socket};
use tokio::time::{Instant, Sleep, sleep_until};

use super::topics::{LiveTopics, ReplayTopics};
use super::transport::TransportEvent;
use crate::config::StreamConfig;
use crate::context::StreamContext;
use crate::endpoint::Endpoint;

enum LiveStage {
    /// The pause before the next attempt to connect is not over, or the host name has not been resolved yet.
    Pause,
    Connecting(ConnectAttempt),
    Up(Box<Connection>),
}

/// Live connection to an engine that listens for subscribers: the connection over which the engine's new batches
/// arrive.
pub(crate) struct OutboundStream {
    stage: LiveStage,
    address: Address,
    /// Address to which the engine's host name was last resolved; `None` before the first resolution.
    at: Option<String>,
    topic: String,
    topics: LiveTopics,
    config: StreamConfig,
    room: Room,
    timer: Pin<Box<Sleep>>,
    pause: Duration,
}

impl OutboundStream {
    pub(crate) fn new(endpoint: &Endpoint, topic: &str, context: &StreamContext) -> Self {
        Self {
            stage: LiveStage::Pause,
            address: Address::new(endpoint),
            at: None,
            topic: topic.to_owned(),
            topics: LiveTopics::default(),
            config: context.config.clone(),
            room: context.room(),
            timer: Box::pin(sleep_until(Instant::now())),
            pause: context.config.reconnect_min,
        }
    }

    /// Returns the engine's endpoint, and the address to which it was last resolved; `None` before the first
    /// resolution.
    pub(super) fn place(&self) -> Option<(&Address, &str)> {
        self.at.as_deref().map(|at| (&self.address, at))
    }

    /// Closes the connection to the engine, and connects again without a pause.
    pub(super) fn reconnect(&mut self) {
        self.stage = LiveStage::Pause;
        self.topics = LiveTopics::default();
        self.timer.as_mut().reset(Instant::now());
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        if let Some(incoming) = self.topics.next() {
            return Poll::Ready(incoming);
        }
        loop {
            match &mut self.stage {
                LiveStage::Pause => {
                    ready!(self.timer.as_mut().poll(cx));
                    match ready!(self.address.poll(cx)) {
                        Ok(at) => {
                            self.stage = LiveStage::Connecting(Socket::dial(at.clone()));
                            self.at = Some(at);
                        }
                        Err(error) => return Poll::Ready(self.end(error.to_string())),
                    }
                }
                LiveStage::Connecting(connecting) => match ready!(connecting.as_mut().poll(cx)) {
                    Ok(socket) => {
                        let budget = Budget::new(&self.room);
                        self.stage = LiveStage::Up(Box::new(Connection::new(socket, Kind::Sub, &self.topic, budget)));
                    }
                    Err(error) => return Poll::Ready(self.end(error.to_string())),
                },
                LiveStage::Up(connection) => {
                    return Poll::Ready(match ready!(connection.poll(cx)) {
                        Event::Open => {
                            self.pause = self.config.reconnect_min;
                            TransportEvent::Connected
                        }
                        Event::Message(payload) => self.topics.read(&self.topic, connection.head(), payload),
                        Event::Ended(why) => self.end(why),
                    });
                }
            }
        }
    }

    /// Ends the connection, or the attempt to connect, for the reason `why`, and starts the pause before the next
    /// attempt. Returns the event that reports the end.
    fn end(&mut self, why: String) -> TransportEvent<Vec<u8>> {
        let was_open = matches!(&self.stage, LiveStage::Up(connection) if connection.is_open());
        self.stage = LiveStage::Pause;
        self.topics = LiveTopics::default();
        self.timer.as_mut().reset(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(self.config.reconnect_min, self.config.reconnect_max);
        if was_open { TransportEvent::Disconnected(why) } else { TransportEvent::Unreachable(why) }
    }
}

enum ReplayStage {
    /// No replay was requested, or the pause before the next attempt to connect is not over.
    Closed,
    Connecting(ConnectAttempt),
    Up(Box<Connection>),
}

/// Connection to the replay socket of an engine, which resends past batches.
pub(super) struct Replay {
    stage: ReplayStage,
    address: Address,
    topic: String,
    topics: ReplayTopics,
    config: StreamConfig,
    room: Room,
    /// Sequence number of the first batch in a replay request that has not been sent yet; `None` if there is no request
    /// to send.
    question: Option<u64>,
    /// Timer for the next attempt to connect to the replay socket.
    timer: Pin<Box<Sleep>>,
    pause: Duration,
}

impl Replay {
    /// Creates an unconnected connection to a replay socket, without a request. `topic` is the topic of the stream;
    /// empty if it accepts any topic.
    pub(super) fn new(address: Address, topic: &str, context: &StreamContext) -> Self {
        Self {
            stage: ReplayStage::Closed,
            address,
            topic: topic.to_owned(),
            topics: ReplayTopics::default(),
            config: context.config.clone(),
            room: context.room(),
            question: None,
            timer: Box::pin(sleep_until(Instant::now())),
            pause: context.config.reconnect_min,
        }
    }

    pub(super) fn ask(&mut self, from: u64) {
        self.question = Some(from);
    }

    /// Drops the replay request, and closes the connection, so that answers in transit are discarded.
    pub(super) fn cancel(&mut self) {
        self.question = None;
        self.stage = ReplayStage::Closed;
        self.topics = ReplayTopics::default();
        self.timer.as_mut().reset(Instant::now());
    }

    /// Returns the next event of the replay connection. `live` is the endpoint of the live connection with the address
    /// to which it was resolved; the replay connection uses the same address if both have the same host name.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        live: Option<(&Address, &str)>,
    ) -> Poll<TransportEvent<Vec<u8>>> {
        if let Some(incoming) = self.topics.next() {
            return Poll::Ready(incoming);
        }
        loop {
            match &mut self.stage {
                ReplayStage::Closed => {
                    if self.question.is_none() {
                        return Poll::Pending;
                    }
                    ready!(self.timer.as_mut().poll(cx));
                    let found = match live.and_then(|(name, at)| self.address.beside(name, at)) {
                        Some(at) => Ok(at),
                        None => ready!(self.address.poll(cx)),
                    };
                    match found {
                        Ok(at) => self.stage = ReplayStage::Connecting(Socket::dial(at)),
                        Err(error) => return Poll::Ready(self.end(error.to_string())),
                    }
                }
                ReplayStage::Connecting(connecting) => match ready!(connecting.as_mut().poll(cx)) {
                    Ok(socket) => {
                        let budget = Budget::new(&self.room);
                        self.stage = ReplayStage::Up(Box::new(Connection::new(socket, Kind::Dealer, "", budget)));
                    }
                    Err(error) => return Poll::Ready(self.end(error.to_string())),
                },
                ReplayStage::Up(connection) => {
                    if connection.is_open()
                        && let Some(from) = self.question.take()
                    {
                        connection.send(&from.to_be_bytes());
                    }
                    match ready!(connection.poll(cx)) {
                        Event::Open => self.pause = self.config.reconnect_min,
                        Event::Message(payload) => {
                            return Poll::Ready(self.topics.read(&self.topic, connection.head(), payload));
                        }
                        Event::Ended(why) => return Poll::Ready(self.end(why)),
                    }
                }
            }
        }
    }

    /// Ends the replay connection for the reason `why`, and returns the event that reports the end. A request that was
    /// already sent is not sent again; it fails at its deadline.
    fn end(&mut self, why: String) -> TransportEvent<Vec<u8>> {
        self.stage = ReplayStage::Closed;
        self.topics = ReplayTopics::default();
        self.timer.as_mut().reset(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(self.config.reconnect_min, self.config.reconnect_max);
        TransportEvent::Unreachable(why)
    }
}

const TIMEOUT: Duration = Duration::from_secs(5);

type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Endpoint whose host name is resolved again for each connection.
pub(crate) struct Address {
    endpoint: Endpoint,
    /// Host name and port; `None` if the host is not a name.
    name: Option<(String, u16)>,
    lookup: Option<Lookup>,
    /// Number of resolutions so far, which selects the next of several addresses.
    turn: usize,
}

impl Address {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        let name = endpoint.as_str().strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
        let name = name.filter(|(host, _)| host.trim_matches(['[', ']']).parse::<IpAddr>().is_err());
        let name = name.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        Self { endpoint: endpoint.clone(), name, lookup: None, turn: 0 }
    }

    /// Combines the endpoint's port with the host address in `at`, the resolved address of the endpoint `other`. `None`
    /// if the two endpoints have different host names.
    pub(crate) fn beside(&self, other: &Self, at: &str) -> Option<String> {
        let ((host, port), (other, _)) = (self.name.as_ref()?, other.name.as_ref()?);
        let (found, _) = at.rsplit_once(':')?;
        (host == other).then(|| format!("{found}:{port}"))
    }

    /// Returns the next address to connect to, in ZeroMQ's form, once the host name is resolved.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<String>> {
        let Some((host, port)) = &self.name else { return Poll::Ready(Ok(self.endpoint.to_string())) };
        let lookup = self.lookup.get_or_insert_with(|| {
            let name = (host.clone(), *port);
            Box::pin(async move {
                let found = tokio::time::timeout(TIMEOUT, tokio::net::lookup_host(name)).await;
                Ok(found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.collect())
            })
        });
        let found = ready!(lookup.as_mut().poll(cx));
        self.lookup = None;
        let found =
            found.map_err(|error| io::Error::new(error.kind(), format!("{host:?} cannot be found: {error}")))?;
        self.turn = self.turn.wrapping_add(1);
        match found.get(self.turn.wrapping_sub(1) % found.len().max(1)) {
            Some(address) => Poll::Ready(Ok(format!("tcp://{address}"))),
            None => Poll::Ready(Err(io::Error::new(io::ErrorKind::NotFound, format!("{host:?} has no address")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn only_names_are_looked_up() {
        for fixed in ["tcp://127.0.0.1:5557", "tcp://[::1]:5557", "ipc:///tmp/x"] {
            let mut address = Address::new(&fixed.parse().expect("it is an endpoint"));
            assert!(address.name.is_none());
            assert_eq!(poll_fn(|cx| address.poll(cx)).await.ok(), Some(fixed.to_owned()));
        }
        let mut address = Address::new(&"tcp://localhost:5557".parse().expect("it is an endpoint"));
        for _ in 0..3 {
            let found = poll_fn(|cx| address.poll(cx)).await.expect("localhost is known");
            assert!(["tcp://127.0.0.1:5557", "tcp://[::1]:5557"].contains(&found.as_str()), "{found}");
        }
    }

    #[test]
    fn one_name_is_one_host() {
        let address = |text: &str| Address::new(&text.parse().expect("it is an endpoint"));
        let (events, replay) = (address("tcp://engine:5557"), address("tcp://engine:5558"));
        assert_eq!(replay.beside(&events, "tcp://10.0.0.7:5557").as_deref(), Some("tcp://10.0.0.7:5558"));
        assert_eq!(replay.beside(&events, "tcp://[::1]:5557").as_deref(), Some("tcp://[::1]:5558"));
        assert_eq!(replay.beside(&address("tcp://other:5557"), "tcp://10.0.0.7:5557"), None);
        assert_eq!(address("tcp://10.0.0.9:5558").beside(&events, "tcp://10.0.0.7:5557"), None);
        assert_eq!(replay.beside(&address("tcp://10.0.0.7:5557"), "tcp://10.0.0.7:5557"), None);
    }

    #[tokio::test]
    async fn unknown_names_are_errors() {
        let mut address = Address::new(&"tcp://no-such-host.invalid:5557".parse().expect("it is an endpoint"));
        let error = poll_fn(|cx| address.poll(cx)).await.expect_err("nobody has that name");
        assert!(error.to_string().contains("no-such-host"), "{error}");
    }
}
