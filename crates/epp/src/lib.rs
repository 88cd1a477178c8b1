//! The protocol of an Endpoint Picker: a gateway asks over Envoy's external processing (gRPC) which engine gets a request.
//!
//! | file | what is in it |
//! |---|---|
//! | `messages` | the messages of the protocol, as far as they are used, by their public field numbers |
//! | `exchange` | one request: what the gateway sends, and what it is answered in each mode; without sockets |
//! | `server` | the gRPC server, on connections that its user makes |
//! | `health` | gRPC's health service, beside it or at an address of its own |
//!
//! The crate decides nothing: a [`Picker`] does, which the server asks for a decision, and for room for bodies.
#![forbid(unsafe_code)]

mod exchange;
pub mod messages;
mod server;

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
pub use tonic::transport::server::Connected;

pub use server::{HealthStage, PickerHealth, Settings, serve, serve_health};

/// Decision maker behind the server.
pub trait Picker: Send + Sync + 'static {
    /// Room for the bodies of requests.
    type Room: BodyRoom;

    /// Makes room for the body of a request whose head is known.
    fn room(&self, request: &RequestToPick) -> Self::Room;

    /// Picks the engines for a request. The future is dropped if the client leaves.
    fn pick(&self, request: RequestToPick) -> impl Future<Output = Result<Pick, PickRefusal>> + Send;
}

/// Room for a body that arrives, until dropped.
pub trait BodyRoom: Send + Sync + 'static {
    /// Takes room for `bytes` of the body in all, and waits for it if need be. The error is the refusal.
    fn grow(&mut self, bytes: usize) -> impl Future<Output = Result<(), PickRefusal>> + Send;

    /// Waits until the body must give way to others, as it does not arrive. Returns the refusal.
    fn must_leave(&self) -> impl Future<Output = PickRefusal> + Send;

    /// The refusal of a body that is longer than the limit.
    fn too_large(&self) -> PickRefusal;

    /// Notes that the whole body is here.
    fn complete(&mut self);
}

/// A request as the gateway shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestToPick {
    /// The headers, with names in lower case, and pseudo headers such as `:method` and `:path`.
    pub headers: Vec<(String, Bytes)>,
    /// The whole body; None if the gateway does not show it before the decision.
    pub body: Option<Bytes>,
    /// Endpoints among which to pick, as `IP:port` or `IP`; None for all.
    pub subset: Option<Vec<String>>,
    /// True if the gateway sends on the body that it gets back with the pick, so that the pick may change it.
    pub may_change_body: bool,
}

impl RequestToPick {
    /// Value of the first header of a name, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(key, _)| key == name)?;
        std::str::from_utf8(value).ok()
    }

    /// True if the pick may be an endpoint, given as `IP:port`.
    #[must_use]
    pub fn allows(&self, endpoint: &str) -> bool {
        let Some(subset) = &self.subset else { return true };
        let ip = endpoint.rsplit_once(':').map_or(endpoint, |(ip, _)| ip);
        let bare = ip.trim_start_matches('[').trim_end_matches(']');
        subset.iter().any(|entry| entry == endpoint || entry == ip || entry == bare)
    }
}

/// The engines that a request may go to.
pub struct Pick {
    /// Endpoints as `IP:port`, the best one first; the others are for retries of the gateway.
    pub endpoints: Vec<String>,
    /// Headers that the engine gets in addition.
    pub headers: Vec<(String, String)>,
    /// The body that the engine gets, if it is not the client's; to be given only if
    /// [`RequestToPick::may_change_body`].
    pub body: Option<Bytes>,
    /// Receiver of the answer, if one is wanted.
    pub watcher: Option<Box<dyn AnswerWatcher>>,
}

/// Receiver of an answer on its way to the client. A drop without [`AnswerWatcher::end`] means that it was cut off.
pub trait AnswerWatcher: Send {
    /// Takes the head of the answer.
    fn head(&mut self, status: u16, headers: &[(String, Bytes)]);
    /// Takes a part of its body.
    fn part(&mut self, part: &Bytes);
    /// Notes that the answer was complete.
    fn end(&mut self);
}

/// A refusal of a request, sent to the client as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PickRefusal {
    /// HTTP status.
    pub status: u16,
    /// Headers, such as `retry-after`.
    pub headers: Vec<(String, String)>,
    /// JSON body.
    pub body: String,
}

impl PickRefusal {
    /// Makes a refusal in the form of the engines' errors. Control characters of the message become spaces.
    #[must_use]
    pub fn new(status: u16, code: &str, message: &str) -> Self {
        let quoted: String = message.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        let quoted = quoted.replace('\\', "\\\\").replace('"', "\\\"");
        let body = format!("{{\"error\":{{\"message\":\"{quoted}\",\"type\":\"{code}\",\"code\":\"{code}\"}}}}");
        Self { status, headers: Vec::new(), body }
    }
}

/// Counters of the server, since its start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests that got an engine.
    pub picked: AtomicU64,
    /// Requests that the picker refused.
    pub refused: AtomicU64,
    /// Requests refused because their body is larger than the limit.
    pub too_large: AtomicU64,
    /// Requests refused because there is no memory for their body, or none any more as it did not arrive.
    pub no_room: AtomicU64,
    /// Requests with a body that got an engine without it: the gateway's mode shows the body too late or in part.
    pub without_body: AtomicU64,
    /// Streams of the gateway that ended before their request got an engine.
    pub left: AtomicU64,
}
