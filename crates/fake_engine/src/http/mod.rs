//! An engine's HTTP server, with its manners of failing, and a client for what stands in front of engines. Both read with
//! the same [`Connection`].

mod client;
mod message;
mod server;

pub use self::client::Client;
pub use self::message::{Connection, Message};
pub use self::server::{Manner, Prefill, Server};
