//! A log between: what a stream's task applies is published to NATS JetStream, and a service that reads it there holds the
//! same without following the engines.
//!
//! ```text
//! stream task ──▶ Outlet (queue of one stream) ──▶ publisher ══▶ NATS ══▶ reader ──▶ Inbox ──▶ stream task of another
//!                   ▲                                  ▲                     │                        service
//!                   └── asked for all that it holds ◀──┴──── ask subject ◀───┘
//! ```
//!
//! The format is `kvatlas_wire::compact`. Here is what both sides need; `stream/relayed` has the task of a stream that
//! comes by the log, and `reader` (above the fleet) reads it. See `docs/design/2026-11-22-relay.md`.

mod config;
mod counts;
mod link;
mod nats;
mod outlet;
mod publisher;
mod subject;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, watch};

pub use self::config::RelayConfig;
pub(crate) use self::counts::Counts;
pub(crate) use self::link::Link;
pub(crate) use self::nats::connect;
pub(crate) use self::outlet::Outlet;
pub(crate) use self::subject::{ASK, Subject};
use crate::error::Error;

/// A message of the log, on its way to its stream.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) payload: Bytes,
    /// Its place in the log.
    pub(crate) sequence: u64,
    /// When it was read, if it was published a moment before: then its relay lives.
    pub(crate) heard: Option<Instant>,
}

/// Where a stream's messages come.
pub(crate) type Inbox = mpsc::Receiver<Delivered>;

/// What all streams of a service share that publish to a log, or come by one.
#[derive(Debug)]
pub struct Relay {
    pub(crate) config: RelayConfig,
    pub(crate) counts: Counts,
    /// The connection, once it is begun. It connects again by itself.
    client: OnceLock<async_nats::Client>,
    /// Whether it is connected, and whether what is read is not of long ago.
    link: watch::Sender<Link>,
    /// What is wrong with that.
    trouble: Mutex<Option<String>>,
    /// Bytes in all queues, and on the way.
    buffered: AtomicUsize,
    /// One stream's holdings are copied at a time.
    copying: Arc<Semaphore>,
    outlets: Mutex<HashMap<String, Weak<Outlet>>>,
    inboxes: Mutex<HashMap<String, Inbox>>,
}

impl Default for Relay {
    fn default() -> Self {
        Self::new(RelayConfig::default())
    }
}

impl Relay {
    pub(crate) fn new(config: RelayConfig) -> Self {
        Self {
            config,
            counts: Counts::default(),
            client: OnceLock::new(),
            link: watch::Sender::new(Link::Down),
            trouble: Mutex::default(),
            buffered: AtomicUsize::new(0),
            copying: Arc::new(Semaphore::new(1)),
            outlets: Mutex::default(),
            inboxes: Mutex::default(),
        }
    }

    /// Whether what streams apply is published.
    pub(crate) fn publishes(&self) -> bool {
        self.config.publish.is_some()
    }

    /// Bytes that wait to be published, or acknowledged.
    pub(crate) fn buffered(&self) -> usize {
        self.buffered.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether streams come by the log.
    pub(crate) fn reads(&self) -> bool {
        self.config.from.is_some()
    }

    pub(crate) fn client(&self) -> Option<&async_nats::Client> {
        self.client.get()
    }

    pub(crate) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    pub(crate) fn set_link(&self, link: Link) {
        self.link.send_if_modified(|before| std::mem::replace(before, link) != link);
    }

    /// What is wrong with the connection to the log, as far as that is known.
    pub(crate) fn trouble(&self) -> Option<String> {
        crate::state::lock(&self.trouble).clone()
    }

    /// Something is wrong with the connection, or nothing is. Said once, not with each attempt.
    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        let before = std::mem::replace(&mut *crate::state::lock(&self.trouble), trouble.clone());
        if let Some(error) = trouble.filter(|error| Some(error) != before.as_ref()) {
            tracing::error!(error, "the log cannot be used; it is tried again");
        }
    }

    /// Leaves a stream's inbox to be taken by its task, which begins soon.
    pub(crate) fn leave_inbox(&self, subject: &str, inbox: Inbox) {
        crate::state::lock(&self.inboxes).insert(subject.to_owned(), inbox);
    }

    pub(crate) fn take_inbox(&self, subject: &str) -> Option<Inbox> {
        crate::state::lock(&self.inboxes).remove(subject)
    }

    /// Asks whoever publishes a stream for all that it holds.
    pub(crate) fn ask(&self, subject: &str) {
        let Some(client) = self.client().cloned() else { return };
        let subject = format!("{ASK}{subject}");
        self.counts.asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tokio::spawn(async move {
            if let Err(error) = client.publish(subject, Bytes::new()).await {
                tracing::debug!(%error, "a relay could not be asked");
            }
        });
    }

    /// Begins to connect, and to listen for those who ask.
    ///
    /// # Errors
    /// [`Error::Start`] if files that it needs cannot be read.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), Error> {
        let Some(url) = self.config.publish.as_ref().or(self.config.from.as_ref()) else { return Ok(()) };
        let client = connect(self, url).await?;
        let _ = self.client.set(client);
        if self.publishes() {
            tokio::spawn(publisher::answer_asks(self.clone()));
        }
        Ok(())
    }
}
