//! The protocol of an Endpoint Picker: a gateway asks over Envoy's external processing (gRPC) which engine gets a request.
//!
//! | file | what is in it |
//! |---|---|
//! | `messages` | the messages of the protocol, as far as they are used, by their public field numbers |
//! | `exchange` | one request: what the gateway sends, and what it is answered in each mode; without sockets |
//! | `server` | the gRPC server, with gRPC's health service |
//! | `picker` | what the server asks for a decision |
//!
//! The crate decides nothing: a [`Picker`] does.

#![forbid(unsafe_code)]

mod counts;
mod exchange;
pub mod messages;
mod picker;
mod server;

pub use counts::Counts;
pub use picker::{AnswerWatcher, Pick, PickRefusal, Picker, RequestToPick};
pub use server::{Settings, serve};
