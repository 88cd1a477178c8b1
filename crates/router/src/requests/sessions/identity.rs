//! The session that a request names.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::config::Source;

/// A session by its name, and the session that started it. Names stay in the request: all else has hashes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) key: u64,
    pub(crate) parent: Option<u64>,
}

impl Name {
    pub(super) fn new(name: &[u8], parent: Option<&[u8]>) -> Self {
        let key = xxh3_64(name);
        Self { key, parent: parent.map(xxh3_64).filter(|parent| *parent != key) }
    }

    /// Makes the name of an agent, whose own name is unique within a session only. Agents are started by the session
    /// itself, or by another one of its agents.
    pub(super) fn of_agent(session: &[u8], agent: &[u8], parent: Option<&[u8]>) -> Self {
        let session = xxh3_64(session);
        let of = |agent| xxh3_64_with_seed(agent, session);
        Self { key: of(agent), parent: Some(parent.map_or(session, of)) }
    }
}

/// The session that a request names, and what its client says of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) name: Name,
    pub(crate) source: Source,
}

/// The facts that a client tells of a request beside its session.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Hints {
    pub(crate) class: Option<Class>,
    /// True if the session was compacted since its last request, so that its cached blocks are useless.
    pub(crate) is_compacted: bool,
    /// True if the client says that the session ends with this request.
    pub(crate) is_last: bool,
    /// Seconds that the tools took whose results the request brings.
    pub(crate) tools: Option<f64>,
}

/// The part of an agent's work that a request does, as Claude Code names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Main,
    Subagent,
    Workflow,
    Compaction,
    Auxiliary,
}

impl Class {
    pub(super) fn of(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"main" => Self::Main,
            b"subagent" => Self::Subagent,
            b"workflow" => Self::Workflow,
            b"compaction" => Self::Compaction,
            b"auxiliary" => Self::Auxiliary,
            _ => return None,
        })
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Subagent => "subagent",
            Self::Workflow => "workflow",
            Self::Compaction => "compaction",
            Self::Auxiliary => "auxiliary",
        }
    }
}
