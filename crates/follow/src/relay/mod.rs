//! A relay between engines and services: the changes that a stream's task applies are published to a log, NATS JetStream. A
//! service that reads the log has the same holdings without following the engines.
//!
//! ```text
//! stream task ──▶ Outlet (queue of one stream) ──▶ publisher ══▶ NATS ══▶ reader ──▶ Inbox ──▶ stream task of another
//!                   ▲                                              │                            service
//!                   └─────── question for all holdings ◀───────────┘
//! ```
//!
//! The format is `kvatlas_wire::compact`. This module has what both sides share, and the publishing side. `stream/relayed/`
//! has the rules for messages read from the log, and `relay_reader` (above the fleet) reads them. See
//! `docs/design/relay.md`.

mod connection;
mod outlet;
mod publisher;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tokio::sync::{Semaphore, mpsc};

pub(crate) use self::connection::{LinkState, NatsLink};
pub(crate) use self::outlet::Outlet;
use crate::config::RelayConfig;
use crate::counting::counts;
use crate::error::Error;

counts! {
    /// Counts of messages and snapshots since the service began.
    "relay_"

    /// Messages that the log has acknowledged.
    published,
    /// Bytes of messages that the log has acknowledged.
    published_bytes,
    /// Messages sent again because they were not acknowledged in time.
    retries,
    /// Batches dropped because the queue was full. Readers then get all that the stream holds.
    dropped,
    // check_words: the text is the help of a metric
    /// How often all that a stream holds was published.
    states,
    /// Messages read from the log.
    read,
    /// Bytes of messages read from the log.
    read_bytes,
    // check_words: the text is the help of a metric
    /// How often a relay was asked for all that a stream holds.
    asked,
    /// Messages left out because nothing can be done with them: of other subjects, of long ago, or of streams that cannot
    /// be registered.
    refused,
    /// Snapshots written to the log's object store.
    stored_snapshots,
    /// Snapshots that could not be written to it, or read from it.
    failed_snapshots,
    /// Messages removed from the log because no snapshot in its object store needs them.
    purged,
    // check_words: the text is the help of a metric
    /// How often reading the log began anew, at the place where it ended.
    reconnects,
}

/// A message of the log, on the way to the task of its stream.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) payload: Bytes,
    /// Sequence number of the message in the log.
    pub(crate) sequence: u64,
    /// Time at which the message was read, if it was published just before, and so shows that its relay is alive.
    pub(crate) heard: Option<Instant>,
}

/// Receiver of the log's messages for one stream's task.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) messages: mpsc::Receiver<Delivery>,
}

impl Inbox {
    /// Creates an inbox that never receives a message.
    pub(crate) fn empty() -> Self {
        Self { messages: mpsc::channel(1).1 }
    }
}

/// Shared part of a service's streams that are published to a log, or read from one: connection, queues and counts.
#[derive(Debug)]
pub struct Relay {
    pub(crate) config: RelayConfig,
    pub(crate) counts: Counts,
    pub(crate) link: Arc<NatsLink>,
    /// The NATS client, once connecting has begun.
    client: OnceLock<async_nats::Client>,
    /// Receiver of resync requests to be sent to relays, until the log's reader takes it.
    questions: Mutex<Option<mpsc::Receiver<String>>>,
    /// Bytes in all streams' queues, and in messages not yet acknowledged.
    buffered: AtomicUsize,
    /// Permit to copy a stream's holdings, which one stream at a time may hold.
    copying: Arc<Semaphore>,
    /// Sender of requests for a full state, for each published stream by its subject.
    askers: Mutex<HashMap<String, mpsc::Sender<()>>>,
    inboxes: Mutex<HashMap<String, Inbox>>,
}

impl Default for Relay {
    fn default() -> Self {
        Self::new(RelayConfig::default())
    }
}

impl Relay {
    pub(crate) fn new(config: RelayConfig) -> Self {
        let (link, questions) = NatsLink::new();
        Self {
            config,
            counts: Counts::default(),
            link,
            client: OnceLock::new(),
            questions: Mutex::new(Some(questions)),
            buffered: AtomicUsize::new(0),
            copying: Arc::new(Semaphore::new(1)),
            askers: Mutex::default(),
            inboxes: Mutex::default(),
        }
    }

    /// True if the changes of streams are published to a log.
    pub(crate) fn publishes(&self) -> bool {
        self.config.publish.is_some()
    }

    /// Number of bytes that wait to be published or acknowledged.
    pub(crate) fn buffered(&self) -> usize {
        self.buffered.load(Relaxed)
    }

