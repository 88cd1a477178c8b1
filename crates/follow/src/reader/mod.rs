//! Reads the log that streams come by: each message goes to its stream, and a stream that is not known is registered.
//!
//! Reading begins where the streams of a snapshot ended, or else with the last message of each stream: what a stream
//! needs besides, it asks its relay for. If the connection is lost, reading goes on where it ended; what the log has not
//! kept until then shows as missing numbers.
//!
//! `nats` reads JetStream, `zmq` a relay's own log, one task for each relay; `ends` knows which messages are of now, `store`
//! keeps snapshots beside the log.

mod ends;
mod message;
mod nats;
mod peer;
mod store;
mod zmq;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use async_nats::connection::State as Connection;
use kvatlas_wire::compact;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use self::ends::Ends;
use self::message::LogMessage;
use self::peer::Peer;
use crate::context::StreamContext;
use crate::endpoint::Endpoint;
use crate::fleet::Fleet;
use crate::relay::{Delivery, Inbox, Line, Link, Relay, Subject};
use crate::state::{Registration, Stream};
use kvatlas_stream::State;

/// Messages that wait for one stream's task.
const ROOM: usize = 64;
/// With fewer messages left to be read, what is read is of now.
const NEAR: u64 = 256;
/// With more, it is not any more.
const FAR: u64 = 20_000;
/// Time before the log is opened again.
const AGAIN: Duration = Duration::from_millis(250);
/// Time before a stream that could not be registered is tried again.
const REFUSED: Duration = Duration::from_secs(10);

/// The name of what readiness waits for until a log has been read up to now, or, if publishing is all that the service
/// is for, until there is one.
fn hold(line: &Line) -> String {
    if line.name == Line::NATS { "relay".to_owned() } else { format!("relay {}", line.name) }
}

/// The same for all connections.
pub(crate) fn holds(relay: &Relay) -> Vec<String> {
    let is_waited_for = relay.reads() || relay.config.dedicated;
    relay.lines().iter().filter(|_| is_waited_for).map(|line| hold(line)).collect()
}

/// Begins to read each log, or releases what waits for a connection by which only is published.
pub(crate) fn start(fleet: &Arc<Fleet>, context: &StreamContext, runtime: &Handle) {
    let relay = &context.relay;
    for (line, asked) in relay.take_lines() {
        let (fleet, relay, hold) = (fleet.clone(), relay.clone(), hold(&line));
        if !relay.reads() {
            runtime.spawn(async move {
                if line.link().wait_for(|link| *link == Link::Up).await.is_ok() {
                    fleet.release(&hold);
                }
            });
            continue;
        }
        if relay.client().is_none() {
            // One of several relays that is not there holds nothing back for longer than an engine would.
            let (fleet, hold, wait) = (fleet.clone(), hold.clone(), context.config.settle_timeout);
            runtime.spawn(async move {
                tokio::time::sleep(wait).await;
                fleet.release(&hold);
            });
        }
        let peer = Peer::new(&line, asked, &relay.config, context.room());
        let (streams, ends) = (HashMap::new(), Ends::default());
        let (looked, known, next) = (Instant::now(), None, None);
        let reader = Reader { fleet, relay, line, hold, streams, known, next, ends, looked, is_open: false };
        runtime.spawn(reader.run(peer));
    }
}

struct Reader {
    fleet: Arc<Fleet>,
    relay: Arc<Relay>,
    line: Arc<Line>,
    hold: String,
    streams: HashMap<String, Route>,
    /// The places up to which the log was read for each stream of a snapshot; none until snapshots are loaded.
    known: Option<Vec<u64>>,
    /// The message to be read next, if any was read.
    next: Option<u64>,
    ends: Ends,
    looked: Instant,
    /// True if the log was opened since that last failed.
    is_open: bool,
}

struct Route {
    subject: Subject,
    /// None if it could not be registered then.
    inbox: Option<mpsc::Sender<Delivery>>,
    /// True if there is no inbox because the stream comes by another connection.
    elsewhere: bool,
    heard: Instant,
}

