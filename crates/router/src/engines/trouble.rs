//! The kinds of trouble that an engine can have: the words for each, and what to do about it.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

/// Address of the runbooks: a page for each condition, by its name.
const RUNBOOKS: &str = "https://github.com/kvatlas/kvatlas/blob/main/docs/runbooks";

/// Events that were refused longer ago are of no concern any more.
const REFUSED_LATELY: Duration = Duration::from_secs(600);

/// The kinds of trouble that an engine can have, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    Down,
    Asleep,
    Failing,
    Silent,
    Refused,
    NoEvents,
    Misconfigured,
    Busy,
    Unfollowed,
    Refusing,
    OtherTokens,
    Denying,
    Slow,
    Overdue,
    Partial,
}

/// The worst known condition of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) ill: Trouble,
    /// Reason in words, with figures.
    pub(crate) reason: String,
    /// Time since which the engine has had this condition.
    pub(crate) since: SystemTime,
}

/// Events of an engine that were refused so far, and when the last one was.
#[derive(Debug, Default, Clone)]
pub(crate) struct RefusedEvents(u64, Option<Instant>);

impl Trouble {
    /// All kinds, the worst first.
    pub(crate) const ALL: [Self; 15] = [
        Self::Down,
        Self::Asleep,
        Self::Failing,
        Self::Silent,
        Self::Refused,
        Self::NoEvents,
        Self::Misconfigured,
        Self::Busy,
        Self::Unfollowed,
        Self::Refusing,
        Self::OtherTokens,
        Self::Denying,
        Self::Slow,
        Self::Overdue,
        Self::Partial,
    ];

    /// The name in answers, metrics and logs, and of its runbook.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Asleep => "asleep",
            Self::Failing => "failing",
            Self::Silent => "silent",
            Self::Refused => "refused",
            Self::NoEvents => "no_events",
            Self::Misconfigured => "misconfigured",
            Self::Busy => "busy",
            Self::Unfollowed => "unfollowed",
            Self::Refusing => "refusing",
            Self::OtherTokens => "other_tokens",
            Self::Denying => "denying",
            Self::Slow => "slow",
            Self::Overdue => "overdue",
            Self::Partial => "partial",
        }
    }

    /// The name in a sentence: "the engine is …".
    pub(crate) fn phrase(self) -> &'static str {
        match self {
            Self::NoEvents => "without events",
            Self::OtherTokens => "making other tokens",
            other => other.name(),
        }
    }

    /// Advice to the operator.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Down => "check that the engine runs and that the router reaches it; it is used again when it answers",
            Self::Asleep => "wake it with POST /wake_up at the engine; it is used again when it says that it is awake",
            Self::Failing => "look into the engine's log: requests reach it, and it cannot answer them",
            Self::Silent => "look into the engine's log: it hangs, or works on what it will not finish",
            Self::Refused => "correct what the reason names; until then, requests are placed as if it held nothing",
            Self::NoEvents => {
                "look whether the engine still publishes events, and whether the router reaches both of its event sockets; \
                 requests are placed as if it held nothing"
            }
            Self::Unfollowed => {
                "if the engine is listed in the configuration or by a source of --discover, discovery has failed: restart the \
                 router, and report the traceback in its log"
            }
            Self::Slow => "look for what else runs on its machine, a throttled GPU, or other flags than its peers have",
            Self::Overdue => {
                "wait for up to --stale-after: its events come again by then, or the condition becomes no_events"
            }
            Self::Misconfigured => {
                "set --block-size to the size of the blocks in the engine's events, or topic to its topic, or leave them out"
            }
            Self::Busy => {
                "nothing, unless it lasts: it works, and gets new requests when it answers or takes them, or if no other can"
            }
            Self::OtherTokens => {
                "give the router the tokenizer and chat template that the engine uses, or --tokenizer engine; \
                 `kvatlas router --check` names the first token that differs"
            }
            Self::Refusing => "`kvatlas decode` shows the events; a newer version of kvatlas may know them",
            Self::Denying => {
                "look whether its prefix cache is on, and its version announces what it frees; it counts by the share that it had"
            }
            Self::Partial => {
                "give the engine a replay socket with a larger buffer; it passes when the cache turns over"
            }
        }
    }
}

impl Condition {
    /// A condition that begins now.
    pub(crate) fn new(ill: Trouble, reason: impl Into<String>) -> Self {
        Self { ill, reason: reason.into(), since: SystemTime::now() }
    }

    /// Returns the condition as answers show it.
    pub(crate) fn to_json(&self) -> Value {
        let name = self.ill.name();
        json!({
            "name": name,
            "severity": Trouble::ALL.len() - self.ill as usize,
            "reason": self.reason,
            "advice": self.ill.advice(),
            "runbook": format!("{RUNBOOKS}/{name}.md"),
            "since": self.since.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        })
    }
}

impl RefusedEvents {
    /// True if the number of refused events, now `refused`, has grown lately.
    pub(crate) fn is_new(&mut self, refused: u64) -> bool {
        if refused > self.0 {
            *self = Self(refused, Some(Instant::now()));
        }
        self.1.is_some_and(|at| at.elapsed() < REFUSED_LATELY)
    }
}