    /// True if streams are read from the log.
    pub(crate) fn reads(&self) -> bool {
        self.config.from.is_some()
    }

    /// The NATS client, once connecting has begun.
    pub(crate) fn client(&self) -> Option<&async_nats::Client> {
        self.client.get()
    }

    /// True if the service is connected to a NATS server.
    pub(crate) fn is_connected(&self) -> bool {
        !self.link.is(LinkState::Down)
    }

    /// Takes the receiver of resync requests to be sent to relays. `None` at the second call.
    pub(crate) fn take_questions(&self) -> Option<mpsc::Receiver<String>> {
        self.questions.lock().take()
    }

    /// Stores the inbox of a stream for the stream's task, which begins soon.
    pub(crate) fn leave_inbox(&self, subject: &str, inbox: Inbox) {
        self.inboxes.lock().insert(subject.to_owned(), inbox);
    }

    pub(crate) fn take_inbox(&self, subject: &str) -> Option<Inbox> {
        self.inboxes.lock().remove(subject)
    }

    /// Asks the relay of a stream to publish all that the stream holds.
    pub(crate) fn ask(&self, subject: &str) {
        if self.link.ask(subject) {
            self.counts.asked.fetch_add(1, Relaxed);
        }
    }

    /// Registers the sender of requests for a full state of a published stream.
    fn publishes_stream(&self, subject: String, asker: mpsc::Sender<()>) {
        self.askers.lock().insert(subject, asker);
    }

    /// Passes a reader's request for a full state on to the stream, if the stream is published by this service.
    fn note_request(&self, subject: &str) {
        if let Some(asker) = self.askers.lock().get(subject) {
            // One pending request serves all readers.
            let _ = asker.try_send(());
        }
    }

    /// Drops the senders of streams that are no longer published.
    fn forget_ended(&self) {
        self.askers.lock().retain(|_, asker| !asker.is_closed());
    }

    /// Begins to connect to NATS, if the service publishes to a log or reads one.
    ///
    /// # Errors
    /// [`Error::Start`] if a file cannot be read, or an address is not valid.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), Error> {
        let Some(url) = self.config.publish.as_ref().or(self.config.from.as_ref()) else { return Ok(()) };
        let _ = self.client.set(connection::connect(&self.config, &self.link, url).await?);
        if self.publishes() {
            tokio::spawn(publisher::answer_asks(self.clone()));
        }
        Ok(())
    }
}

/// First part of each stream's NATS subject.
const BEFORE: &str = "kvatlas.";

/// Prefix of a stream's subject for requests to its relay; the log does not keep messages under it.
pub(crate) const ASK: &str = "ask-";

/// Characters that are escaped in subjects, as NATS gives them a meaning.
const RESERVED: &AsciiSet = &CONTROLS.add(b'.').add(b'*').add(b'>').add(b' ').add(b'%').add(b'$');

/// Identity of a stream in the log: a rank of a worker, with model and routing group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) routing_group: String,
    pub(crate) model: String,
    pub(crate) worker: String,
    pub(crate) rank: u32,
}

impl Subject {
    /// Pattern that matches the NATS subjects of all streams.
    pub(crate) const ALL: &str = "kvatlas.>";

    pub(crate) fn parse(subject: &str) -> Option<Self> {
        let mut parts = subject.strip_prefix(BEFORE)?.split('.');
        let mut part = || percent_decode_str(parts.next()?).decode_utf8().ok().map(|part| part.into_owned());
        let (routing_group, model, worker) = (part()?, part()?, part()?);
        let rank = part()?.parse().ok()?;
        part().is_none().then_some(Self { routing_group, model, worker, rank })
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |part| utf8_percent_encode(part, RESERVED);
        let Self { routing_group, model, worker, rank } = self;
        write!(f, "{BEFORE}{}.{}.{}.{rank}", part(routing_group), part(model), part(worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_out_as_they_went_in() {
        for (model, worker) in [("m", "w"), ("org/Model-3.1 *", "http://10.0.0.1:8000"), ("%41", "é > ü")] {
            let (model, worker) = (model.to_owned(), worker.to_owned());
            let subject = Subject { routing_group: "default".to_owned(), model, worker, rank: 3 };
            let text = subject.to_string();
            assert_eq!(text.split('.').count(), 5, "{text}");
            assert!(!text.contains([' ', '*', '>']), "{text}");
            assert_eq!(Subject::parse(&text), Some(subject));
        }
        for other in ["kvatlas.g.m.w", "kvatlas.g.m.w.x", "kvatlas.g.m.w.1.2", "other.g.m.w.1"] {
            assert_eq!(Subject::parse(other), None, "{other}");
        }
    }
}
