//! A simulated inference engine without a model, for the tests of all crates. A test uses the parts that it needs:
//!
//! | module | part |
//! |---|---|
//! | [`cache`] | a cache that stores and evicts blocks like vLLM or SGLang, and conversations that fill it at random |
//! | [`groups`] | the cache of a hybrid model, whose groups of layers keep blocks for different times |
//! | [`chain`] | the simplest content: one chain of blocks, and the events that announce it |
//! | [`events`] | the sockets that publish and replay batches, with faults on demand, and their protocol as bytes |
//! | [`http`] | the HTTP server, with faults on demand, and a client with access to every byte |
//! | [`Engine`] | cache, sockets and server together as one consistent engine |
//!
//! The parts are separate, because few tests need more than one, and a fault of one has no meaning for the others: a
//! publisher with gaps has no prompts, and a server that hangs has no events.
//!
//! Shared by all parts: [`net`] (ports, listeners, and connections that can be cut and held up), and [`until`] and
//! [`eventually`], which wait for a condition.

pub mod cache;
pub mod chain;
pub mod events;
pub mod groups;
pub mod http;
pub mod net;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvatlas_adopt::Form;
use kvatlas_index::BlockHash;
use kvatlas_wire::{Event, EventOf, Name, Removed, Stored};
use parking_lot::Mutex;
use serde_json::Value;

pub use self::cache::{Cache, Conversations, Kind, Sequence};
pub use self::chain::{BLOCK_SIZE, Chain, payload, payload_at};
pub use self::events::Publisher;
pub use self::groups::GroupCache;
pub use self::http::{Client, Manner, Message, Server};
pub use self::net::{CuttableProxy, Listener, free_port};
use crate::http::Prefill;

/// Waits until the condition `holds` is true; after a minute the test fails with the message `wrong`.
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

/// Waits until the condition `holds` is true; after a minute the test fails with the description `what`.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    until(holds, || format!("it did not come to be: {what}"));
}

/// A simulated engine with consistent cache, events and HTTP answers: the prompts of requests, given as token ids,
/// enter its cache, the answer reports the cached tokens, and the cache's events are published before the answer.
pub struct Engine {
    /// The engine's HTTP server.
    pub server: Server,
    /// The engine's event sockets.
    pub publisher: Arc<Publisher>,
}

impl Engine {
    /// Starts a simulated vLLM for the model `model`, with a cache of `blocks` blocks.
    #[must_use]
    pub fn start(model: &str, blocks: usize) -> Self {
        let publisher = Arc::new(Publisher::start(10_000));
        let cache = Mutex::new(Cache::new(Kind::Vllm, Kind::Vllm.dialect(Form::Integer), blocks));
        let own = publisher.clone();
        let server = Server::start_with(model, move |body| {
            let prompt = prompt(body);
            // Batches are published in the order of their changes.
            let mut cache = cache.lock();
            let prefill = compute(&mut cache, prompt);
            let events: Vec<Event> = cache.take_events().into_iter().map(named).collect();
            if !events.is_empty() {
                own.announce(events);
            }
            prefill
        });
        Self { server, publisher }
    }
}

fn prompt(body: &Value) -> Sequence {
    let tokens = body["prompt"].as_array().into_iter().flatten();
    Sequence { tokens: tokens.filter_map(|token| Some(token.as_u64()? as u32)).collect(), salt: None }
}

/// Computes a prompt as the only running request, and returns its token counts. A prompt too large for the cache is not
/// cached.
fn compute(cache: &mut Cache, prompt: Sequence) -> Prefill {
    let tokens = prompt.tokens.len();
    let cached = if tokens > 0 { cache.admits(&prompt) } else { None };
    if let Some(cached) = cached {
        cache.begin(prompt, cached);
        cache.compute(0, cache.left(0));
        cache.finish(0);
    }
    Prefill { tokens, cached: cached.unwrap_or(0) * BLOCK_SIZE as usize }
}

/// Converts the block hashes of an event to the form in which they are sent.
fn named(event: EventOf<BlockHash>) -> Event {
    let sent = |name: BlockHash| Name::from(name.0);
    let all = |names: Vec<BlockHash>| names.into_iter().map(sent).collect();
    match event {
        EventOf::Stored(it) => Stored {
            block_hashes: all(it.block_hashes),
            parent: it.parent.map(sent),
            tokens: it.tokens,
            block_size: it.block_size,
            salt: it.salt,
            ..Stored::default()
        }
        .into(),
        EventOf::Removed(it) => Removed { block_hashes: all(it.block_hashes), ..Removed::default() }.into(),
        EventOf::Cleared(it) => it.into(),
    }
}
