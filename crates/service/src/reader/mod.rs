//! Reads the log that streams come by: each message goes to its stream, and a stream that is not known is registered.
//!
//! Reading begins where the streams of a snapshot ended, or else with the last message of each stream: what a stream
//! needs besides, it asks its relay for. If the connection is lost, reading goes on where it ended; what the log has not
//! kept until then shows as missing numbers.
//!
//! A message tells that its relay lives only if it is of now. Clocks of several machines do not show that. So the log is
//! asked each second for its last message: what is behind it in the log was published since.

mod store;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::connection::State as Connection;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Info, Stream};
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
/// A message that was published within this time is of now.
const NOW: Duration = Duration::from_secs(2);
/// Before a stream that could not be registered is tried again.
const REFUSED: Duration = Duration::from_secs(10);

/// Reads until the runtime ends.
pub(crate) async fn run(fleet: Arc<Fleet>, relay: Arc<Relay>) {
    let mut reader = Reader {
        fleet,
        relay,
        streams: HashMap::new(),
        known: None,
        next: None,
        ends: Ends::default(),
        looked: Instant::now(),
        is_open: false,
    };
    let mut error = String::new();
    loop {
        match reader.read().await {
            Ok(()) => {}
            Err(what) if what == error && !std::mem::take(&mut reader.is_open) => {}
            Err(what) => {
                reader.is_open = false;
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
    /// How far the log was read for each stream of a snapshot; none until snapshots are loaded.
    known: Option<Vec<u64>>,
    /// The message to be read next, if any was read.
    next: Option<u64>,
    ends: Ends,
    looked: Instant,
    /// Whether it was opened since that last failed.
    is_open: bool,
}

/// What the log kept a short while ago. The oldest comes first.
#[derive(Default)]
struct Ends {
    ends: VecDeque<End>,
    /// The last message that did not come although it was there.
    missed: u64,
}

/// What the log kept at a moment.
#[derive(Clone, Copy)]
struct End {
    at: Instant,
    first: u64,
    last: u64,
}

impl Ends {
    /// Whether a message was published within [`NOW`], for sure.
    fn is_before(&mut self, sequence: u64) -> bool {
        self.forget();
        self.ends.front().is_some_and(|end| sequence > end.last)
    }

    /// Whether there are messages from `next` on that should have come by now: then they are not sent any more. For each
    /// of them this is said once, as it may be one that somebody has deleted.
    fn are_missed(&mut self, next: Option<u64>) -> bool {
        self.forget();
        let next = next.unwrap_or(0);
        let is_there = |end: &&End| end.at.elapsed() > LOOK / 2 && end.first.max(next) <= end.last;
        let missed = self.ends.iter().filter(is_there).map(|end| end.last).max();
        missed.is_some_and(|last| last > std::mem::replace(&mut self.missed, last))
    }

    fn forget(&mut self) {
        while self.ends.front().is_some_and(|end| end.at.elapsed() > NOW) {
            self.ends.pop_front();
        }
    }
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
        if self.known.is_none() {
            if self.relay.config.snapshots {
                store::begin(&self.fleet, &self.relay, &log).await;
            }
            self.known = Some(self.fleet.snapshots().sequences().await);
        }
        let (mut messages, mut ends) = self.open(&log).await?;
        self.is_open = true;
        loop {
            while let Ok(end) = ends.try_recv() {
                self.ends.ends.push_back(end?);
            }
            let message = match tokio::time::timeout(LOOK, messages.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return Err(error.to_string()),
                Ok(None) => return Err("the log has ended".to_owned()),
                Err(_) if client.connection_state() != Connection::Connected => {
                    return Err("the connection is lost".to_owned());
                }
                Err(_) if self.ends.are_missed(self.next) => {
                    return Err("the log has messages, and does not send them".to_owned());
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

    async fn open(&mut self, log: &Context) -> Result<(Ordered, mpsc::Receiver<Result<End, String>>), String> {
        let name = &self.relay.config.stream;
        let at = Instant::now();
        let mut stream = log.get_stream(name).await.map_err(|error| {
            format!("there is no JetStream stream {name:?}, which relays make; does the server run with -js? ({error})")
        })?;
        let info = stream.info().await.map_err(|error| error.to_string())?.clone();
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        self.ends.ends.clear();
        self.ends.ends.push_back(End { at, first, last });
        self.ends.missed = self.ends.missed.min(last);
        // A log that was made anew counts from the beginning: then what is next is not what is meant. Nor is it what the log
        // does not keep any more: streams that need that notice that it is missing, and ask; the others need not.
        let is_kept = |next: &u64| (first..=last + 1).contains(next);
        let known = || self.known.iter().flatten().map(|sequence| sequence + 1).filter(is_kept).min();
        let next = self.next.map_or_else(known, |next| Some(next).filter(is_kept));
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
        let messages = consumer.messages().await.map_err(|error| error.to_string())?;
        let (ends, receiver) = mpsc::channel(4);
        tokio::spawn(watch(stream, info, ends));
        Ok((messages, receiver))
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
        let Ok(info) = message.info() else { return self.refuse("its place in the log is unknown") };
        let (sequence, pending) = (info.stream_sequence, info.pending);
        let age = since_1970().saturating_sub(info.published.unix_timestamp().unsigned_abs());
        self.next = Some(sequence + 1);
        let heard = self.ends.is_before(sequence).then(Instant::now);
        // The last word of somebody who left long ago. Where clocks differ, whatever is of now seems to be that.
        if heard.is_none() && age > self.relay.config.forget_after.as_secs() {
            return self.refuse("it is older than relay.forget_after");
        }
        let counts = &self.relay.counts;
        counts.read.fetch_add(1, Relaxed);
        counts.read_bytes.fetch_add(message.payload.len() as u64, Relaxed);
        let message = message.message;
        self.deliver(message.subject.as_str(), Delivered { payload: message.payload, sequence, heard }).await;
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

    async fn deliver(&mut self, subject: &str, message: Delivered) {
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

/// Asks the log what it keeps, until nobody wants to know, or it is to be opened anew.
async fn watch(stream: Stream<Info>, mut before: Info, ends: mpsc::Sender<Result<End, String>>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = ends.closed() => return,
        }
        let at = Instant::now();
        // While it does not answer, nothing is known to be of now.
        let Ok(info) = stream.get_info().await else { continue };
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        let is_other = info.created != before.created || last < before.state.last_sequence;
        let end = if is_other { Err("it was made anew".to_owned()) } else { Ok(End { at, first, last }) };
        before = info;
        if ends.send(end).await.is_err() || is_other {
            return;
        }
    }
}

fn since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
