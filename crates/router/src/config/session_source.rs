//! The places of a request where its session may be named.

use serde::Deserialize;

/// A place of a request where its session may be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The header that the configuration names.
    OwnHeader,
    /// Dynamo's header.
    Dynamo,
    /// Claude Code's headers for a session and its agent.
    ClaudeCode,
    /// Codex's headers: a thread, or a session.
    Codex,
    /// The headers of OpenCode and many others.
    CommonHeaders,
    /// Fields of the body that are for sessions.
    Body,
    /// The session within the body's `metadata`.
    Metadata,
    /// The body's `prompt_cache_key`.
    CacheKey,
    /// A longer prompt that begins with the session's last one.
    Prefix,
}

impl Source {
    /// All places, in the order in which they are looked at by default.
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

    /// The place in a word, as the configuration has it.
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
