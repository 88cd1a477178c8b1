//! Work that routers have at workers, as one tells it to another.

use std::collections::HashMap;

use crate::router::request_changes::PeerRequests;

/// The work that one router has at one worker: the sums of its requests there.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Requests that are not finished.
    pub requests: u32,
    /// Requests without a first token.
    pub waiting: u32,
    /// Prompt tokens of requests without a first token, less those expected in its cache.
    pub queued_tokens: f64,
    /// Prompt tokens of requests without a first token, cached or not.
    pub queued_prompt_tokens: f64,
    /// Tokens of all requests, prompts and what they have generated so far.
    pub context_tokens: f64,
    /// Blocks of their prompts; what several share counts once.
    pub used_blocks: f64,
    /// Tokens that they may still generate.
    pub output_tokens_left: f64,
}

/// The work of other routers, by router and worker, and until when it counts.
#[derive(Debug, Default)]
pub(super) struct Peers {
    pub(super) work: HashMap<(u64, u32), (Work, f64)>,
    /// The requests of those that tell of them.
    pub(super) requests: PeerRequests,
    /// The time before which no entry ends.
    pub(super) next: f64,
}

impl Work {
    /// True if the numbers are possible: counts that fit each other, and finite amounts.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let amounts = [
            self.queued_tokens,
            self.queued_prompt_tokens,
            self.context_tokens,
            self.used_blocks,
            self.output_tokens_left,
        ];
        self.waiting <= self.requests
            && self.requests <= 1 << 24
            && amounts.iter().all(|amount| (0.0..=1e12).contains(amount))
    }
}
