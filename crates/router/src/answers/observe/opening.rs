//! The beginning of an event stream: what comes before anything that a client can use.
//!
//! Engines send comments to keep a connection open, and events that only say that work has begun: a role,
//! `response.created`, `message_start`. If the first thing after them is an error, another engine can still give the answer,
//! as long as none of them has gone to the client. So they are held back until an event comes that is neither; those
//! streams in which the first token is the first event pass without being held.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::dialect::{Dialect, read};

/// Bytes that are held back at most.
pub(super) const MOST_HELD: usize = 256 << 10;

/// Bytes of an event that says nothing but that the engine lives.
const LONGEST_PING: usize = 96;

/// The lines of a stream that are held back at its beginning.
#[derive(Debug, Default)]
pub(super) struct Preamble {
    held: BytesMut,
    /// True once an event has come that goes to the client at once.
    is_over: bool,
    /// True if the held lines have an event, not only comments.
    has_event: bool,
    /// True if some comments were dropped, as there were too many.
    has_dropped: bool,
}

impl Preamble {
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// True if an event is held back.
    pub(super) fn holds_event(&self) -> bool {
        !self.is_over && self.has_event
    }

    /// True if something that came never goes to the client.
    pub(super) fn has_dropped(&self) -> bool {
        self.has_dropped
    }

    /// Notes that an event has come which only says that work has begun.
    pub(super) fn note_event(&mut self) {
        self.has_event = true;
    }

    /// Notes that all that comes, and has come, goes to the client.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Returns the lines that go to the client now, of `lines` and of those held before.
    pub(super) fn pass(&mut self, lines: Bytes) -> Bytes {
        if self.is_over && self.held.is_empty() {
            return lines;
        }
        self.held.extend_from_slice(&lines);
        if !self.is_over && self.held.len() > MOST_HELD {
            self.is_over = self.has_event;
            if !self.has_event {
                // A client does not miss comments, and they would be taken for an answer.
                self.held.clear();
                self.has_dropped = true;
            }
        }
        if self.is_over { self.held.split().freeze() } else { Bytes::new() }
    }

    /// Ends the beginning, and returns what was held.
    pub(super) fn release(&mut self) -> Bytes {
        self.is_over = true;
        self.held.split().freeze()
    }
}

/// True if the data of an event is empty or a ping.
pub(super) fn is_ping(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
    }
    let may_be = data.len() <= LONGEST_PING && memmem::find(data, b"\"type\"").is_some();
    data.is_empty()
        || may_be && serde_json::from_slice::<Event<'_>>(data).is_ok_and(|event| names_ping(event.kind.as_bytes()))
}

/// True for the name of a ping event.
pub(super) fn names_ping(name: &[u8]) -> bool {
    matches!(name, b"ping" | b"keepalive" | b"keep-alive" | b"keep_alive" | b"heartbeat")
}

/// True if the data of an event only says that work has begun.
pub(super) fn is_preamble(data: &[u8], dialect: Dialect) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Event<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
        #[serde(borrow)]
        choices: Option<&'a RawValue>,
    }
    let Ok(event) = serde_json::from_slice::<Event<'_>>(data) else { return false };
    match dialect {
        Dialect::Chat => {
            let choices = read::<Vec<BTreeMap<Cow<'_, str>, &RawValue>>>(event.choices);
            choices.is_some_and(|choices| choices.iter().all(is_empty_choice))
        }
        Dialect::Responses | Dialect::Messages => read::<Cow<'_, str>>(event.kind).is_some_and(|kind| {
            matches!(&*kind, "response.created" | "response.queued" | "response.in_progress" | "message_start")
        }),
        Dialect::Generate | Dialect::Other => false,
    }
}

/// True if a choice has only its number and the role.
fn is_empty_choice(choice: &BTreeMap<Cow<'_, str>, &RawValue>) -> bool {
    choice.iter().all(|(name, value)| match &**name {
        "index" => true,
        "delta" => read::<BTreeMap<Cow<'_, str>, &RawValue>>(Some(value))
            .is_some_and(|delta| delta.iter().all(|(name, value)| name == "role" || is_nothing(value))),
        _ => is_nothing(value),
    })
}

fn is_nothing(raw: &RawValue) -> bool {
    matches!(raw.get(), "null" | "\"\"" | "[]" | "{}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_says_that_work_has_begun() {
        for (data, dialect) in [
            (
                r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
                Dialect::Chat,
            ),
            (r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}"#, Dialect::Chat),
            (r#"{"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null}]}"#, Dialect::Chat),
            (r#"{"choices":[],"prompt_filter_results":[{}]}"#, Dialect::Chat),
            (r#"{"type":"response.created","response":{}}"#, Dialect::Responses),
            (r#"{"type":"response.in_progress","response":{}}"#, Dialect::Responses),
            (r#"{"type":"message_start","message":{}}"#, Dialect::Messages),
        ] {
            assert!(is_preamble(data.as_bytes(), dialect), "{data}");
        }
        for (data, dialect) in [
            (r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}"#, Dialect::Chat),
            (r#"{"choices":[{"index":0,"delta":{"role":"assistant","novel":"a"}}]}"#, Dialect::Chat),
            (r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#, Dialect::Chat),
            (r#"{"choices":null}"#, Dialect::Chat),
            (r#"{"type":"response.output_item.added"}"#, Dialect::Responses),
            (r#"{"type":"content_block_start"}"#, Dialect::Messages),
            (r#"{"choices":[]}"#, Dialect::Other),
            ("text", Dialect::Chat),
        ] {
            assert!(!is_preamble(data.as_bytes(), dialect), "{data}");
        }
    }

    #[test]
    fn what_only_says_that_the_engine_lives() {
        for data in ["", r#"{"type":"ping"}"#, r#"{ "type" : "ping" }"#, r#"{"type":"keepalive","sequence_number":3}"#]
        {
            assert!(is_ping(data.as_bytes()), "{data}");
        }
        for data in ["ping", r#"{"type":"pong"}"#, r#"{"text":"ping","type":"text"}"#] {
            assert!(!is_ping(data.as_bytes()), "{data}");
        }
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut opening = Preamble::default();
        let comments = Bytes::from(vec![b':'; MOST_HELD / 2]);
        for _ in 0..9 {
            assert!(opening.pass(comments.clone()).is_empty());
        }
        assert!(opening.has_dropped() && opening.held.len() <= MOST_HELD && !opening.is_over());
        opening.note_event();
        assert!(opening.holds_event());
        let passed: usize = (0..3).map(|_| opening.pass(comments.clone()).len()).sum();
        assert!(passed > MOST_HELD && opening.is_over() && !opening.holds_event());
        assert_eq!(opening.pass(Bytes::from_static(b"a")), "a");
    }
}
