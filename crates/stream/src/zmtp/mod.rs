//! ZMTP 3, the protocol between ZeroMQ's sockets, for the two kinds that follow an engine: a subscriber, and a client that asks.
//!
//! libzmq reads ahead in threads of its own. Its buffers are bounded by a number of messages only, and an endless
//! message is not bounded at all; and a listening socket of libzmq does not tell its peers apart. So libzmq is not used here: a
//! connection is read by the task of its stream, as much as that can use. The rest stays at the engine.
//!
//! `parser` makes messages of bytes, `greeting` has the bytes before them, `socket` is TCP or a path, `connection` puts
//! them together.

mod connection;
mod greeting;
mod parser;
mod socket;

pub use self::connection::{Connection, Event};
pub use self::greeting::Kind;
pub use self::parser::{Budget, Head, Room};
pub use self::socket::{ConnectAttempt, Socket};
