//! Identity of the session that a request names, and the request's position in the session (its turn).

use std::fmt;
use std::sync::Arc;

use kvatlas_routing::Kind;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::answers::observe::Stop;
use crate::config::Source;

/// Secret key with which ids of sessions are hashed before they are shown, so that the ids cannot be found by guessing.
#[derive(Clone, PartialEq)]
pub(crate) struct ShownUnder(Arc<[u8; 32]>);

impl ShownUnder {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self(Arc::new(key))
    }

    /// Returns a session's id in the form that records and web pages show: hashed, in hexadecimal.
    pub(super) fn hex(&self, session: u64) -> String {
        blake3::keyed_hash(&self.0, &session.to_le_bytes()).to_hex()[..16].to_owned()
    }
}

impl fmt::Debug for ShownUnder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Turn of a session: one request, with its position in the session and the time since the last answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) session: u64,
    pub(crate) parent: Option<u64>,
    pub(crate) source: Source,
    /// Number of the request in its session, counted from 0.
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    /// Reason for the end of the session's previous answer; None if unknown.
    pub(crate) stop: Option<Stop>,
    /// Seconds since the end of the session's previous answer; None for the first request.
    pub(crate) pause: Option<f64>,
    /// Numbers of the requests that had to end before this one could be made, as the decision core (which chooses
    /// engines) identifies requests.
    pub(crate) after: Vec<u64>,
    /// Seconds since the last of the requests in `after` ended; None if `after` is empty.
    pub(crate) delay: Option<f64>,
    pub(crate) hints: Hints,
    pub(crate) shown_under: ShownUnder,
}

impl Turn {
    /// Returns the turn (position of the request in its session) as JSON.
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

    /// Adds the turn's fields to a record of a decision, with the names used in traces.
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

/// Rounds seconds to the millisecond.
fn to_millis(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

/// Hash of a session's name, and of the name of the session that started it. The names themselves are not stored.
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

    /// Makes the hash for an agent, whose name is unique only within a session. An agent's parent is the session
    /// itself, or another agent of the session.
    pub(super) fn of_agent(session: &[u8], agent: &[u8], parent: Option<&[u8]>) -> Self {
        let session = xxh3_64(session);
        let of = |agent| xxh3_64_with_seed(agent, session);
        Self { key: of(agent), parent: Some(parent.map_or(session, of)) }
    }
}

/// Session that a request names, and the header or body field that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) name: Name,
    pub(crate) source: Source,
}

/// Facts about a request that the client states in headers, besides its session.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Hints {
    pub(crate) class: Option<Class>,
    /// True if the session was compacted since its last request, so that its cached blocks are useless.
    pub(crate) is_compacted: bool,
    /// True if the client states that the session ends with this request.
    pub(crate) is_last: bool,
    /// Seconds that the tools ran whose results are in the request; None if not stated.
    pub(crate) tools: Option<f64>,
}

/// Purpose of a request within an agent's work, by Claude Code's names.
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
