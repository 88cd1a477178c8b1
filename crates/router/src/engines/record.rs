//! The record of an engine: one account that `/workers`, `/explain`, `/metrics`, the page and the log all read.

use std::time::Duration;

use serde_json::{Value, json};

use super::trouble::Condition;

/// The last account of an engine. Whether it takes requests, its health says at any time.
#[derive(Debug, Default, Clone)]
pub(crate) struct EngineRecord {
    /// The state of its events; none if this router follows no events.
    pub(crate) events: Option<EventsState>,
    /// The worst thing that is known of it; none if all is well.
    pub(crate) condition: Option<Condition>,
}

/// The state of an engine's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventsState {
    /// State of its worst stream, or of its registration if it has no stream.
    pub(crate) name: &'static str,
    /// The longest lag of its streams.
    pub(crate) lag: Option<Duration>,
}

impl EngineRecord {
    /// Returns the condition as answers show it; null if all is well.
    pub(crate) fn condition_to_json(&self) -> Value {
        self.condition.as_ref().map_or(Value::Null, Condition::to_json)
    }

    /// Returns the state of the events as answers show it; null if none are followed.
    pub(crate) fn events_to_json(&self) -> Value {
        let Some(EventsState { name, lag }) = &self.events else { return Value::Null };
        json!({ "state": name, "lag_ms": lag.map(|lag| lag.as_micros() as f64 / 1e3) })
    }
}
