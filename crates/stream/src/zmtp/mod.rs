//! ZMTP 3, the protocol between ZeroMQ's sockets, as far as a subscriber, an asker and one who is asked need it.
//!
//! libzmq has threads of its own that read ahead of us. What they read is bounded by a number of messages only, and of a
//! message that never ends not even by that; and a socket of it that listens does not tell its peers apart. So there is
//! none here: a connection is read by the task of its stream, as much as that can use. What it has not read stays at the
//! engine.
//!
//! `parser` makes messages of bytes, `greeting` is what comes before them, `socket` is TCP or a path, `connection` puts
//! them together.

mod connection;
mod greeting;
mod parser;
mod socket;

pub use self::connection::{Connection, Event};
pub use self::greeting::{Kind, Security, WRONG_KEY};
pub use self::parser::{Budget, Head, Room};
pub use self::socket::{ConnectAttempt, Socket};
