//! Learns what streams have not announced: `kvatlas-adopt` says how and why that is right.
//!
//! Streams note what they prove (`stream/holdings.rs`). Whoever is asked for a prompt, or hears what an engine had of one,
//! leaves it on the [`PromptQueue`], if anything waits for it at all; a worker looks at it later, in a thread of its
//! own that takes no more than its share of a core (`worker.rs`, `work.rs`).

pub(crate) mod prompt_queue;
mod work;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

pub use self::prompt_queue::PromptQueue;
pub(crate) use self::prompt_queue::time_of;
use self::prompt_queue::{CacheReport, Prompt};
pub(crate) use self::worker::start;
use crate::state::Keyspace;

impl Keyspace {
    /// Somebody has asked for a prompt. Where nothing waits for its blocks, this is one look at one word.
    pub fn note_query(self: &Arc<Self>, tokens: &[u32], lora: Option<&str>, salt: Option<&str>) {
        if self.is_waiting() && self.prompt_queue().is_open() {
            self.was_asked(false);
            self.leave(tokens, lora, salt, None);
        }
    }

    /// Somebody has asked for a prompt by its content hashes. Engines' names depend on the tokens, so there is nothing to
    /// be learnt of it. True if there would be, had they sent the tokens.
    pub fn note_hash_query(&self) -> bool {
        if !self.is_nameable() || !self.prompt_queue().is_open() {
            return false;
        }
        self.was_asked(true);
        self.prompt_queue().counts.prompts_hashed.fetch_add(1, Relaxed);
        true
    }

    /// True if it may help to hear what engines have cached of prompts, or who asks for what.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.prompt_queue().is_open()
            && (self.is_waiting() || self.steady(|streams| streams.partial().next().is_some()))
    }

    /// True if it would help to hear what a worker's rank had cached of a prompt.
    #[must_use]
    pub fn wants_answers(&self, worker: &str, rank: u32) -> bool {
        self.prompt_queue().is_open()
            && self.stream(worker, rank).is_some_and(|stream| stream.status.partial.load(Relaxed))
    }

    /// A worker's rank has said that it took so many tokens of a prompt from its cache. `sent`: when the prompt was sent
    /// there, or any time before. False if that is of no use.
    pub fn answered(
        self: &Arc<Self>,
        worker: &str,
        rank: u32,
        (tokens, lora, salt): (&[u32], Option<&str>, Option<&str>),
        cached_tokens: usize,
        sent: Instant,
    ) -> bool {
        let blocks = cached_tokens.min(tokens.len()) / self.block_size as usize;
        if !self.wants_answers(worker, rank) {
            return false;
        }
        let answered = CacheReport { worker: worker.into(), rank, blocks, sent: time_of(sent) };
        self.leave(&tokens[..blocks * self.block_size as usize], lora, salt, Some(answered));
        true
    }

    fn leave(self: &Arc<Self>, tokens: &[u32], lora: Option<&str>, salt: Option<&str>, answered: Option<CacheReport>) {
        let prompt_queue = self.prompt_queue();
        if lora.is_some_and(|lora| !lora.is_empty()) {
            prompt_queue.counts.prompts_lora.fetch_add(1, Relaxed);
            return;
        }
        if tokens.len() < self.block_size as usize {
            return;
        }
        let salt = salt.filter(|salt| !salt.is_empty()).map(Into::into);
        prompt_queue.leave(Prompt { keyspace: Arc::downgrade(self), tokens: tokens.into(), salt, answered });
    }
}
