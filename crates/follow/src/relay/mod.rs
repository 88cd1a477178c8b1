//! Relay between engines and services: the changes that a stream's task makes to the index are published to a log in
//! NATS JetStream. A service that reads the log holds the same blocks in its index without following the engines
//! itself.
//!
//! ```text
//! stream task ──▶ Outlet (queue of one stream) ──▶ publisher ══▶ NATS ══▶ reader ──▶ Inbox ──▶ stream task of another
//!                   ▲                                              │                            service
//!                   └─────── question for all holdings ◀───────────┘
//! ```
//!
//! The message format is in `kvatlas_wire::compact`. This module has the parts that the publishing and the reading side
//! share, and the publishing side. `stream/relayed/` has the rules for messages read from the log, and `relay_reader`
//! reads them. See `docs/design/relay.md`.

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

    /// Messages published to the NATS log that NATS has acknowledged.
    published,
    /// Bytes of the messages published to the NATS log that NATS has acknowledged.
    published_bytes,
    /// Messages for the NATS log sent again because they were not acknowledged in time.
    retries,
    /// Batches dropped because the queue to the NATS log was full. Readers then get all blocks that the stream's ranks
    /// hold.
    dropped,
    // check_words: the text is the help of a metric
    /// How often all blocks that the ranks of a stream hold were published.
    states,
    /// Messages read from the NATS log.
    read,
    /// Bytes of messages read from the NATS log.
    read_bytes,
    // check_words: the text is the help of a metric
    /// How often a relay was asked to publish all blocks that the ranks of a stream hold.
    asked,
    /// Messages left out because they cannot be applied: with other subjects, too old, or of streams that cannot be
    /// registered.
    refused,
    /// Snapshots written to the log's object store.
    stored_snapshots,
    /// Snapshots that could not be written to the log's object store, or read from it.
    failed_snapshots,
    /// Messages removed from the log because no snapshot in its object store needs them.
    purged,
    // check_words: the text is the help of a metric
    /// How often reading the log began anew after a failure, at the message where it had ended.
    reconnects,
}

/// Message of the NATS log that is on its way to the task of its stream.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) payload: Bytes,
    /// Sequence number of the message in the log.
    pub(crate) sequence: u64,
    /// Time at which the message was received, if it was published just before; `None` for older messages, which do not
    /// show that their publisher is still running.
    pub(crate) heard: Option<Instant>,
}

/// Receiver of the NATS log's messages for the task of one stream.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) messages: mpsc::Receiver<Delivery>,
}

impl Inbox {
    /// Creates a receiver that never receives a message.
    pub(crate) fn empty() -> Self {
        Self { messages: mpsc::channel(1).1 }
    }
}

/// State shared by all streams that are published to a NATS log or read from one: the connection, queues and counts.
#[derive(Debug)]
pub struct Relay {
    pub(crate) config: RelayConfig,
    pub(crate) counts: Counts,
    pub(crate) link: Arc<NatsLink>,
    /// Client of the NATS library; unset before the service begins to connect.
    client: OnceLock<async_nats::Client>,
    /// Receiver of requests to relays (publishers of streams). Each request is the NATS subject of a stream whose held
    /// blocks must all be published. `None` once the log's reader has taken the receiver.
    questions: Mutex<Option<mpsc::Receiver<String>>>,
    /// Number of bytes in the queues of all streams, and in messages that are not acknowledged yet.
    buffered: AtomicUsize,
    /// Semaphore that allows one stream at a time to copy its held blocks, for publication in the NATS log.
    copying: Arc<Semaphore>,
    /// Sender, for each published stream by its NATS subject, of requests to the stream's task to publish all held
    /// blocks.
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

    /// True if the service publishes the changes of its streams to a NATS log.
    pub(crate) fn publishes(&self) -> bool {
        self.config.publish.is_some()
    }

    /// Returns the number of bytes in messages for the NATS log that wait to be sent or acknowledged.
    pub(crate) fn buffered(&self) -> usize {
        self.buffered.load(Relaxed)
    }

    /// True if the service reads streams from a NATS log.
    pub(crate) fn reads(&self) -> bool {
        self.config.from.is_some()
    }

    /// Returns the client of the NATS library; `None` before the service begins to connect.
    pub(crate) fn client(&self) -> Option<&async_nats::Client> {
        self.client.get()
    }

    /// True if the service is connected to a NATS server.
    pub(crate) fn is_connected(&self) -> bool {
        !self.link.is(LinkState::Down)
    }

    /// Returns the receiver of requests to relays (publishers of streams). Each request is the NATS subject of a stream
    /// whose held blocks must all be published. `None` from the second call on.
    pub(crate) fn take_questions(&self) -> Option<mpsc::Receiver<String>> {
        self.questions.lock().take()
    }

    /// Stores the receiver of a stream's messages from the NATS log until the stream's task begins and fetches it.
    pub(crate) fn leave_inbox(&self, subject: &str, inbox: Inbox) {
        self.inboxes.lock().insert(subject.to_owned(), inbox);
    }

    pub(crate) fn take_inbox(&self, subject: &str) -> Option<Inbox> {
        self.inboxes.lock().remove(subject)
    }

    /// Asks the relay of a stream (the service that publishes it) to publish all blocks held by the stream's ranks.
    pub(crate) fn ask(&self, subject: &str) {
        if self.link.ask(subject) {
            self.counts.asked.fetch_add(1, Relaxed);
        }
    }

    /// Registers a published stream by its NATS subject. `asker` sends requests to the stream's task to publish all
    /// held blocks.
    fn publishes_stream(&self, subject: String, asker: mpsc::Sender<()>) {
        self.askers.lock().insert(subject, asker);
    }

    /// Passes a reader's request for all held blocks of a stream to the stream's task, if this service publishes the
    /// stream.
    fn note_request(&self, subject: &str) {
        if let Some(asker) = self.askers.lock().get(subject) {
            // One pending request serves all readers.
            let _ = asker.try_send(());
        }
    }

    /// Removes the streams that are no longer published from the list of published streams.
    fn forget_ended(&self) {
        self.askers.lock().retain(|_, asker| !asker.is_closed());
    }

    /// Begins to connect to NATS, if the service publishes to a log or reads one.
    ///
    /// # Errors
    /// [`Error::Start`] if a file with credentials or certificates cannot be read, or an address is not valid.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), Error> {
        let Some(url) = self.config.publish.as_ref().or(self.config.from.as_ref()) else { return Ok(()) };
        let _ = self.client.set(connection::connect(&self.config, &self.link, url).await?);
        if self.publishes() {
            tokio::spawn(publisher::answer_asks(self.clone()));
        }
        Ok(())
    }
}

/// First part of the NATS subject of every stream.
const BEFORE: &str = "kvatlas.";

/// Prefix of a stream's NATS subject for requests to the service that publishes the stream. Messages with this prefix
/// are not kept in the log.
pub(crate) const ASK: &str = "ask-";

/// Characters that are escaped in NATS subjects, because they have a special meaning in NATS.
const RESERVED: &AsciiSet = &CONTROLS.add(b'.').add(b'*').add(b'>').add(b' ').add(b'%').add(b'$');

/// Identity of a stream in the NATS log: worker, rank, model and routing group.
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
