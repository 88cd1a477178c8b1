//! The interface between the server and its application: the handler of requests, and the shared settings, keys, memory
//! and places.

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

/// The listener through which a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// The public listener.
    Main,
    /// The listener for administrators: a few routes, without a key.
    Admin,
}

/// State shared by the server and its handler: settings, keys, memory, places.
pub struct Front {
    /// The settings.
    pub config: Config,
    /// Keys and certificates in force.
    pub gate: Arc<Gate>,
    /// The memory for bodies.
    pub memory: Arc<Memory>,
    /// The shared text of `GET /metrics`.
    pub exposition: Exposition,
    pub(crate) counts: Arc<Counts>,
    pub(crate) places: Arc<Places>,
}

/// The circumstances of a request.
pub struct Call {
    /// The number of the serving thread, with [`Threads::Own`].
    pub thread: usize,
    /// The listener through which the request came.
    pub kind: ListenerKind,
    /// The client's address, if the system knows it.
    pub from: Option<IpAddr>,
    /// Deadline for the end of the request's body.
    pub until: Instant,
}

/// An application that answers requests.
pub trait Handler: Send + Sync + 'static {
    /// The type of answers' bodies.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// True if clients may speak HTTP/2.
    const HTTP2: bool;

    /// True if a client of HTTP/1.1 that closes its sending side still gets its answer; else its request is given up.
    const HALF_CLOSE: bool;

    /// The state shared with the server.
    fn front(&self) -> &Front;

    /// Answers a request.
    fn answer(
        handler: Arc<Self>,
        call: Call,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// Formats a refusal as an answer of the application.
    fn refuse(denied: Denial) -> Response<Self::Body>;
}

impl Front {
    /// Makes the shared state from settings, with keys and certificates read from their files.
    ///
    /// # Errors
    /// If a file cannot be read or is not valid.
    pub fn new(config: Config, http2: bool) -> Result<Self, Error> {
        let alpn: &[&str] = if http2 { &["h2", "http/1.1"] } else { &["http/1.1"] };
        let gate = Arc::new(Gate::new(&config, alpn)?);
        let (memory, places) = (Memory::new(config.body_memory()), Places::new(config.max_connections, STRANGERS));
        Ok(Self { config, gate, memory, exposition: Exposition::default(), counts: Arc::default(), places })
    }

    /// The configured number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self.config.threads {
            0 => available_parallelism().map_or(1, Into::into),
            threads => threads,
        }
    }

    /// Number of open connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        let ended = self.counts.ended.load(Relaxed);
        self.counts.begun.load(Relaxed).saturating_sub(ended)
    }

    /// Number of connections closed for others before they had sent a key.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.places.evicted.load(Relaxed)
    }

    /// Numbers of connections closed before they had sent a key for other reasons, by reason.
    #[must_use]
    pub fn closed_strangers(&self) -> [(&'static str, u64); 2] {
        let Counts { stranger_streams, unread_answers, .. } = &*self.counts;
        [("too_many_streams", stranger_streams.load(Relaxed)), ("unread_answer", unread_answers.load(Relaxed))]
    }

    /// Bytes counted for connections without a key at the main listener.
    #[must_use]
    pub fn stranger_bytes(&self) -> u64 {
        self.places.bytes() as u64
    }

    /// Number of HTTP/2 streams reset because their clients did not take the answer.
    #[must_use]
    pub fn stalled_streams(&self) -> u64 {
        self.counts.stalled_streams.load(Relaxed)
    }
}
