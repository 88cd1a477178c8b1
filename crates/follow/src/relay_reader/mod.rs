//! Reader of the NATS log to which relays publish. Each message is passed to the task of its stream, and an unknown
//! stream is registered.
//!
//! Reading begins after the last message that a loaded snapshot includes, or else with the last message of each stream;
//! the stream then asks its relay for a full state. If the connection is lost, reading continues where it ended.
//! Messages that the log has deleted meanwhile are noticed as missing numbers.
//!
//! `nats` reads JetStream and determines which messages were just published; `store` keeps snapshots beside the log.

mod nats;
mod store;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use async_nats::connection::State as Connection;
use bytes::Bytes;
use kvatlas_wire::compact;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use self::nats::Ends;
use crate::context::StreamContext;
use crate::endpoint::Endpoint;
use crate::fleet::Fleet;
use crate::relay::{Delivery, Inbox, LinkState, Relay, Subject};
use crate::state::{Registration, Stream};

/// Maximum number of messages that wait for the task of one stream.
const ROOM: usize = 64;
/// Number of unread messages below which the reader is regarded as having caught up with the log.
const NEAR: u64 = 256;
/// Number of unread messages above which the reader is regarded as having fallen behind the log.
const FAR: u64 = 20_000;
/// Wait before the NATS log is opened again after a failure.
const AGAIN: Duration = Duration::from_millis(250);
/// Wait before another attempt to register a stream of the log that the service has refused to register.
const REFUSED: Duration = Duration::from_secs(10);

/// Name of the condition that keeps the service from being ready until the reader has caught up with the log or, in a
/// service that only publishes, until the log exists.
const HOLD: &str = "relay";

/// Returns the name of the condition by which the log keeps the service from being ready; `None` if the service does
/// not wait for the log.
pub(crate) fn hold(relay: &Relay) -> Option<String> {
    let is_waited_for = relay.reads() || relay.publishes() && relay.config.dedicated;
    is_waited_for.then(|| HOLD.to_owned())
}

/// Starts reading the log. In a service that only publishes, waits in the background until the log exists, and then no
/// longer keeps the service from being ready.
pub(crate) fn start(fleet: &Arc<Fleet>, context: &StreamContext, runtime: &Handle) {
    let (fleet, relay) = (fleet.clone(), context.relay.clone());
    if relay.publishes() {
        runtime.spawn(async move {
            if relay.link.watch().wait_for(|state| *state == LinkState::Up).await.is_ok() {
                fleet.release(HOLD);
            }
        });
    } else if let Some(questions) = relay.take_questions().filter(|_| relay.reads()) {
        let (streams, ends) = (HashMap::new(), Ends::default());
        let (swept, known, next) = (Instant::now(), None, None);
        let reader = Reader { fleet, relay, streams, known, next, ends, swept, is_open: false };
        runtime.spawn(reader.run(questions));
    }
}

/// Message read from the NATS log.
struct LogMessage<'a> {
    subject: &'a str,
    payload: Bytes,
    sequence: u64,
    /// Approximate number of messages that follow this one in the log.
    pending: u64,
    /// Time since the message was published, in seconds, if the machines' clocks agree.
    age: u64,
}

struct Reader {
    fleet: Arc<Fleet>,
    relay: Arc<Relay>,
    streams: HashMap<String, Route>,
    /// Sequence numbers up to which the log had been read for each stream in a loaded snapshot; `None` until snapshots
    /// are loaded.
    known: Option<Vec<u64>>,
    /// Sequence number of the next message to read; `None` before the first.
    next: Option<u64>,
    ends: Ends,
    /// Time of the last search for streams that relays no longer publish.
    swept: Instant,
    /// True if the NATS log has been opened since the last failure.
    is_open: bool,
}

struct Route {
    subject: Subject,
    /// Sender of messages to the stream's task; `None` if the stream could not be registered.
    inbox: Option<mpsc::Sender<Delivery>>,
    heard: Instant,
}

