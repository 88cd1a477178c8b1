//! Kinds of faults of an engine, with text and advice for each; and the state of an engine's event streams, with their
//! worst fault.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use kvatlas_follow::Follower;
use kvatlas_follow::fleet::EngineState;
use kvatlas_follow::state::{Keyspace, State, Stream};
use serde_json::{Value, json};

use super::Engine;
use super::diagnosis::EventsState;

/// Base URL of the runbooks, which are pages for operators, one for each kind of fault, by its name.
const RUNBOOKS: &str = "https://github.com/kvatlas/kvatlas/blob/main/docs/runbooks";

/// Time for which events that the index refused are reported as a fault of the engine.
const REFUSED_LATELY: Duration = Duration::from_secs(600);

/// Kinds of faults that an engine can have, the worst first.
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

/// Worst known fault of an engine, with its explanation and its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) ill: Trouble,
    /// Explanation of the fault as text, with figures.
    pub(crate) reason: String,
    /// Time at which the engine's fault began.
    pub(crate) since: SystemTime,
}

/// Number of an engine's events that the index has refused so far, and the time at which this number last grew.
#[derive(Debug, Default, Clone)]
pub(crate) struct RefusedEvents(u64, Option<Instant>);

impl Trouble {
    /// All kinds of faults, the worst first.
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

    /// Returns the name of the fault in answers, metrics and logs, which is also the name of its runbook.
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

    /// Returns the fault as the end of the sentence "the engine is …".
    pub(crate) fn phrase(self) -> &'static str {
        match self {
            Self::NoEvents => "without events",
            Self::OtherTokens => "making other tokens",
            other => other.name(),
        }
    }

    /// Returns advice to the operator on how to remove the fault.
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
    /// Makes a record of a fault that begins now. `reason`: explanation with figures.
    pub(crate) fn new(ill: Trouble, reason: impl Into<String>) -> Self {
        Self { ill, reason: reason.into(), since: SystemTime::now() }
    }

    /// Returns the fault as JSON for answers of the router.
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
    /// Updates the number of refused events to `refused`; true if it has grown within [`REFUSED_LATELY`].
    pub(crate) fn is_new(&mut self, refused: u64) -> bool {
        if refused > self.0 {
            *self = Self(refused, Some(Instant::now()));
        }
        self.1.is_some_and(|at| at.elapsed() < REFUSED_LATELY)
    }
}

/// Time allowed to discovery for registering a new engine's event streams before the engine is reported as not
/// followed.
const GRACE: Duration = Duration::from_secs(5);

/// States of an event stream, the worst first. An engine has the worst state of its streams.
const STATES: [State; 9] = [
    State::Stale,
    State::Conflict,
    State::Limited,
    State::Unreadable,
    State::Stopped,
    State::Gap,
    State::Connecting,
    State::Replaying,
    State::Live,
];

/// Returns the state of an engine's event streams, and their worst fault; None for no fault.
pub(super) fn look(service: &Follower, engine: &Engine) -> (EventsState, Option<Condition>) {
    let said = |ill, reason: String| Some(Condition::new(ill, reason));
    let reported = registration(service, engine);
    let keyspaces = service.fleet().keyspaces();
    let keyspace = keyspaces.iter().find(|keyspace| !keyspace.streams_of(&engine.name).is_empty());
    let streams = keyspace.map(|keyspace| keyspace.streams_of(&engine.name)).unwrap_or_default();
    let worst = STATES.into_iter().find(|state| streams.iter().any(|(_, stream)| stream.status.state() == *state));
    let lag = streams.iter().filter_map(|(_, stream)| service.fleet().lag(stream)).max();
    let state = |name| EventsState { name, lag };
    let name = worst.map_or("unfollowed", State::name);
    match reported {
        Some((EngineState::Refused, why)) => return (state("refused"), said(Trouble::Refused, why)),
        Some((EngineState::NoEvents | EngineState::Unreachable | EngineState::Unusable, why)) if streams.is_empty() => {
            return (state("no_events"), said(Trouble::NoEvents, why));
        }
        Some((EngineState::Asking, _)) if streams.is_empty() => return (state("asking"), None),
        _ => {}
    }
    let Some(keyspace) = keyspace else {
        let why = "no source of engines lists it, so that its events are not followed";
        let is_new = engine.added.elapsed() < GRACE;
        return (state(name), if is_new { None } else { said(Trouble::Unfollowed, why.to_owned()) });
    };
    let lost = streams.iter().find_map(|(_, stream)| without_events(service, stream));
    (state(name), lost.or_else(|| of_contents(service, engine, keyspace)).or_else(|| overdue(service, &streams)))
}

