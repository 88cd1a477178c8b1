//! Server of an Endpoint Picker: a gateway asks over Envoy's external processing (gRPC) which engine gets a request.
//!
//! | file | contents |
//! |---|---|
//! | `messages` | the messages of the protocol, with the fields that are used, by their public numbers |
//! | `exchange` | the state of one request, with the replies to the gateway in each mode; without sockets |
//! | `server` | the gRPC server, on connections that its user makes, and gRPC's health service |
//!
//! The crate does not choose engines itself: the server calls a [`Picker`] for decisions, and for memory for bodies.
#![forbid(unsafe_code)]

mod exchange;
pub mod messages;
mod server;

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
pub use tonic::transport::server::Connected;

pub use server::{HealthStage, PickerHealth, Settings, serve, serve_health};

/// Interface by which the server gets decisions: an implementation picks engines for requests.
pub trait Picker: Send + Sync + 'static {
    /// Type of the memory reserved for the body of a request.
    type Room: BodyRoom;

    /// Makes an empty reservation of memory for the body of a request whose head is known.
    fn room(&self, request: &RequestToPick) -> Self::Room;

    /// Picks the engines for a request. The future is dropped if the client leaves.
    fn pick(&self, request: RequestToPick) -> impl Future<Output = Result<Pick, PickRefusal>> + Send;
}

/// Memory reserved for the body of a request while it arrives, until dropped.
pub trait BodyRoom: Send + Sync + 'static {
    /// Grows the reservation to `bytes` bytes, and waits for free memory if necessary. The error is the refusal for the
    /// client.
    fn grow(&mut self, bytes: usize) -> impl Future<Output = Result<(), PickRefusal>> + Send;

    /// Waits until the body must give its memory to others, because it does not arrive in time. Returns the refusal for
    /// the client.
    fn must_leave(&self) -> impl Future<Output = PickRefusal> + Send;

    /// Makes the refusal of a body that is larger than the limit.
    fn too_large(&self) -> PickRefusal;

    /// Records that the whole body has arrived.
    fn complete(&mut self);
}

/// Request as sent by the gateway to the picker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestToPick {
    /// Headers of the request, with names in lower case, and pseudo-headers such as `:method` and `:path`.
    pub headers: Vec<(String, Bytes)>,
    /// Whole body of the request; None if the gateway does not send the body before the decision.
    pub body: Option<Bytes>,
    /// Endpoints that may be picked, as `IP:port` or `IP`; None for all.
    pub subset: Option<Vec<String>>,
    /// True if the gateway accepts another body for the request, returned with the pick.
    pub may_change_body: bool,
}

impl RequestToPick {
    /// Returns the value of the first header with the name `name`; None if the request has none, or the value is no
    /// text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(key, _)| key == name)?;
        std::str::from_utf8(value).ok()
    }

    /// True if the gateway permits picking an endpoint, given as `IP:port`.
    #[must_use]
    pub fn allows(&self, endpoint: &str) -> bool {
        let Some(subset) = &self.subset else { return true };
        let ip = endpoint.rsplit_once(':').map_or(endpoint, |(ip, _)| ip);
        let bare = ip.trim_start_matches('[').trim_end_matches(']');
        subset.iter().any(|entry| entry == endpoint || entry == ip || entry == bare)
    }
}

/// Result of a pick: the engines to which the gateway may send the request.
pub struct Pick {
    /// Picked endpoints as `IP:port`, the best one first; the others are for the gateway's retries.
    pub endpoints: Vec<String>,
    /// Headers that the gateway adds to the request for the engine.
    pub headers: Vec<(String, String)>,
    /// New body for the engine; None to keep the client's body. Allowed only with [`RequestToPick::may_change_body`].
    pub body: Option<Bytes>,
    /// Receiver of the engine's answer; None if the picker does not need the answer.
    pub watcher: Option<Box<dyn AnswerWatcher>>,
}

/// Receiver of a copy of the engine's answer while the gateway sends the answer to the client. A drop without
/// [`AnswerWatcher::end`] means that the answer was cut off.
pub trait AnswerWatcher: Send {
    /// Receives the head of the answer.
    fn head(&mut self, status: u16, headers: &[(String, Bytes)]);
    /// Receives a part of the answer's body.
    fn part(&mut self, part: &Bytes);
    /// Records that the answer has ended and is complete.
    fn end(&mut self);
}

/// Refusal of a request, which the gateway sends to the client unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PickRefusal {
    /// HTTP status of the answer.
    pub status: u16,
    /// Headers of the answer, such as `retry-after`.
    pub headers: Vec<(String, String)>,
    /// JSON body of the answer.
    pub body: String,
}

impl PickRefusal {
    /// Makes a refusal in the format of the engines' errors. Control characters in the message become spaces.
    #[must_use]
    pub fn new(status: u16, code: &str, message: &str) -> Self {
        let quoted: String = message.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        let quoted = quoted.replace('\\', "\\\\").replace('"', "\\\"");
        let body = format!("{{\"error\":{{\"message\":\"{quoted}\",\"type\":\"{code}\",\"code\":\"{code}\"}}}}");
        Self { status, headers: Vec::new(), body }
    }
}

/// Counters of the server since its start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of requests for which an engine was picked.
    pub picked: AtomicU64,
    /// Number of requests that the picker refused.
    pub refused: AtomicU64,
    /// Number of requests refused because their body is larger than the limit.
    pub too_large: AtomicU64,
    /// Number of requests refused because there was no memory for their body, or because the body did not arrive in
    /// time and its memory was needed.
    pub no_room: AtomicU64,
    /// Number of requests with a body for which an engine was picked without the body, as the gateway's mode sends the
    /// body too late or in part.
    pub without_body: AtomicU64,
    /// Number of the gateway's streams that ended before an engine was picked.
    pub left: AtomicU64,
}