impl Reader {
    /// Reads until the runtime ends.
    async fn run(mut self, mut peer: Peer) {
        let mut error = String::new();
        loop {
            let read = match self.relay.client() {
                Some(_) => self.read_nats(&mut peer.asked).await,
                None => {
                    self.read_relay(&mut peer).await;
                    Ok(())
                }
            };
            match read {
                Ok(()) => {}
                Err(what) if what == error && !std::mem::take(&mut self.is_open) => {}
                Err(what) => {
                    self.is_open = false;
                    tracing::warn!(name = self.line.name, error = what, "the log cannot be read; it is tried again");
                    error = what;
                }
            }
            self.relay.counts.reconnects.fetch_add(1, Relaxed);
            if self.line.is(Link::Up) {
                self.line.set_link(Link::Behind);
            }
            self.sweep().await;
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The message with which reading is to go on, in a log that keeps messages from `first` to `last`.
    ///
    /// A log that was made anew counts from the beginning: then what is next is not what is meant. Nor is it what the log
    /// does not keep any more: streams that need that notice that it is missing, and ask; the others need not.
    fn place(&self, first: u64, last: u64) -> Option<u64> {
        let is_kept = |next: &u64| (first..=last + 1).contains(next);
        let known = || self.known.iter().flatten().map(|sequence| sequence + 1).filter(is_kept).min();
        self.next.map_or_else(known, |next| Some(next).filter(is_kept))
    }

    /// Notes that what is read is of now.
    fn near(&self) {
        let is_connected = |client: &async_nats::Client| client.connection_state() == Connection::Connected;
        if self.relay.client().is_none_or(is_connected) {
            self.line.set_link(Link::Up);
        }
        self.fleet.release(&self.hold);
    }

    async fn message(&mut self, got: LogMessage<'_>) {
        let LogMessage { subject, payload, sequence, pending, age } = got;
        self.next = Some(sequence + 1);
        let heard = self.ends.is_before(sequence).then(Instant::now);
        // The last word of somebody who left long ago. Where clocks differ, whatever is of now seems to be that.
        if heard.is_none() && age > self.relay.config.forget_after.as_secs() {
            return self.refuse("it is older than relay.forget_after");
        }
        let counts = &self.relay.counts;
        counts.read.fetch_add(1, Relaxed);
        counts.read_bytes.fetch_add(payload.len() as u64, Relaxed);
        self.deliver(subject, Delivery { payload, sequence, heard }).await;
        if pending < NEAR {
            self.near();
        } else if pending > FAR && self.line.is(Link::Up) {
            tracing::warn!(
                pending,
                "this service is far behind the log; its streams are not trusted until it has caught up"
            );
            self.line.set_link(Link::Behind);
        }
    }

    async fn deliver(&mut self, subject: &str, message: Delivery) {
        let is_known = self.streams.get(subject).is_some_and(|route| match &route.inbox {
            Some(inbox) => !inbox.is_closed(),
            None if route.elsewhere => !self.is_free(&route.subject) && route.heard.elapsed() < REFUSED,
            None => route.heard.elapsed() < REFUSED,
        });
        if !is_known && !self.register(subject, &message.payload).await {
            return;
        }
        let Some(route) = self.streams.get_mut(subject) else { return };
        let Some(inbox) = &route.inbox else {
            self.relay.counts.refused.fetch_add(1, Relaxed);
            return;
        };
        route.heard = Instant::now();
        // Its task has ended; the next message begins another one.
        let _ = inbox.send(message).await;
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
        self.relay.leave_inbox(name, Inbox { messages: inbox, line: self.line.clone() });
        let Subject { routing_group, model, worker, rank } = subject.clone();
        let registration = Registration {
            worker,
            model,
            names: None,
            routing_group,
            block_size: message.block_size,
            rank,
            endpoint: Endpoint::log(name, if self.relay.client().is_some() { "nats" } else { "zmq" }),
            replay_endpoint: None,
            topic: String::new(),
            count_copies: true,
            source: "relay".to_owned(),
        };
        if self.is_free(&subject) && self.stream(&subject).is_some() {
            self.unregister(name, &subject).await;
        }
        let mut registered = self.fleet.register(registration).await.map(drop).map_err(|error| error.to_string());
        // Nobody has taken it.
        let elsewhere = self.relay.take_inbox(name).is_some() && registered.is_ok();
        if elsewhere {
            let error = "another relay publishes the same engine, and is followed; stop one of them".to_owned();
            if let Some(stream) = self.stream(&subject) {
                stream.status.set_error(error.clone());
            }
            registered = Err(error);
        }
        if let Err(error) = &registered {
            tracing::warn!(subject = name, error, "a stream of the log cannot be registered");
        }
        let inbox = registered.is_ok().then_some(sender);
        self.streams.insert(name.to_owned(), Route { subject, inbox, elsewhere, heard: Instant::now() });
        true
    }

    fn refuse(&self, why: &str) {
        self.relay.counts.refused.fetch_add(1, Relaxed);
        tracing::debug!(why, "a message of the log is left out");
    }

    /// Forgets streams whose relay has left, or was silent for very long.
    async fn sweep(&mut self) {
        self.looked = Instant::now();
        let is_up = self.line.is(Link::Up);
        let over = |route: &Route| {
            let is_gone = self.stream(&route.subject).is_some_and(|stream| stream.status.is_gone());
            is_gone || is_up && route.heard.elapsed() > self.relay.config.forget_after
        };
        let over: Vec<String> =
            self.streams.iter().filter(|(_, route)| over(route)).map(|(name, _)| name.clone()).collect();
        for name in over {
            let Some(route) = self.streams.remove(&name) else { continue };
            // Else it may come by another connection by now.
            if route.inbox.is_some_and(|inbox| !inbox.is_closed()) {
                self.unregister(&name, &route.subject).await;
            }
        }
    }

    async fn unregister(&self, name: &str, subject: &Subject) {
        let keyspace = (&*subject.model, Some(&*subject.routing_group));
        let ended = self.fleet.unregister(&subject.worker, Some(keyspace), Some(subject.rank)).await;
        tracing::info!(subject = name, ended = ended.is_ok(), "a stream of the log is followed no more");
    }

    fn stream(&self, subject: &Subject) -> Option<Arc<Stream>> {
        self.fleet.keyspace(&subject.model, &subject.routing_group)?.stream(&subject.worker, subject.rank)
    }

    /// True if a stream comes by no connection, or by one by which nothing comes any more.
    fn is_free(&self, subject: &Subject) -> bool {
        let is_lost = |stream: &Stream| {
            let comes_by_a_log = stream.registration.endpoint.log_subject().is_some();
            comes_by_a_log && matches!(stream.status.state(), State::Connecting | State::Stale)
        };
        self.relay.lines().len() > 1 && self.stream(subject).is_none_or(|stream| is_lost(&stream))
    }
}