/// Returns the state of an engine that discovery could not register, and the reason as text; None for a registered
/// engine.
fn registration(service: &Follower, engine: &Engine) -> Option<(EngineState, String)> {
    let views = service.fleet().engines();
    let is_of = |view: &&kvatlas_follow::fleet::EngineView| *view.worker == *engine.name;
    let view = views.iter().filter(is_of).find(|view| view.state != EngineState::Registered)?;
    let default = || match view.state {
        EngineState::NoEvents => "it publishes no events".to_owned(),
        _ => "its events cannot be followed".to_owned(),
    };
    Some((view.state, view.reason.as_deref().map_or_else(default, str::to_owned)))
}

/// Returns the fault of a stream that delivers no usable events now; None for a stream that delivers events.
fn without_events(service: &Follower, stream: &Stream) -> Option<Condition> {
    let error = stream.status.last_error();
    let with = |words: &str| match &error {
        Some(error) => format!("{words}: {error}"),
        None => words.to_owned(),
    };
    let said = |ill, words: &str| Some(Condition::new(ill, with(words)));
    match stream.status.state() {
        State::Stale if service.fleet().overdue(stream).is_some() => {
            said(Trouble::NoEvents, "it sends no events and does not answer at its replay socket")
        }
        State::Stale => said(Trouble::NoEvents, "it sends no events"),
        State::Connecting if error.is_some() && !stream.status.is_trusted() => {
            said(Trouble::NoEvents, "its events cannot be read")
        }
        State::Conflict => said(Trouble::Refused, "its events contradict each other, as if two engines published them"),
        State::Limited => {
            let limit = stream.status.limit().map_or("a limit", |limit| limit.name());
            said(Trouble::Refused, &format!("its blocks exceed {limit} of this router, so that none are held"))
        }
        State::Unreadable => said(Trouble::Refused, "events of unknown types keep coming, which may remove blocks"),
        _ => None,
    }
}

/// Returns the fault of an engine whose replay socket is late to answer, but still being waited for; None otherwise.
fn overdue(service: &Follower, streams: &[(u32, std::sync::Arc<Stream>)]) -> Option<Condition> {
    let late = |(_, stream): &(u32, std::sync::Arc<Stream>)| service.fleet().overdue(stream).is_some();
    let is_late = streams.iter().any(late);
    is_late.then(|| Condition::new(Trouble::Overdue, "it has not answered at its replay socket in time"))
}

/// Returns the fault in the contents of an engine's events; None for correct events.
fn of_contents(service: &Follower, engine: &Engine, keyspace: &Keyspace) -> Option<Condition> {
    let (mut refused, mut wrong_size, mut lost, mut is_partial) = (0, 0, 0, false);
    let (mut other_size, mut is_other_size, mut other_topics) = (None, false, 0);
    for (_, stream) in keyspace.streams_of(&engine.name) {
        let status = &stream.status;
        let (sized, partial) = (status.refused_for_their_size(), status.refused_as_partial());
        // Blocks that are not full cannot be used, and need not be.
        let not_needed = if status.has_other_size() { 0 } else { partial };
        refused += status.refused().iter().sum::<u64>() - not_needed;
        wrong_size += sized + partial - not_needed;
        other_size = other_size.or(status.other_size());
        is_other_size |= status.has_other_size();
        let others = status.counters.other_topic_batches.load(Relaxed);
        if others > 0 && status.counters.batches.load(Relaxed) == 0 && !shares_address(service, &stream) {
            other_topics += others;
        }
        lost += status.counters.lost_batches.load(Relaxed);
        is_partial |= status.partial.load(Relaxed);
    }
    let said = |ill, reason: String| Some(Condition::new(ill, reason));
    if other_topics > 0 {
        return said(
            Trouble::Misconfigured,
            format!("{other_topics} batches have another topic than the one that is set"),
        );
    }
    if refused > 0 && engine.refused.lock().is_new(refused) {
        let size = keyspace.block_size;
        let its = other_size.map_or(0, |(its, _)| its);
        if is_other_size {
            let reason = format!(
                "{wrong_size} events have blocks of another size than {size}, which is set or announced: most have {its}"
            );
            return said(Trouble::Misconfigured, reason);
        }
        if wrong_size > 0 {
            let reason =
                format!("{wrong_size} events have blocks of another size, {its}, among those of {size} tokens");
            return said(Trouble::Refusing, reason);
        }
        return said(Trouble::Refusing, format!("{refused} of its events could not be used"));
    }
    let reason = if lost > 0 { format!("{lost} batches of events are lost") } else { "events were missed".to_owned() };
    is_partial.then(|| Condition::new(Trouble::Partial, reason))
}

/// True if another stream has the same address and a topic of its own. Batches that this stream skips then belong to
/// the other stream.
fn shares_address(service: &Follower, stream: &Stream) -> bool {
    let its = &stream.registration;
    let workers = service.fleet().workers();
    let mut others = workers.iter().flat_map(|worker| &worker.streams).map(|(_, other)| &other.registration);
    others.any(|other| other.endpoint == its.endpoint && other.topic != its.topic)
}
