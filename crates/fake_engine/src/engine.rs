//! Cache, event sockets and server of one engine.

use std::sync::Arc;

use kvatlas_adopt::Form;
use kvatlas_index::BlockHash;
use kvatlas_wire::{Event, EventOf, Name, Removed, Stored};
use parking_lot::Mutex;
use serde_json::Value;

use crate::cache::{Cache, Kind, Sequence};
use crate::chain::BLOCK_SIZE;
use crate::events::Publisher;
use crate::http::{Prefill, Server};

/// An engine whose three sides agree: the prompts of requests, which are token ids, go into its cache, their usage
/// reports the cached tokens, and the cache's events are published before the answer.
pub struct Engine {
    /// The HTTP server.
    pub server: Server,
    /// The event sockets.
    pub publisher: Arc<Publisher>,
}

impl Engine {
    /// Starts a vLLM that serves the model `model`, with room for `blocks` blocks.
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

/// Computes a prompt as the only request; a prompt without room is computed and not cached.
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

/// Converts the names of an event to their form on the wire.
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
