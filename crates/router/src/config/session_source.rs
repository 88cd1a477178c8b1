//! Places of a request where the id of its session (a conversation of several requests) may be found.

use serde::Deserialize;

/// Place of a request where the id of its session may be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Header whose name the operator configures, with a session's id.
    OwnHeader,
    /// Dynamo's headers with the ids of a session and its parent.
    Dynamo,
    /// Claude Code's headers with the ids of a session and its agent.
    ClaudeCode,
    /// Codex's headers with the id of a thread or a session.
    Codex,
    /// Headers with a session's id that OpenCode and many others send.
    CommonHeaders,
    /// Fields of the body that are meant for a session's id.
    Body,
    /// Session's id in the body's field `metadata`.
    Metadata,
    /// Field `prompt_cache_key` of the body, whose value is used as a session's id.
    CacheKey,
    /// Prompt of the request, which continues a known session if it begins with the session's last prompt.
    Prefix,
}

impl Source {
    /// All places of a request that may have its session's id, in the order in which they are searched by default.
    pub(crate) const ALL: [Self; 9] = [
        Self::OwnHeader,
        Self::Dynamo,
        Self::ClaudeCode,
        Self::Codex,
        Self::CommonHeaders,
        Self::Body,
        Self::Metadata,
        Self::CacheKey,
        Self::Prefix,
    ];

    /// Returns the name that the configuration uses for this place of a session's id.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::OwnHeader => "own-header",
            Self::Dynamo => "dynamo",
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::CommonHeaders => "common-headers",
            Self::Body => "body",
            Self::Metadata => "metadata",
            Self::CacheKey => "cache-key",
            Self::Prefix => "prefix",
        }
    }
}
