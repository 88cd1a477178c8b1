//! Server of an Endpoint Picker: a gateway asks over Envoy's external processing (gRPC) which engine gets a request.
//!
//! | file | contents |
//! |---|---|
//! | `messages` | the messages of the protocol, with the fields that are used, by their public numbers |
//! | `exchange` | the state of one request, with the replies to the gateway in each mode; without sockets |
//! | `server` | the gRPC server, on connections that its user makes, and gRPC's health service |
//!
//! The crate itself decides nothing: the server asks a [`Picker`] for decisions, and for memory for bodies.
#![forbid(unsafe_code)]

mod exchange;
pub mod messages;
mod server;

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
pub use tonic::transport::server::Connected;

pub use server::{HealthStage, PickerHealth, Settings, serve, serve_health};

/// Decision maker behind the server, which picks engines for requests.
pub trait Picker: Send + Sync + 'static {
    /// Type of the memory reserved for the body of a request.
    type Room: BodyRoom;

    /// Starts to reserve memory for the body of a request whose head is known.
    fn room(&self, request: &RequestToPick) -> Self::Room;

    /// Picks the engines for a request. The future is dropped if the client leaves.
    fn pick(&self, request: RequestToPick) -> impl Future<Output = Result<Pick, PickRefusal>> + Send;
}

/// Memory reserved for a body that is arriving, until dropped.
pub trait BodyRoom: Send + Sync + 'static {
    /// Grows the reservation to `bytes`, and waits for room if necessary. The error is the refusal.
    fn grow(&mut self, bytes: usize) -> impl Future<Output = Result<(), PickRefusal>> + Send;

    /// Waits until the body is evicted for others because it does not arrive in time. Returns the refusal.
    fn must_leave(&self) -> impl Future<Output = PickRefusal> + Send;

    /// Makes the refusal of a body that is larger than the limit.
    fn too_large(&self) -> PickRefusal;

    /// Records that the whole body has arrived.
    fn complete(&mut self);
}

/// A request as sent by the gateway to the picker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestToPick {
    /// The headers, with names in lower case, and pseudo-headers such as `:method` and `:path`.
    pub headers: Vec<(String, Bytes)>,
    /// The whole body; None if the gateway does not send it before the decision.
    pub body: Option<Bytes>,
    /// Endpoints among which to pick, as `IP:port` or `IP`; None for all.
    pub subset: Option<Vec<String>>,
    /// True if the gateway replaces the request's body by the one returned with the pick, so that the pick may change
    /// the body.
    pub may_change_body: bool,
}

impl RequestToPick {
    /// Value of the first header with a name; None if there is none, or it is no text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(key, _)| key == name)?;
        std::str::from_utf8(value).ok()
    }

    /// True if the gateway allows picking an endpoint, given as `IP:port`.
    #[must_use]
    pub fn allows(&self, endpoint: &str) -> bool {
        let Some(subset) = &self.subset else { return true };
        let ip = endpoint.rsplit_once(':').map_or(endpoint, |(ip, _)| ip);
        let bare = ip.trim_start_matches('[').trim_end_matches(']');
        subset.iter().any(|entry| entry == endpoint || entry == ip || entry == bare)
    }
}

/// The engines to which a request may be sent.
pub struct Pick {
    /// Endpoints as `IP:port`, the best one first; the others are for the gateway's retries.
    pub endpoints: Vec<String>,
    /// Headers that are added for the engine.
    pub headers: Vec<(String, String)>,
    /// New body for the engine; None to keep the client's. Allowed only with [`RequestToPick::may_change_body`].
    pub body: Option<Bytes>,
    /// Receiver of the answer; None if the answer is not wanted.
    pub watcher: Option<Box<dyn AnswerWatcher>>,
}

/// Receiver of an answer on its way to the client. Dropping it without [`AnswerWatcher::end`] means that the answer was
/// cut off.
pub trait AnswerWatcher: Send {
    /// Takes the head of the answer.
    fn head(&mut self, status: u16, headers: &[(String, Bytes)]);
    /// Takes a part of the answer's body.
    fn part(&mut self, part: &Bytes);
    /// Records that the answer was complete.
    fn end(&mut self);
}

/// A refusal of a request, which the gateway sends to the client unchanged.
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
    /// Number of requests that got an engine.
    pub picked: AtomicU64,
    /// Number of requests that the picker refused.
    pub refused: AtomicU64,
    /// Number of requests refused because their body is larger than the limit.
    pub too_large: AtomicU64,
    /// Number of requests refused because there was no memory for their body, or because it did not arrive and was
    /// evicted.
    pub no_room: AtomicU64,
    /// Number of requests with a body that got an engine without it, as the gateway's mode sends the body too late or
    /// in part.
    pub without_body: AtomicU64,
    /// Number of the gateway's streams that ended before their request got an engine.
    pub left: AtomicU64,
}