impl Reader {
    /// Reads the log until the async runtime ends. `questions` receives the NATS subjects of streams whose publishers
    /// are to be asked to publish all held blocks.
    async fn run(mut self, mut questions: mpsc::Receiver<String>) {
        let mut error = String::new();
        loop {
            match self.read_nats(&mut questions).await {
                Ok(()) => {}
                Err(what) if what == error && !std::mem::take(&mut self.is_open) => {}
                Err(what) => {
                    self.is_open = false;
                    tracing::warn!(error = what, "the log cannot be read; it is tried again");
                    error = what;
                }
            }
            self.relay.counts.reconnects.fetch_add(1, Relaxed);
            if self.relay.link.is(LinkState::Up) {
                self.relay.link.set(LinkState::Behind);
            }
            self.sweep().await;
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Returns the sequence number at which to continue reading, in a log that has messages `first` to `last`.
    ///
    /// `None` if the log does not have that message, because the log was created anew and counts from the beginning, or
    /// because old messages were deleted. Streams notice missing messages by their numbers, and ask their relay for a
    /// full state.
    fn place(&self, first: u64, last: u64) -> Option<u64> {
        let is_kept = |next: &u64| (first..=last + 1).contains(next);
        let known = || self.known.iter().flatten().map(|sequence| sequence + 1).filter(is_kept).min();
        self.next.map_or_else(known, |next| Some(next).filter(is_kept))
    }

    /// Records that the reader has read all messages of the NATS log, so that the log no longer keeps the service from
    /// being ready.
    fn caught_up(&self) {
        if self.relay.client().is_some_and(|client| client.connection_state() == Connection::Connected) {
            self.relay.link.set(LinkState::Up);
        }
        self.fleet.release(HOLD);
    }

    async fn message(&mut self, got: LogMessage<'_>) {
        let LogMessage { subject, payload, sequence, pending, age } = got;
        self.next = Some(sequence + 1);
        let heard = self.ends.is_new(sequence).then(Instant::now);
        // The last message of a relay that left long ago. Where clocks differ, even a new message may seem that old.
        if heard.is_none() && age > self.relay.config.forget_after.as_secs() {
            return self.refuse("it is older than relay.forget_after");
        }
        let counts = &self.relay.counts;
        counts.read.fetch_add(1, Relaxed);
        counts.read_bytes.fetch_add(payload.len() as u64, Relaxed);
        self.deliver(subject, Delivery { payload, sequence, heard }).await;
        if pending < NEAR {
            self.caught_up();
        } else if pending > FAR && self.relay.link.is(LinkState::Up) {
            tracing::warn!(
                pending,
                "this service is far behind the log; its streams are not trusted until it has caught up"
            );
            self.relay.link.set(LinkState::Behind);
        }
    }

    async fn deliver(&mut self, subject: &str, message: Delivery) {
        let is_known = self.streams.get(subject).is_some_and(|route| match &route.inbox {
            Some(inbox) => !inbox.is_closed(),
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

    /// Registers an unknown stream, as described by its subject and a message. Returns false if no registration can be
    /// made from the message.
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
        self.relay.leave_inbox(name, Inbox { messages: inbox });
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
            host_chunk: None,
            source: "relay".to_owned(),
        };
        let mut registered = self.fleet.register(registration).await.map(drop).map_err(|error| error.to_string());
        // The task of a new stream takes its inbox.
        if self.relay.take_inbox(name).is_some() && registered.is_ok() {
            registered = Err("it is registered already".to_owned());
        }
        if let Err(error) = &registered {
            tracing::warn!(subject = name, error, "a stream of the log cannot be registered");
        }
        let inbox = registered.is_ok().then_some(sender);
        self.streams.insert(name.to_owned(), Route { subject, inbox, heard: Instant::now() });
        true
    }

    fn refuse(&self, why: &str) {
        self.relay.counts.refused.fetch_add(1, Relaxed);
        tracing::debug!(why, "a message of the log is left out");
    }

    /// Unregisters streams that their relay (the publishing service) no longer publishes, or whose relay has been
    /// silent for `relay.forget_after`.
    async fn sweep(&mut self) {
        self.swept = Instant::now();
        let is_up = self.relay.link.is(LinkState::Up);
        let over = |route: &Route| {
            let is_gone = self.stream(&route.subject).is_some_and(|stream| stream.status.is_gone());
            is_gone || is_up && route.heard.elapsed() > self.relay.config.forget_after
        };
        let over: Vec<String> =
            self.streams.iter().filter(|(_, route)| over(route)).map(|(name, _)| name.clone()).collect();
        for name in over {
            let Some(route) = self.streams.remove(&name) else { continue };
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
}
