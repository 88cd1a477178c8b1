//! The HTTP server that the service and the router stand on. It knows nothing of either.
//!
//! ```text
//! server ──▶ places ──▶ connection (watch, heads, streams, ledger) ──▶ Handler ──▶ gate (keys, hosts), body (memory)
//! ```
//!
//! * [`server`]: listening, and the threads that serve.
//! * `listener`: accepting connections, each of which is served for as long as it is open.
//! * `handler`: whoever answers, and what it shares with the server.
//! * `places`: room for connections, and a budget of bytes for those without a key, which give way.
//! * `ledger`: the streams of an HTTP/2 connection that has shown no key.
//! * `connection`: one client's connection: hyper speaks HTTP on it, and time limits are kept.
//! * [`gate`]: keys, certificates, and the hosts that a request may name.
//! * `plain`: texts without their encodings, in which keys and dot segments are looked for.
//! * [`ranges`]: answers with files, whole or in ranges of bytes.
//! * [`metrics`]: the formats of `GET /metrics`, and the metrics of the process.
//! * [`body`]: a request's body, read into memory that all bodies share.

#![forbid(unsafe_code)]

pub mod body;
pub mod config;
mod connection;
mod content;
mod frames;
pub mod gate;
mod handler;
mod heads;
mod keys;
mod ledger;
mod limits;
mod listener;
mod memory;
pub mod metrics;
mod note;
mod origin;
mod places;
mod plain;
pub mod ranges;
pub mod server;
mod sniff;
mod streams;
mod trust;

use std::borrow::Cow;

use hyper::StatusCode;

pub use body::{BodyFault, BodyLimits, RequestBody};
pub use config::{Config, TlsConfig};
pub use content::Content;
pub use gate::Gate;
pub use handler::{Call, Front, Handler, ListenerKind};
pub use keys::{Access, ShownKey};
pub use kvatlas_settings::Secret;
pub use memory::{Memory, Reservation};
pub use plain::plain;
pub use server::{Server, Threads};

/// A server could not be started, or a file of its configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// A request that is refused before anybody has looked at what it asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The status of the answer.
    pub status: StatusCode,
    /// A name for the reason that stays.
    pub code: &'static str,
    /// Words for what was wrong and what would be right.
    pub message: Cow<'static, str>,
}

impl Denial {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into() }
    }
}
