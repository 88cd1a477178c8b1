//! A log between: what a stream's task applies is published, and a service that reads it there holds the same without
//! following the engines. The log is NATS JetStream, or without NATS a ring in the relay's memory that readers connect to.
//!
//! ```text
//! stream task ──▶ Outlet (queue of one stream) ──▶ publisher ══▶ NATS ══▶ reader ──▶ Inbox ──▶ stream task of another
//!                   ▲                          └─▶ ring ◀═══════ ZMTP ══▶ reader ──┘           service
//!                   └── asked for all that it holds ◀──────────────────────┘
//! ```
//!
//! The format is `kvatlas_wire::compact`. Here is what both sides need; `stream/relayed` has the task of a stream that
//! comes by the log, and `reader` (above the fleet) reads it. See `docs/design/relay.md`.

mod config;
mod counts;
mod line;
mod nats;
mod outlet;
mod places;
mod publisher;
mod ring;
mod subject;
mod zmq;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

pub use self::config::RelayConfig;
pub(crate) use self::counts::Counts;
pub(crate) use self::line::{Line, Link};
pub(crate) use self::outlet::Outlet;
use self::ring::Ring;
pub(crate) use self::subject::{ASK, Subject};
pub(crate) use self::zmq::say;
use crate::error::Error;
use kvatlas_stream::zmtp::Room;

/// A message of the log, on its way to its stream.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) payload: Bytes,
    /// The message's place in the log.
    pub(crate) sequence: u64,
    /// When it was read, if it was published a moment before: then its relay lives.
    pub(crate) heard: Option<Instant>,
}

/// The end at which a stream's messages come.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) messages: mpsc::Receiver<Delivery>,
    /// The connection by which they come.
    pub(crate) line: Arc<Line>,
}

impl Inbox {
    /// Nothing comes.
    pub(crate) fn empty() -> Self {
        Self { messages: mpsc::channel(1).1, line: Line::new("").0 }
    }
}

/// The log to which messages are published.
#[derive(Debug)]
enum Log {
    Nats(async_nats::Client),
    Ring(Arc<Ring>),
}

/// The connections, queues and counts shared by all streams of a service that publish to a log, or come by one.
#[derive(Debug)]
pub struct Relay {
    pub(crate) config: RelayConfig,
    pub(crate) counts: Counts,
    /// The connections, once they are begun. They connect again by themselves: one with NATS, or one to each relay.
    lines: OnceLock<Vec<Arc<Line>>>,
    log: OnceLock<Log>,
    /// Questions to be asked by each of the lines, until whoever reads takes them.
    asked: Mutex<Vec<mpsc::Receiver<String>>>,
    /// Bytes in all queues, and on the way.
    buffered: AtomicUsize,
    /// One stream's holdings are copied at a time.
    copying: Arc<Semaphore>,
    /// Senders by which all that a stream holds is asked for, of each stream that is published here.
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
        Self {
            config,
            counts: Counts::default(),
            lines: OnceLock::new(),
            log: OnceLock::new(),
            asked: Mutex::default(),
            buffered: AtomicUsize::new(0),
            copying: Arc::new(Semaphore::new(1)),
            askers: Mutex::default(),
            inboxes: Mutex::default(),
        }
    }

    /// True if what streams apply is published.
    pub(crate) fn publishes(&self) -> bool {
        self.config.publish.is_some()
    }

    /// Bytes that wait to be published, or acknowledged.
    pub(crate) fn buffered(&self) -> usize {
        self.buffered.load(Relaxed)
    }

    /// True if streams come by the log.
    pub(crate) fn reads(&self) -> bool {
        self.config.from.is_some()
    }

    /// NATS, if that is the log.
    pub(crate) fn client(&self) -> Option<&async_nats::Client> {
        match self.log.get()? {
            Log::Nats(client) => Some(client),
            Log::Ring(_) => None,
        }
    }

    /// The relay's connections.
    pub(crate) fn lines(&self) -> &[Arc<Line>] {
        self.lines.get().map_or(&[], |lines| lines)
    }

    /// True if all connections are up.
    pub(crate) fn is_connected(&self) -> bool {
        !self.lines().iter().any(|line| line.is(Link::Down))
    }

    /// The trouble with the connections, in words.
    pub(crate) fn trouble(&self) -> Option<String> {
        let all: Vec<String> = self.lines().iter().filter_map(|line| line.trouble()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Each of its connections, and what is to be asked by it. Nothing the second time.
    pub(crate) fn take_lines(&self) -> Vec<(Arc<Line>, mpsc::Receiver<String>)> {
        self.lines().iter().cloned().zip(std::mem::take(&mut *self.asked.lock())).collect()
    }

    /// Leaves a stream's inbox to be taken by its task, which begins soon.
    pub(crate) fn leave_inbox(&self, subject: &str, inbox: Inbox) {
        self.inboxes.lock().insert(subject.to_owned(), inbox);
    }

    pub(crate) fn take_inbox(&self, subject: &str) -> Option<Inbox> {
        self.inboxes.lock().remove(subject)
    }

    /// Asks whoever publishes a stream for all that it holds.
    pub(crate) fn ask(&self, line: &Line, subject: &str) {
        if line.ask(subject) {
            self.counts.asked.fetch_add(1, Relaxed);
        }
    }

    /// Notes where all that a stream holds is asked for.
    fn publishes_stream(&self, subject: String, asker: mpsc::Sender<()>) {
        self.askers.lock().insert(subject, asker);
    }

    /// Somebody asks for all that a stream holds, which may be published here.
    fn note_request(&self, subject: &str) {
        if let Some(asker) = self.askers.lock().get(subject) {
            // One question is enough for all who ask.
            let _ = asker.try_send(());
        }
    }

    /// Forgets the streams that are published no more.
    fn forget_ended(&self) {
        self.askers.lock().retain(|_, asker| !asker.is_closed());
    }

    /// Begins to connect, or to listen. `room`: what readers' connections may take.
    ///
    /// # Errors
    /// [`Error::Start`] if files that it needs cannot be read, or an address cannot be listened at.
    pub(crate) async fn start(self: &Arc<Self>, room: Room) -> Result<(), Error> {
        let Some(url) = self.config.publish.as_ref().or(self.config.from.as_ref()) else { return Ok(()) };
        let is_ring = self.config.is_ring();
        // With NATS these are servers of one log, else relays.
        let names: Vec<&str> = if is_ring { url.split(',').map(str::trim).collect() } else { vec![Line::NATS] };
        let (lines, asked) = names.into_iter().map(Line::new).unzip();
        let lines: &Vec<Arc<Line>> = self.lines.get_or_init(|| lines);
        *self.asked.lock() = asked;
        match (is_ring, self.publishes()) {
            (false, publishes) => {
                if let Some(line) = lines.first() {
                    let _ = self.log.set(Log::Nats(nats::connect(&self.config, line, url).await?));
                }
                if publishes {
                    tokio::spawn(publisher::answer_asks(self.clone()));
                }
            }
            (true, true) => {
                let ring = Ring::new(self.config.buffer_bytes, self.config.max_age);
                zmq::listen(self, &ring, url, room).await?;
                let _ = self.log.set(Log::Ring(ring));
                lines.iter().for_each(|line| line.set_link(Link::Up));
            }
            // Whoever reads connects.
            (true, false) => {}
        }
        Ok(())
    }
}
