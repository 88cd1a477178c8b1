//! The protocol of an Endpoint Picker: a gateway asks over Envoy's external processing (gRPC) which engine gets a request.
//!
//! | file | what is in it |
//! |---|---|
//! | `messages` | the messages of the protocol, as far as they are used, by their public field numbers |
//! | `exchange` | one request: what the gateway sends, and what it is answered in each mode; without sockets |
//! | `server` | the gRPC server, on connections that its user makes |
//! | `health` | gRPC's health service, beside it or at an address of its own |
//! | `picker` | what the server asks for a decision, and for room for bodies |
//!
//! The crate decides nothing: a [`Picker`] does.

#![forbid(unsafe_code)]

mod exchange;
pub mod messages;
mod picker;
mod server;

pub use picker::{AnswerWatcher, BodyRoom, Counts, Pick, PickRefusal, Picker, RequestToPick};
pub use server::{HealthStage, PickerHealth, Settings, serve, serve_health};
pub use tonic::transport::server::Connected;
