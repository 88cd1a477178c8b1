//! A connection between a service and a log.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

/// Questions that wait to be sent. More are left out; who asks does so again.
const QUESTIONS: usize = 1024;

/// The state of a connection between a service and its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// Not connected.
    Down,
    /// Connected. What is read may be of long ago, and where something is to be published, there may be no log.
    Behind,
    /// Connected, and what is read is of now, or there is a log.
    Up,
}

/// A connection that is made again by itself when it is lost.
#[derive(Debug)]
pub(crate) struct Line {
    /// The address that it leads to, as it was configured.
    pub(crate) name: String,
    link: watch::Sender<Link>,
    trouble: Mutex<Option<String>>,
    asks: mpsc::Sender<String>,
}

impl Line {
    /// The name of one to NATS, whose servers are one log.
    pub(crate) const NATS: &str = "NATS";

    /// One that is not connected; and the subjects whose relays are to be asked for all that they hold.
    pub(crate) fn new(name: &str) -> (Arc<Self>, mpsc::Receiver<String>) {
        let (asks, asked) = mpsc::channel(QUESTIONS);
        let (link, trouble) = (watch::Sender::new(Link::Down), Mutex::default());
        (Arc::new(Self { name: name.to_owned(), link, trouble, asks }), asked)
    }

    pub(crate) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    pub(crate) fn is(&self, link: Link) -> bool {
        *self.link.borrow() == link
    }

    pub(crate) fn set_link(&self, link: Link) {
        self.link.send_if_modified(|before| std::mem::replace(before, link) != link);
    }

    /// The trouble with the connection, in words, as far as it is known.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Something is wrong with it, or nothing is. Said once, not with each attempt.
    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        let before = std::mem::replace(&mut *self.trouble.lock(), trouble.clone());
        if let Some(error) = trouble.filter(|error| Some(error) != before.as_ref()) {
            tracing::error!(error, name = self.name, "the log cannot be used; it is tried again");
        }
    }

    /// Asks whoever publishes a stream for all that it holds. False if that cannot be sent now.
    pub(crate) fn ask(&self, subject: &str) -> bool {
        self.asks.try_send(subject.to_owned()).is_ok()
    }
}
