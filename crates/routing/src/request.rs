//! Requests in the form in which routing policies receive them.

/// Request to route to a worker, with its prompt. The prompt is split into blocks of `block_size` tokens; a last block
/// that is not full has no hash.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Number of tokens of the prompt, or an estimate from its length in bytes if it could not be tokenized.
    pub tokens: u32,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// Content hashes of the prompt's full blocks, at most `tokens / block_size`; empty if it could not be tokenized.
    pub content_hashes: &'a [u64],
    /// Text of the prompt, for policies that compare characters; None if the caller does not have it.
    pub text: Option<&'a str>,
    /// Session to which the request belongs, as a hash of its name; None if it belongs to none.
    pub session: Option<u64>,
    /// Session that started the request's session, as an agent starts a sub-agent, as a hash of its name; None if there
    /// is none.
    pub parent: Option<u64>,
    /// Kind of event that caused the request; None if its session is unknown.
    pub kind: Option<Kind>,
    /// Largest number of tokens that may be generated for the request; None if the request sets no limit.
    pub max_tokens: Option<u32>,
    /// Priority of the request: among waiting requests, those with a higher priority are sent first.
    pub priority: i32,
    /// True if the request never waits in the router, even if others do, because it generates no tokens and prompts
    /// computed before it do not delay it.
    pub at_once: bool,
    /// True if the caller will tell the worker which blocks to load and from where to pull. Otherwise, the worker loads
    /// all blocks that it can.
    pub tells: bool,
    /// Number of answers requested for the prompt (`n` in the API).
    pub answers: u32,
    /// Total seconds that the request has waited in the router, over all its attempts.
    pub waited: f64,
    /// Number that identifies the request, assigned by the router.
    pub number: u64,
}

/// Kind of event that caused a request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Start of a new session.
    Start,
    /// Start of a sub-agent by another session.
    Subagent,
    /// Return of a tool that the previous answer called.
    Tool,
    /// Message of a user, or next step of a program, after an answer that called no tool.
    User,
    /// Compaction: the client requests a summary of its context, with which its next prompt begins.
    Compaction,
}

impl Kind {
    /// All kinds of events that cause requests.
    pub const ALL: [Self; 5] = [Self::Start, Self::Subagent, Self::Tool, Self::User, Self::Compaction];

    /// Name of the kind of event, as one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Subagent => "subagent",
            Self::Tool => "tool",
            Self::User => "user",
            Self::Compaction => "compaction",
        }
    }
}

impl Request<'_> {
    /// Number of the prompt's blocks that can be reused from a cache; at least one token is always computed.
    #[must_use]
    pub fn usable_blocks(&self) -> u32 {
        let most = self.tokens.saturating_sub(1) / self.block_size.max(1);
        most.min(u32::try_from(self.content_hashes.len()).unwrap_or(u32::MAX))
    }

    /// Number of the prompt's tokens to compute at a worker that holds its first `depth` blocks; at least 1.
    #[must_use]
    pub fn uncached(&self, depth: u32) -> u32 {
        self.tokens - depth.min(self.usable_blocks()) * self.block_size
    }

    /// Number of blocks that the prompt occupies, including a last block that is not full.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.tokens.div_ceil(self.block_size.max(1))
    }
}
