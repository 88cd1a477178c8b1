//! The session that a request names, and its turn: the request as a part of its session.

use std::fmt;
use std::sync::Arc;

use kvatlas_routing::Kind;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::answers::observe::Stop;
use crate::config::Source;

/// The key under which names of sessions are shown, so that none is found by guessing it.
#[derive(Clone, PartialEq)]
pub(crate) struct ShownUnder(Arc<[u8; 32]>);

impl ShownUnder {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self(Arc::new(key))
    }

    /// Writes a session's key as records and pages have it.
    pub(super) fn hex(&self, session: u64) -> String {
        blake3::keyed_hash(&self.0, &session.to_le_bytes()).to_hex()[..16].to_owned()
    }
}

impl fmt::Debug for ShownUnder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A request as a part of its session.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) session: u64,
    pub(crate) parent: Option<u64>,
    pub(crate) source: Source,
    /// The number of the request in its session, from 0 on.
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    /// The reason for which the session's previous answer ended.
    pub(crate) stop: Option<Stop>,
    /// Seconds since the end of the session's previous answer.
    pub(crate) pause: Option<f64>,
    /// The requests that had to end before this one could be made, by the numbers of their decisions.
    pub(crate) after: Vec<u64>,
    /// Seconds since the last of these ends.
    pub(crate) delay: Option<f64>,
    pub(crate) hints: Hints,
    pub(crate) shown_under: ShownUnder,
}

impl Turn {
    /// Returns the turn in JSON.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "key": self.shown_under.hex(self.session),
            "source": self.source.word(),
            "parent": self.parent.map(|parent| self.shown_under.hex(parent)),
            "turn": self.number,
            "kind": self.kind.as_str(),
            "class": self.hints.class.map(Class::word),
            "compacted": self.hints.is_compacted,
            "previous_stop": self.stop.map(Stop::word),
            "pause": self.pause.map(to_millis),
            "tools": self.hints.tools,
        })
    }

    /// Writes the fields of a record, by the names that traces have for them.
    pub(crate) fn record(&self, fields: &mut Map<String, Value>) {
        let millis = |seconds: f64| (seconds * 1e3).round() as u64;
        let fields_of_turn: [(&str, Value); 10] = [
            ("session_id", self.shown_under.hex(self.session).into()),
            ("parent", self.parent.map(|parent| self.shown_under.hex(parent)).into()),
            ("turn", self.number.into()),
            ("kind", self.kind.as_str().into()),
            ("class", self.hints.class.map(Class::word).into()),
            ("compacted", self.hints.is_compacted.into()),
            ("pause", self.pause.map(to_millis).into()),
            ("tools", self.hints.tools.into()),
            ("after", self.after.clone().into()),
            ("delay", self.delay.map(millis).into()),
        ];
        fields.extend(fields_of_turn.map(|(name, value)| (name.to_owned(), value)));
    }
}

/// Seconds, to the millisecond.
fn to_millis(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

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
