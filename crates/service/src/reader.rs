//! Reads the log that streams come by: each message goes to its stream, and a stream that is not known is registered.
//!
//! Reading begins where the streams of a snapshot ended, or else with the last message of each stream: what a stream
//! needs besides, it asks its relay for. If the connection is lost, reading goes on where it ended; what the log has not
//! kept until then shows as missing numbers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::connection::State as Connection;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::{Context, Message};
use futures_util::StreamExt as _;
use kvatlas_wire::compact;
use tokio::sync::mpsc;

use crate::endpoint::Endpoint;
use crate::fleet::Fleet;
use crate::relay::{Delivered, Link, Relay, Subject};
use crate::state::Registration;

/// What readiness waits for until the log has been read up to now.
pub(crate) const HOLD: &str = "relay";

/// Messages that wait for one stream's task.
const ROOM: usize = 64;
/// With fewer messages left to be read, what is read is of now.
const NEAR: u64 = 256;
/// With more, it is not any more.
const FAR: u64 = 20_000;
/// Before the log is opened again.
const AGAIN: Duration = Duration::from_millis(250);
/// Without a message, until the connection is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Before a stream that could not be registered is tried again.
const REFUSED: Duration = Duration::from_secs(10);

/// Reads until the runtime ends.
pub(crate) async fn run(fleet: Arc<Fleet>, relay: Arc<Relay>) {
    let mut reader = Reader { fleet, relay, streams: HashMap::new(), next: None, looked: Instant::now() };
    reader.next = reader.fleet.snapshots().sequence().await.map(|sequence| sequence + 1);
    let mut error = String::new();
    loop {
        match reader.read().await {
            Ok(()) => {}
            Err(what) if what == error => {}
            Err(what) => {
                tracing::warn!(error = what, "the log cannot be read; it is tried again");
                error = what;
            }
        }
        reader.relay.counts.reconnects.fetch_add(1, Relaxed);
        if *reader.relay.link().borrow() == Link::Up {
            reader.relay.set_link(Link::Behind);
        }
        reader.sweep().await;
        tokio::time::sleep(AGAIN).await;
    }
}

struct Reader {
    fleet: Arc<Fleet>,
    relay: Arc<Relay>,
    streams: HashMap<String, Route>,
    /// The message to be read next, if any was read.
    next: Option<u64>,
    looked: Instant,
}

struct Route {
    subject: Subject,
    /// None if it could not be registered then.
    inbox: Option<mpsc::Sender<Delivered>>,
    heard: Instant,
}

impl Reader {
    /// Reads until that fails.
    async fn read(&mut self) -> Result<(), String> {
        let Some(client) = self.relay.client().cloned() else { return Err("not connected".to_owned()) };
        if client.connection_state() != Connection::Connected {
            return Err("not connected".to_owned());
        }
        let log = ContextBuilder::new().timeout(Duration::from_secs(2)).build(client.clone());
        let mut messages = self.open(&log).await?;
        loop {
            let message = match tokio::time::timeout(LOOK, messages.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return Err(error.to_string()),
                Ok(None) => return Err("the log has ended".to_owned()),
                Err(_) if client.connection_state() != Connection::Connected => {
                    return Err("the connection is lost".to_owned());
                }
                Err(_) => {
                    // Nothing is left to be read.
                    self.near();
                    self.sweep().await;
                    continue;
                }
            };
            self.message(message).await;
            if self.looked.elapsed() > LOOK {
                self.sweep().await;
            }
        }
    }

