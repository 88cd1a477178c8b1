//! Whoever answers requests, and what it shares with the server: the settings, keys, memory and places.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::available_parallelism;
use std::time::Instant;

use bytes::Bytes;
use hyper::{Request, Response};

use crate::body::RequestBody;
use crate::limits::{Counts, STRANGERS};
use crate::metrics::Exposition;
use crate::places::Places;
use crate::{Config, Denial, Error, Gate, Memory};

/// The listener by which a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// The listener for everybody.
    Main,
    /// The listener for administrators: a few routes, without a key.
    Admin,
}

/// The part of a server that both it and its handler use: settings, keys, memory, places.
pub struct Front {
    /// The settings.
    pub config: Config,
    /// The keys and certificates in force.
    pub gate: Arc<Gate>,
    /// The memory for bodies.
    pub memory: Arc<Memory>,
    /// The text of `GET /metrics`.
    pub exposition: Exposition,
    pub(crate) counts: Arc<Counts>,
    pub(crate) places: Arc<Places>,
}

/// The circumstances of a request.
pub struct Call {
    /// The number of the thread that serves it, among [`Threads::Own`].
    pub thread: usize,
    /// The listener by which it came.
    pub kind: ListenerKind,
    /// The address that its connection comes from, if the system knows it.
    pub from: Option<IpAddr>,
    /// The time by which the request's body must be here.
    pub until: Instant,
}

/// Whoever answers.
pub trait Handler: Send + Sync + 'static {
    /// The bodies of answers.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// True if clients may speak HTTP/2.
    const HTTP2: bool;

    /// True if a client of HTTP/1.1 that ends what it sends still gets its answer; else its request is given up.
    const HALF_CLOSE: bool;

    /// The front of the server that the handler answers for.
    fn front(&self) -> &Front;

    /// Answers a request.
    fn answer(
        handler: Arc<Self>,
        call: Call,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// Puts a refusal into the form that its clients know.
    fn refuse(denied: Denial) -> Response<Self::Body>;
}

impl Front {
    /// Returns the part for these settings, with the keys and certificates read from their files.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn new(config: Config, http2: bool) -> Result<Self, Error> {
        let alpn: &[&str] = if http2 { &["h2", "http/1.1"] } else { &["http/1.1"] };
        let gate = Arc::new(Gate::new(&config, alpn)?);
        let (memory, places) = (Memory::new(config.body_memory()), Places::new(config.max_connections, STRANGERS));
        Ok(Self { config, gate, memory, exposition: Exposition::default(), counts: Arc::default(), places })
    }

    /// The number of threads that the settings ask for.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self.config.threads {
            0 => available_parallelism().map_or(1, Into::into),
            threads => threads,
        }
    }

    /// Open connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        let ended = self.counts.ended.load(Relaxed);
        self.counts.begun.load(Relaxed).saturating_sub(ended)
    }

    /// Connections that were closed before they had shown a key, to make room for others.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.places.evicted.load(Relaxed)
    }

    /// Connections that were closed before they had shown a key, by reason beside the want of room.
    #[must_use]
    pub fn closed_strangers(&self) -> [(&'static str, u64); 2] {
        let Counts { stranger_streams, unread_answers, .. } = &*self.counts;
        [("too_many_streams", stranger_streams.load(Relaxed)), ("unread_answer", unread_answers.load(Relaxed))]
    }

    /// Bytes that connections without a key count for at the main listener.
    #[must_use]
    pub fn stranger_bytes(&self) -> u64 {
        self.places.bytes() as u64
    }

    /// Streams of HTTP/2 that were reset because their clients did not take the answer.
    #[must_use]
    pub fn stalled_streams(&self) -> u64 {
        self.counts.stalled_streams.load(Relaxed)
    }
}
