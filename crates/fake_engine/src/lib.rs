//! An inference engine without a model, for the tests of all crates. A test takes the side of it that it needs:
//!
//! | module | side |
//! |---|---|
//! | [`cache`] | the cache, which stores and evicts as vLLM's or SGLang's does; `conversations` fill it at random |
//! | [`groups`] | the cache of a hybrid model, with groups that keep blocks for different times |
//! | [`chain`] | the simplest content: one chain of blocks, and the events that announce it |
//! | [`events`] | the sockets that batches are published and replayed on, with faults on order |
//! | [`http`] | the server of requests, with its manners of failing, and a client that sees every byte |
//! | [`engine`] | cache, sockets and server as one engine that agrees with itself |
//!
//! The sides are not one struct, because few tests want more than one, and what is ordered of one says nothing to the
//! others: a publisher with gaps has no prompts, and a server that hangs has no events.
//!
//! Below them are [`net`] (ports and listeners), [`proxy`] (a connection that can be cut and held up), [`zmtp`] (ZeroMQ's
//! protocol as bytes, for those who speak it wrongly) and [`wait`].

pub mod cache;
pub mod chain;
pub mod conversations;
pub mod engine;
pub mod events;
pub mod groups;
pub mod http;
pub mod net;
pub mod proxy;
pub mod wait;
pub mod zmtp;

pub use self::cache::{Cache, Kind, Sequence};
pub use self::chain::{BLOCK_SIZE, Chain, payload, payload_at};
pub use self::conversations::Conversations;
pub use self::engine::Engine;
pub use self::events::Publisher;
pub use self::groups::GroupCache;
pub use self::http::{Client, Manner, Message, Server};
pub use self::net::{Listener, free_port};
pub use self::proxy::CuttableProxy;
pub use self::wait::{eventually, until};
