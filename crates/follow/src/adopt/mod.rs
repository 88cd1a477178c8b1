//! Adoption of blocks that streams have not announced: `kvatlas-adopt` says how and why that is right.
//!
//! Streams record the names that they prove (`stream/holdings.rs`). Each prompt that is queried, or of which an engine reports
//! cached tokens, goes to the [`PromptQueue`](crate::state::PromptQueue), if any stream waits for names at all; a worker looks
//! at it later, in a thread of its own that takes no more than its share of a core (`worker.rs`, `work.rs`).

mod meanings;
mod work;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

pub(crate) use self::worker::start;
use crate::state::{CacheReport, Keyspace, Prompt, time_of};

impl Keyspace {
    /// Records a query for a prompt. Where no stream waits for names, this reads one word.
    pub fn note_query(self: &Arc<Self>, tokens: &[u32], lora: Option<&str>, salt: Option<&str>) {
        if self.is_waiting() && self.prompt_queue().is_open() {
            self.was_asked(false);
            self.leave(tokens, lora, salt, None);
        }
    }

    /// Records a query by content hashes. Engines' names depend on the tokens, so nothing can be adopted from it. True if a
    /// query by tokens might help.
    pub fn note_hash_query(&self) -> bool {
        if !self.is_nameable() || !self.prompt_queue().is_open() {
            return false;
        }
        self.was_asked(true);
        self.prompt_queue().counts.prompts_hashed.fetch_add(1, Relaxed);
        true
    }

    /// True if queries, or reports of cached tokens, may lead to adopted blocks.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.prompt_queue().is_open()
            && (self.is_waiting() || self.steady(|streams| streams.partial().next().is_some()))
    }

    /// True if a report of the tokens that a worker's rank had cached may lead to adopted blocks.
    #[must_use]
    pub fn wants_answers(&self, worker: &str, rank: u32) -> bool {
        self.prompt_queue().is_open()
            && self.stream(worker, rank).is_some_and(|stream| stream.status.partial.load(Relaxed))
    }

    /// Records a report that a worker's rank took `cached_tokens` of a prompt from its cache. `sent`: the time at which the
    /// prompt was sent there, or any time before. False if the report is of no use.
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
