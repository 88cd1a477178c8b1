//! A request as policies see it.

/// A prompt to place. Blocks are of `block_size` tokens; a prompt's last block, if it is not full, has no hash.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Tokens of the prompt; an estimate from its length in bytes where it could not be tokenised.
    pub tokens: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Content hashes of the prompt's full blocks, at most `tokens / block_size`; empty where it could not be tokenised.
    pub content_hashes: &'a [u64],
    /// The prompt as text, where the caller has it: for policies that work on characters. Others use the hashes.
    pub text: Option<&'a str>,
    /// The session that the request belongs to: a hash of its name.
    pub session: Option<u64>,
    /// The session that started this one, as an agent starts another: a hash of its name.
    pub parent: Option<u64>,
    /// The event that brought the request about, if its session is known.
    pub kind: Option<Kind>,
    /// The most tokens that it may generate, if it says so.
    pub max_tokens: Option<u32>,
    /// Higher goes first where requests wait.
    pub priority: i32,
    /// True if the request is placed at once, though others may wait in the router: it generates nothing, so prompts that
    /// are computed before it do not concern it.
    pub at_once: bool,
    /// True if the caller tells the worker what to load and where to pull from. If not, it loads all that it can.
    pub tells: bool,
    /// Number of answers that the request wants (`n`): they share the prompt.
    pub answers: u32,
    /// Seconds for which it has waited in the router, before each engine that it was sent to.
    pub waited: f64,
    /// Tells requests apart: counted up by the router.
    pub number: u64,
}

/// The event that brought a request of a session about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A session begins.
    Start,
    /// An agent that another session started begins.
    Subagent,
    /// A tool that the previous answer called has ended.
    Tool,
    /// The previous answer called no tool: a person wrote, or a program went on.
    User,
    /// The client has its own context summed up; its next prompt begins with the summary.
    Compaction,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Start, Self::Subagent, Self::Tool, Self::User, Self::Compaction];

    /// The kind in a word.
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
    /// Blocks of the prompt that can be taken from a cache: one token is always computed.
    #[must_use]
    pub fn usable_blocks(&self) -> u32 {
        let most = self.tokens.saturating_sub(1) / self.block_size.max(1);
        most.min(u32::try_from(self.content_hashes.len()).unwrap_or(u32::MAX))
    }

    /// Tokens that a worker computes that holds the first `depth` blocks: at least one.
    #[must_use]
    pub fn uncached(&self, depth: u32) -> u32 {
        self.tokens - depth.min(self.usable_blocks()) * self.block_size
    }

    /// Blocks that the prompt takes up, the last one included though it may not be full.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.tokens.div_ceil(self.block_size.max(1))
    }
}
