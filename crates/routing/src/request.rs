//! Requests as policies see them.

/// Request for a worker, with its prompt. Blocks have `block_size` tokens; a last block that is not full has no hash.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Number of tokens of the prompt; an estimate from its length in bytes if it could not be tokenized.
    pub tokens: u32,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// Content hashes of the prompt's full blocks, at most `tokens / block_size`; empty if it could not be tokenized.
    pub content_hashes: &'a [u64],
    /// Text of the prompt, for policies that work on characters; None if the caller does not have it.
    pub text: Option<&'a str>,
    /// Session that the request belongs to, as a hash of its name; None if it has none.
    pub session: Option<u64>,
    /// Session that started this one, as an agent starts another, as a hash of its name; None if there is none.
    pub parent: Option<u64>,
    /// Event that caused the request; None if its session is unknown.
    pub kind: Option<Kind>,
    /// Largest number of tokens that the request may generate; None if it does not say.
    pub max_tokens: Option<u32>,
    /// Priority: among waiting requests, higher ones go first.
    pub priority: i32,
    /// True if the request never waits in the router, even if others do: it generates nothing, and is not delayed by
    /// prompts that are computed before it.
    pub at_once: bool,
    /// True if the caller tells the worker which blocks to load and where to pull from. Otherwise, the worker loads all
    /// that it can.
    pub tells: bool,
    /// Number of answers requested (`n`): they share the prompt.
    pub answers: u32,
    /// Seconds that the request has waited in the router, in all its attempts together.
    pub waited: f64,
    /// Number that identifies the request, assigned by the router.
    pub number: u64,
}

/// Event that caused a request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The session starts.
    Start,
    /// An agent that another session started begins.
    Subagent,
    /// A tool that the previous answer called has returned.
    Tool,
    /// A user's message, or a program's next step: the previous answer called no tool.
    User,
    /// The client requests a summary of its context, with which its next prompt begins.
    Compaction,
}

impl Kind {
    /// All kinds of events.
    pub const ALL: [Self; 5] = [Self::Start, Self::Subagent, Self::Tool, Self::User, Self::Compaction];

    /// Name of the event, as one word.
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
    /// Number of the prompt's blocks that can be taken from a cache: at least one token is always computed.
    #[must_use]
    pub fn usable_blocks(&self) -> u32 {
        let most = self.tokens.saturating_sub(1) / self.block_size.max(1);
        most.min(u32::try_from(self.content_hashes.len()).unwrap_or(u32::MAX))
    }

    /// Number of tokens that a worker computes that holds the first `depth` blocks: at least one.
    #[must_use]
    pub fn uncached(&self, depth: u32) -> u32 {
        self.tokens - depth.min(self.usable_blocks()) * self.block_size
    }

    /// Number of blocks that the prompt occupies, including a last one that is not full.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.tokens.div_ceil(self.block_size.max(1))
    }
}