    async fn open(&mut self, log: &Context) -> Result<async_nats::jetstream::consumer::pull::Ordered, String> {
        let name = &self.relay.config.stream;
        let mut stream = log.get_stream(name).await.map_err(|error| format!("stream {name:?}: {error}"))?;
        let info = stream.info().await.map_err(|error| error.to_string())?;
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        // A log that was made anew counts from the beginning: then what is next is not what is meant.
        let next = self.next.filter(|next| (first..=last + 1).contains(next));
        let deliver_policy = match next {
            Some(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
            None => DeliverPolicy::LastPerSubject,
        };
        tracing::info!(stream = name, first, last, next, "reading the log");
        let filter_subject = Subject::ALL.to_owned();
        let replay_policy = ReplayPolicy::Instant;
        let config = OrderedConfig { deliver_policy, filter_subject, replay_policy, ..OrderedConfig::default() };
        let consumer = stream.create_consumer(config).await.map_err(|error| error.to_string())?;
        if next.is_some_and(|next| next > last) || last == 0 {
            self.near();
        }
        consumer.messages().await.map_err(|error| error.to_string())
    }

    /// What is read is of now.
    fn near(&self) {
        let relay = &self.relay;
        if *relay.link().borrow() != Link::Up
            && relay.client().is_some_and(|client| client.connection_state() == Connection::Connected)
        {
            relay.set_link(Link::Up);
        }
        self.fleet.release(HOLD);
    }

    async fn message(&mut self, message: Message) {
        let (sequence, pending) = match message.info() {
            Ok(info) => {
                let age = since_1970().saturating_sub(info.published.unix_timestamp().unsigned_abs());
                // The last word of somebody who left long ago.
                if age > self.relay.config.forget_after.as_secs() {
                    self.next = Some(info.stream_sequence + 1);
                    return;
                }
                (info.stream_sequence, info.pending)
            }
            Err(_) => return self.refuse("its place in the log is unknown"),
        };
        let counts = &self.relay.counts;
        counts.read.fetch_add(1, Relaxed);
        counts.read_bytes.fetch_add(message.payload.len() as u64, Relaxed);
        let message = message.message;
        self.deliver(message.subject.as_str(), message.payload, sequence).await;
        self.next = Some(sequence + 1);
        if pending < NEAR {
            self.near();
        } else if pending > FAR && *self.relay.link().borrow() == Link::Up {
            tracing::warn!(
                pending,
                "this service is far behind the log; its streams are not trusted until it has caught up"
            );
            self.relay.set_link(Link::Behind);
        }
    }

    async fn deliver(&mut self, subject: &str, payload: bytes::Bytes, sequence: u64) {
        let is_known = self.streams.get(subject).is_some_and(|route| match &route.inbox {
            Some(inbox) => !inbox.is_closed(),
            None => route.heard.elapsed() < REFUSED,
        });
        if !is_known && !self.register(subject, &payload).await {
            return;
        }
        let Some(route) = self.streams.get_mut(subject) else { return };
        let Some(inbox) = &route.inbox else {
            self.relay.counts.refused.fetch_add(1, Relaxed);
            return;
        };
        route.heard = Instant::now();
        // Its task has ended; the next message begins another one.
        let _ = inbox.send(Delivered { payload, sequence }).await;
    }

    /// Registers a stream that was not heard before. False if it has nothing to say.
    async fn register(&mut self, name: &str, payload: &[u8]) -> bool {
        let Some(subject) = Subject::parse(name) else {
            self.refuse("its subject is not kvatlas.GROUP.MODEL.WORKER.RANK");
            return false;
        };
        let message = match compact::Message::read(payload) {
            Ok(message) => message,
            Err(error) => {
                self.refuse(&error.to_string());
                return false;
            }
        };
        if message.frames().any(|frame| frame == Ok(compact::Frame::Gone)) {
            return false;
        }
        let (sender, inbox) = mpsc::channel(ROOM);
        self.relay.leave_inbox(name, inbox);
        let Subject { routing_group, model, worker, rank } = subject.clone();
        let registration = Registration {
            worker,
            model,
            names: None,
            routing_group,
            block_size: message.block_size,
            rank,
            endpoint: Endpoint::log(name),
            replay_endpoint: None,
            topic: String::new(),
            count_copies: true,
            source: "relay".to_owned(),
        };
        let registered = self.fleet.register(registration).await;
        if let Err(error) = &registered {
            self.relay.take_inbox(name);
            tracing::warn!(subject = name, %error, "a stream of the log cannot be registered");
        }
        let inbox = registered.is_ok().then_some(sender);
        self.streams.insert(name.to_owned(), Route { subject, inbox, heard: Instant::now() });
        true
    }

    fn refuse(&self, why: &str) {
        self.relay.counts.refused.fetch_add(1, Relaxed);
        tracing::debug!(why, "a message of the log is left out");
    }

    /// Forgets streams whose relay has left, or was silent for very long.
    async fn sweep(&mut self) {
        self.looked = Instant::now();
        let is_up = *self.relay.link().borrow() == Link::Up;
        let over = |route: &Route| {
            let stream = self.fleet.keyspace(&route.subject.model, &route.subject.routing_group);
            let stream = stream.and_then(|keyspace| keyspace.stream(&route.subject.worker, route.subject.rank));
            let is_gone = stream.is_some_and(|stream| stream.status.is_gone());
            is_gone || is_up && route.heard.elapsed() > self.relay.config.forget_after
        };
        let over: Vec<String> =
            self.streams.iter().filter(|(_, route)| over(route)).map(|(name, _)| name.clone()).collect();
        for name in over {
            let Some(Route { subject, .. }) = self.streams.remove(&name) else { continue };
            let keyspace = (&*subject.model, Some(&*subject.routing_group));
            let ended = self.fleet.unregister(&subject.worker, Some(keyspace), Some(subject.rank)).await;
            tracing::info!(subject = name, ended = ended.is_ok(), "a stream of the log is followed no more");
        }
    }
}

fn since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
