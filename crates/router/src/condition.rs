//! The worst thing that is known of an engine: in a word, with the figures, and with what to do about it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::app::App;
use crate::engine::{Engine, Standing};
use crate::lock;

/// Where each of them is written of.
const RUNBOOK: &str = "https://github.com/kvatlas/kvatlas/blob/main/docs/guides/sick-engines.md";

/// Events that were refused longer ago are of no concern any more.
const REFUSED_LATELY: Duration = Duration::from_secs(600);

/// What is wrong with an engine, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ill {
    Down,
    Failing,
    Silent,
    Misconfigured,
    Refusing,
    Partial,
}

/// The worst thing that is known of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) ill: Ill,
    /// The figures, in words.
    pub(crate) reason: String,
}

/// Events of an engine that were refused so far, and when the last one was.
#[derive(Debug, Default)]
pub(crate) struct Refused(u64, Option<Instant>);

impl Ill {
    /// The name in answers and logs, which is the anchor of its entry in the runbook.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Failing => "failing",
            Self::Silent => "silent",
            Self::Misconfigured => "misconfigured",
            Self::Refusing => "refusing",
            Self::Partial => "partial",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Down => "check that the engine runs and that the router reaches it; it is used again when it answers",
            Self::Failing => "look into the engine's log: requests reach it, and it cannot answer them",
            Self::Silent => "look into the engine's log: it hangs, or works on what it will not finish",
            Self::Misconfigured => "leave out --block-size, or set it to the size of the engine's blocks",
            Self::Refusing => "`kvatlas decode` shows the events; a newer version of kvatlas may know them",
            Self::Partial => {
                "give the engine a replay socket with a larger buffer; it passes when the cache turns over"
            }
        }
    }
}

impl Condition {
    /// The worst thing that is known of an engine now; none if all is well.
    pub(crate) fn of(app: &App, engine: &Engine) -> Option<Self> {
        let said = |ill, reason: String| Some(Self { ill, reason });
        let recent = engine.recent.failing();
        match engine.health.standing() {
            Standing::Down => {
                let why = lock(&engine.why_down).clone();
                return said(Ill::Down, why.unwrap_or_else(|| "it does not answer".to_owned()));
            }
            Standing::Failing if recent.is_none() => {
                return said(Ill::Failing, "several requests in a row failed".to_owned());
            }
            Standing::Silent => return said(Ill::Silent, "it has requests and sends nothing".to_owned()),
            _ => {}
        }
        if let Some((failed, all)) = recent {
            return said(Ill::Failing, format!("{failed} of the last {all} requests failed"));
        }
        Self::of_events(app, engine)
    }

    /// The same of its events.
    fn of_events(app: &App, engine: &Engine) -> Option<Self> {
        let keyspaces = app.service.as_ref()?.fleet().keyspaces();
        let keyspace = keyspaces.iter().find(|keyspace| !keyspace.streams_of(&engine.name).is_empty())?;
        let (mut refused, mut wrong_size, mut lost, mut is_partial) = (0, 0, 0, false);
        for (_, stream) in keyspace.streams_of(&engine.name) {
            let status = &stream.status;
            refused += status.refused().iter().sum::<u64>();
            wrong_size += status.refused_for_their_size();
            lost += status.counters.lost_batches.load(Relaxed);
            is_partial |= status.partial.load(Relaxed);
        }
        let said = |ill, reason: String| Some(Self { ill, reason });
        if lock(&engine.refused).is_new(refused) {
            if wrong_size > 0 {
                let size = keyspace.block_size;
                let reason =
                    format!("{wrong_size} events have blocks of another size than {size}, which is set or announced");
                return said(Ill::Misconfigured, reason);
            }
            return said(Ill::Refusing, format!("{refused} of its events could not be used"));
        }
        let reason =
            if lost > 0 { format!("{lost} batches of events are lost") } else { "events were missed".to_owned() };
        is_partial.then_some(Self { ill: Ill::Partial, reason })
    }

    /// As an answer has it.
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

impl Refused {
    /// True if some were refused lately, of so many in all.
    fn is_new(&mut self, refused: u64) -> bool {
        if refused > self.0 {
            *self = Self(refused, Some(Instant::now()));
        }
        self.1.is_some_and(|at| at.elapsed() < REFUSED_LATELY)
    }
}

/// Looks how an engine is, and says it when that changes.
pub(crate) fn look(app: &App, engine: &Engine) {
    engine.recent.look(&engine.counts);
    let now = Condition::of(app, engine);
    let mut kept = lock(&engine.condition);
    let (before, ill) = (kept.as_ref().map(|it| it.ill), now.as_ref().map(|it| it.ill));
    if before != ill {
        match &now {
            // Said by whoever asked it.
            Some(Condition { ill: Ill::Down | Ill::Silent, .. }) => {}
            Some(Condition { ill, reason }) => tracing::warn!(
                engine = &*engine.name,
                condition = ill.name(),
                "the engine is {}: {reason}; {}",
                ill.name(),
                ill.advice()
            ),
            None => tracing::info!(engine = &*engine.name, "the engine is well again"),
        }
    }
    *kept = now;
}
