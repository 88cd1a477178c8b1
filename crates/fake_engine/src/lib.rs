//! An inference engine without a model, for the tests of all crates. A test uses the sides that it needs:
//!
//! | module | side |
//! |---|---|
//! | [`cache`] | the cache, which stores and evicts as vLLM's or SGLang's does, and conversations that fill it at random |
//! | [`groups`] | the cache of a hybrid model, with groups that keep blocks for different times |
//! | [`chain`] | the simplest content: one chain of blocks, and the events that announce it |
//! | [`events`] | the sockets that batches are published and replayed on, with faults on demand, and their protocol as bytes |
//! | [`http`] | the HTTP server, with faults on demand, and a client with access to every byte |
//! | [`engine`] | cache, sockets and server as one engine that agrees with itself |
//!
//! The sides are separate, because few tests need more than one, and a fault of one has no meaning for the others: a
//! publisher with gaps has no prompts, and a server that hangs has no events.
//!
//! Shared parts: [`net`] (ports, listeners, and connections that can be cut and held up), and [`until`] and
//! [`eventually`], which wait for a condition.

pub mod cache;
pub mod chain;
pub mod engine;
pub mod events;
pub mod groups;
pub mod http;
pub mod net;

use std::time::{Duration, Instant};

pub use self::cache::{Cache, Conversations, Kind, Sequence};
pub use self::chain::{BLOCK_SIZE, Chain, payload, payload_at};
pub use self::engine::Engine;
pub use self::events::Publisher;
pub use self::groups::GroupCache;
pub use self::http::{Client, Manner, Message, Server};
pub use self::net::{CuttableProxy, Listener, free_port};

/// Waits until `holds`; after a minute the test fails with the message `wrong`.
#[track_caller]
pub fn until(mut holds: impl FnMut() -> bool, wrong: impl FnOnce() -> String) {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > Duration::from_secs(60) {
            panic!("{}", wrong());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `holds`; `what` describes the condition.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    until(holds, || format!("it did not come to be: {what}"));
}
