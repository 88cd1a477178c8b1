//! The kinds of trouble that an engine can have: the words for each, and what to do about it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Address of the runbook, which has an entry for each condition.
const RUNBOOK: &str = "https://github.com/kvatlas/kvatlas/blob/main/docs/guides/sick-engines.md";

/// Events that were refused longer ago are of no concern any more.
const REFUSED_LATELY: Duration = Duration::from_secs(600);

/// The kinds of trouble that an engine can have, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    Down,
    Asleep,
    Failing,
    Silent,
    Misconfigured,
    Busy,
    Refusing,
    Denying,
    Partial,
}

/// The worst known condition of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) ill: Trouble,
    /// Reason in words, with figures.
    pub(crate) reason: String,
}

/// Events of an engine that were refused so far, and when the last one was.
#[derive(Debug, Default, Clone)]
pub(crate) struct RefusedEvents(u64, Option<Instant>);

impl Trouble {
    /// All kinds, the worst first.
    pub(crate) const ALL: [Self; 9] = [
        Self::Down,
        Self::Asleep,
        Self::Failing,
        Self::Silent,
        Self::Misconfigured,
        Self::Busy,
        Self::Refusing,
        Self::Denying,
        Self::Partial,
    ];

    /// The name in answers and logs, which is the anchor of its entry in the runbook.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Asleep => "asleep",
            Self::Failing => "failing",
            Self::Silent => "silent",
            Self::Misconfigured => "misconfigured",
            Self::Busy => "busy",
            Self::Refusing => "refusing",
            Self::Denying => "denying",
            Self::Partial => "partial",
        }
    }

    /// Advice to the operator.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Down => "check that the engine runs and that the router reaches it; it is used again when it answers",
            Self::Asleep => "wake it with POST /wake_up at the engine; it is used again when it says that it is awake",
            Self::Failing => "look into the engine's log: requests reach it, and it cannot answer them",
            Self::Silent => "look into the engine's log: it hangs, or works on what it will not finish",
            Self::Misconfigured => {
                "set --block-size to the size of the blocks in the engine's events, or topic to its topic, or leave them out"
            }
            Self::Busy => {
                "nothing, unless it lasts: it works, and gets new requests when it answers, or if no other can"
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
    /// Returns the condition as answers show it.
    pub(crate) fn to_json(&self) -> Value {
        let name = self.ill.name();
        json!({
            "name": name,
            "reason": self.reason,
            "advice": self.ill.advice(),
            "runbook": format!("{RUNBOOK}#{name}"),
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
