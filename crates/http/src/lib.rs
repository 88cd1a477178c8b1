//! HTTP server that the service and the router use, independent of both.
//!
//! ```text
//! server ──▶ places ──▶ connection (heads, activity, ledger) ──▶ Handler ──▶ gate (keys, hosts), body (memory)
//! ```
//!
//! * [`server`]: listeners, and the serving threads.
//! * [`inherited`]: sockets that systemd opened for the process.
//! * `listener`: accepting and serving the connections of one listener.
//! * `handler`: the interface of the application that answers requests, the state that it shares with the server, and
//!   the decoding of texts that are searched for keys and dot segments.
//! * `places`: limit on the number of connections, and a memory limit for connections without a key, which are evicted
//!   for others.
//! * `ledger`: the streams of an HTTP/2 connection without a key, limits of connections, and counts of connections.
//! * `connection`, `activity`: one client's connection on which hyper handles HTTP, and its time limits.
//! * `heads`: heads of HTTP/1.1 requests, detection of HTTP/2, and HTTP/2 frames.
//! * [`gate`], `keys`: keys, certificates, and the hosts that a request may name.
//! * [`ranges`]: answers with files, whole or in ranges of bytes.
//! * [`metrics`]: the text of `GET /metrics` in its formats, and the metrics of the process.
//! * [`body`], `memory`: a request's body, read within the memory limit for all bodies.

#![forbid(unsafe_code)]

mod activity;
pub mod body;
pub mod config;
mod connection;
pub mod gate;
mod handler;
mod heads;
pub mod inherited;
mod keys;
mod ledger;
mod listener;
mod memory;
pub mod metrics;
mod places;
pub mod ranges;
pub mod server;

use std::borrow::Cow;

use hyper::StatusCode;

pub use body::{BodyFault, BodyLimits, Content, RequestBody};
pub use config::{Config, LiveSettings, TlsConfig};
pub use gate::Gate;
pub use handler::{Call, Front, Handler, ListenerKind, plain};
pub use keys::{Access, ShownKey};
pub use kvatlas_settings::Secret;
pub use memory::{BodyLease, Memory, Reservation};
pub use server::{Server, Threads};

/// Error of a server that cannot start, or of a configured file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// Refusal of a request before its route is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// HTTP status of the answer.
    pub status: StatusCode,
    /// Stable error code, equal in every release.
    pub code: &'static str,
    /// Description, in English, of what is wrong in the request, and of what would be accepted.
    pub message: Cow<'static, str>,
}

impl Denial {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into() }
    }
}
